"""Nearest-neighbor disclosure as a torchmetrics class; conventions as in `fedsynth.evaluation.streaming`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsynth.attacks.neighbors import neighbor_disclosure
from fedsynth.evaluation.checks import PointSet, check_points
from fedsynth.evaluation.streaming import Gatherer


class StreamingNeighborDisclosure(Gatherer):
    """`neighbor_disclosure` without its per-point distances, under the same names.

    Args:
        cut_quantile: See there.
    """

    inputs = ("synthetic", "train", "held_out")
    is_differentiable: bool = False

    def __init__(self, *, cut_quantile: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cut_quantile = cut_quantile

    def update(
        self,
        *,
        synthetic: PointSet | None = None,
        train: PointSet | None = None,
        held_out: PointSet | None = None,
    ) -> None:
        """Add batches of any of the three sets."""
        given = {"synthetic": synthetic, "train": train, "held_out": held_out}
        batches = {
            name: check_points(points, name, min_points=0)
            for name, points in given.items()
            if points is not None
        }
        for name, points in batches.items():
            self.append(name, points)

    def compute(self) -> dict[str, Tensor]:
        """See `neighbor_disclosure`."""
        found = neighbor_disclosure(
            synthetic=self.joined("synthetic"),
            train=self.joined("train"),
            held_out=self.joined("held_out"),
            cut_quantile=self.cut_quantile,
        )
        names = (
            "median_train", "median_held_out", "mean_train", "mean_held_out",
            "ratio", "near_duplicate_cut", "near_duplicate_fraction",
        )  # fmt: skip
        return self.scalars({name: getattr(found, name) for name in names})
