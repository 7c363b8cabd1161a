"""The metrics as torchmetrics classes: fed batch by batch, gathered over processes, computed once.

Every class keeps what it was fed and calls the function of the same name in `compute`, so its value equals
the function's on the concatenated batches bit for bit, whatever the batches; with several processes the order
is rank after rank. Memory grows with the number of records (64 float32 features: 256 bytes each); no quantile,
neighbor or ranking metric is a function of running sums, and a Fréchet distance from running moments would
differ in its last digits.

Conventions shared by all classes:

- Arguments of `update` are keyword-only; a set may be left out of a call, and batches may be empty.
- Points and scores keep the dtype they come in, also after `.half()` or `.double()` of a module that holds the
  metric; all arithmetic is float64, and so are the values, scalar tensors on the metric's device.
- Inputs must be on the metric's device; `metric.to(device)` moves what was gathered.
- With labels, points are compared class by class and names carry the class: ``coverage/1``.
- Under `torch.distributed` each process needs at least one batch of each set.

Raises, beyond what the functions raise: `EvaluationError` for batches of another width or device than before,
for labels given in some calls only, and when computed without records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from fedsynth.evaluation.calibration import brier_score, check_num_bins, expected_calibration_error
from fedsynth.evaluation.checks import (
    EvaluationError,
    PointSet,
    Vector,
    as_tensor,
    check_class_index,
    check_integer,
    check_points,
    check_scores,
)
from fedsynth.evaluation.classification import check_threshold, classification_metrics
from fedsynth.evaluation.frechet import frechet_distance
from fedsynth.evaluation.mmd import rbf_mmd
from fedsynth.evaluation.prdc import prdc


class Gatherer(Metric):
    """A metric that concatenates its inputs; subclasses name their states and compute from them."""

    full_state_update: bool = False
    #: Names of the states.
    inputs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.inputs:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def append(self, name: str, values: Tensor) -> None:
        """Store one batch of an input."""
        if values.device != self.device:
            raise EvaluationError(
                f"{name} must be on the metric's device {self.device}, got {values.device}. "
                "Move the metric or the batch with .to(device)."
            )
        stored = getattr(self, name)
        before = stored[0] if isinstance(stored, list) and stored else None
        if before is not None and before.shape[1:] != values.shape[1:]:
            raise EvaluationError(
                f"{name} must have {before.shape[1]} features as in earlier batches, got {values.shape[1]}."
            )
        stored.append(values.clone())

    def joined(self, name: str) -> Tensor:
        """All batches of an input.

        Raises:
            EvaluationError: There was none.
        """
        stored = getattr(self, name)
        if isinstance(stored, list) and not stored:
            raise EvaluationError(f"no {name} was given yet. Call update({name}=...) before compute().")
        return dim_zero_cat(stored)

    def scalars(self, values: Mapping[str, float]) -> dict[str, Tensor]:
        """Values as float64 tensors on the metric's device."""
        return {
            name: torch.tensor(value, dtype=torch.float64, device=self.device)
            for name, value in values.items()
        }


class PointSetMetric(Gatherer):
    """A metric of real against synthetic points, over all or class by class.

    Args:
        num_classes: None compares the sets whole; a number asks for labels in every `update`.
    """

    inputs = ("real", "real_label", "synthetic", "synthetic_label")

    def __init__(self, *, num_classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = None if num_classes is None else check_integer(num_classes, "num_classes")

    @abstractmethod
    def compare(self, *, real: Tensor, synthetic: Tensor) -> dict[str, float]:
        """The values of two point sets."""

    def update(
        self,
        *,
        real: PointSet | None = None,
        synthetic: PointSet | None = None,
        real_label: Vector | None = None,
        synthetic_label: Vector | None = None,
    ) -> None:
        """Add a batch of real points, synthetic points, or both."""
        given = (("real", real, real_label), ("synthetic", synthetic, synthetic_label))
        batches: list[tuple[str, Tensor]] = []
        for name, points, label in given:  # all are checked before any is stored
            if (label is None) != (points is None or self.num_classes is None):
                raise EvaluationError(
                    f"{name}_label must be given with {name} exactly when num_classes is set, "
                    f"got num_classes={self.num_classes}."
                )
            if points is None:
                continue
            tensor = check_points(points, name, min_points=0)
            batches.append((name, tensor))
            if label is not None and self.num_classes is not None:
                classes = check_class_index(label, self.num_classes, len(tensor), f"{name}_label")
                batches.append((f"{name}_label", classes))
        for name, values in batches:
            self.append(name, values)

    def compute(self) -> dict[str, Tensor]:
        """Values of the sets, with ``/class`` after each name when there are classes."""
        real, synthetic = self.joined("real"), self.joined("synthetic")
        if self.num_classes is None:
            return self.scalars(self.compare(real=real, synthetic=synthetic))
        real_label, synthetic_label = self.joined("real_label"), self.joined("synthetic_label")
        values = {}
        for c in range(self.num_classes):
            of_class = self.compare(real=real[real_label == c], synthetic=synthetic[synthetic_label == c])
            values.update({f"{name}/{c}": value for name, value in of_class.items()})
        return self.scalars(values)


class StreamingFrechetDistance(PointSetMetric):
    """`frechet_distance`, as ``frechet``."""

    is_differentiable: bool = False
    higher_is_better: bool = False

    def __init__(self, *, shrinkage: float = 1e-6, num_classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(num_classes=num_classes, **kwargs)
        self.shrinkage = shrinkage

    def compare(self, *, real: Tensor, synthetic: Tensor) -> dict[str, float]:
        """See `frechet_distance`."""
        return {"frechet": frechet_distance(real=real, synthetic=synthetic, shrinkage=self.shrinkage)}


class StreamingMMD(PointSetMetric):
    """`rbf_mmd`, as ``mmd``; without a bandwidth each class takes the median of its real points."""

    is_differentiable: bool = False
    higher_is_better: bool = False

    def __init__(
        self, *, bandwidth: float | None = None, num_classes: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(num_classes=num_classes, **kwargs)
        self.bandwidth = bandwidth

    def compare(self, *, real: Tensor, synthetic: Tensor) -> dict[str, float]:
        """See `rbf_mmd`."""
        return {"mmd": rbf_mmd(real=real, synthetic=synthetic, bandwidth=self.bandwidth)}


class StreamingPRDC(PointSetMetric):
    """`prdc`, as ``precision``, ``recall``, ``density`` and ``coverage``."""

    is_differentiable: bool = False
    higher_is_better: bool = True

    def __init__(self, *, nearest_k: int = 5, num_classes: int | None = None, **kwargs: Any) -> None:
        super().__init__(num_classes=num_classes, **kwargs)
        self.nearest_k = check_integer(nearest_k, "nearest_k", remedy="The usual value is 5.")

    def compare(self, *, real: Tensor, synthetic: Tensor) -> dict[str, float]:
        """See `prdc`."""
        return prdc(real=real, synthetic=synthetic, nearest_k=self.nearest_k)._asdict()


class _ScoreMetric(Gatherer):
    """A metric of positive-class probabilities and 0/1 targets."""

    inputs = ("probability", "target")
    is_differentiable: bool = False

    def update(self, *, probability: Vector, target: Vector) -> None:
        """Add a batch of p1 and 0/1 targets; an empty one changes nothing."""
        values = as_tensor(probability, "probability")
        if values.numel() == 0 and values.shape == as_tensor(target, "target").shape:
            return
        checked, labels = check_scores(values, target, is_probability=True, name="probability")
        self.append("probability", checked)
        self.append("target", labels)


class StreamingClassification(_ScoreMetric):
    """`classification_metrics` at a fixed threshold, under the same names.

    Args:
        threshold: Predicted positive is p1 >= threshold; choose it on validation records.
        num_bins: Bins of the ECE.
    """

    def __init__(self, *, threshold: float, num_bins: int = 15, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_num_bins(num_bins)
        self.threshold, self.num_bins = check_threshold(threshold), num_bins

    def compute(self) -> dict[str, Tensor]:
        """See `classification_metrics`."""
        probability, target = self.joined("probability"), self.joined("target")
        return self.scalars(
            classification_metrics(probability, target, self.threshold, num_bins=self.num_bins)
        )


class StreamingCalibration(_ScoreMetric):
    """``brier`` (`brier_score`) and ``ece_M`` (`expected_calibration_error`) for several numbers of bins M."""

    higher_is_better: bool = False

    def __init__(self, *, num_bins: Sequence[int] = (15, 10), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for number in num_bins:
            check_num_bins(number)
        self.num_bins = tuple(num_bins)

    def compute(self) -> dict[str, Tensor]:
        """See `brier_score` and `expected_calibration_error`."""
        probability, target = self.joined("probability"), self.joined("target")
        errors = {f"ece_{m}": expected_calibration_error(probability, target, m) for m in self.num_bins}
        return self.scalars({"brier": brier_score(probability, target), **errors})
