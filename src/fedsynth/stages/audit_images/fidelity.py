"""How like the real images, and how diverse, a released set is: Fréchet distance, IRS, precision and recall."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsynth.evaluation.frechet import frechet_distance
from fedsynth.evaluation.irs import ImageRetrievalScore, image_retrieval_score, relative_retrieval_score
from fedsynth.evaluation.prdc import prdc
from fedsynth.pipeline.stage import Metric
from fedsynth.seeding import generator
from fedsynth.stages.audit_images.spaces import Space
from fedsynth.stages.audit_images.spec import AuditImagesSettings


def fidelity(space: Space, settings: AuditImagesSettings) -> tuple[list[Metric], dict[str, Any]]:
    """Metrics of one space, and the counts behind them.

    - ``frechet/train``, ``frechet/test``: released against all of these real images. The paper does not say which its
      own is. Distances of unequal sample sizes do not compare, so ``frechet/train_equal`` takes as many released images
      as ``frechet/floor`` takes real validation images: the floor is what real images of other people give.
    - ``irs/*``: see `fedsynth.evaluation.irs`; also of real test and validation images.
    - ``prdc/*``: against real test images, equally many of both; ``prdc/floor/*`` of validation images instead.

    Returns:
        The metrics, and notes by quantity.
    """
    distances, sizes = _frechet(space, settings)
    scores, table = _retrieval(space, settings)
    shares, num_prdc = _neighborhoods(space, settings)
    found = {**distances, **scores, **shares}
    metrics = [
        Metric(settings.arm, f"{name}{space.suffix}", value, settings.seed) for name, value in found.items()
    ]
    return metrics, {"frechet": sizes, "irs": table, "prdc_records": num_prdc}


def _drawn(points: Tensor, size: int, settings: AuditImagesSettings, name: str) -> Tensor:
    order = torch.randperm(len(points), generator=generator(settings.seed, "audit", "equal", name))
    return points[order[:size]]


def _frechet(space: Space, settings: AuditImagesSettings) -> tuple[dict[str, float], dict[str, int]]:
    # fidelity: frechet-reference
    size = min(len(space.released), len(space.val))
    released, val = (
        _drawn(points, size, settings, name)
        for points, name in ((space.released, "released"), (space.val, "val"))
    )
    distances = {
        "frechet/train": frechet_distance(real=space.train, synthetic=space.released),
        "frechet/test": frechet_distance(real=space.test, synthetic=space.released),
        "frechet/train_equal": frechet_distance(real=space.train, synthetic=released),
        "frechet/floor": frechet_distance(real=space.train, synthetic=val),
    }
    sizes = {
        "train": len(space.train),
        "test": len(space.test),
        "released": len(space.released),
        "equal": size,
    }
    return distances, {**sizes, "dim": space.train.shape[1]}


def _retrieval(space: Space, settings: AuditImagesSettings) -> tuple[dict[str, float], list[dict[str, Any]]]:
    options: dict[str, Any] = {"tail": settings.irs_tail, "bounds": settings.irs_bounds}
    relative = relative_retrieval_score(
        space.released,
        space.test,
        space.train,
        generator=generator(settings.seed, "audit", "irs"),
        **options,
    )
    sets = {"released": space.released, "test": space.test, "val": space.val}
    scores = {name: image_retrieval_score(points, space.train, **options) for name, points in sets.items()}
    own = scores["released"]
    metrics = {
        "irs/alpha": own.irs_alpha,
        "irs/inf": own.irs_inf,
        "irs/inf_low": own.irs_inf_interval[0],
        "irs/inf_high": own.irs_inf_interval[1],
        "irs/inf_test": scores["test"].irs_inf,
        "irs/inf_val": scores["val"].irs_inf,
        "irs/inf_a": relative.irs_inf_a,
        "irs/inf_a_ceiling": relative.ceiling,
        "irs/saturated_share": relative.saturated_share,
    }
    return metrics, [_counts(name, score) for name, score in scores.items()]


def _counts(name: str, score: ImageRetrievalScore) -> dict[str, Any]:
    low, high = score.irs_inf_interval
    return {
        "set": name,
        "n": score.num_queries,
        "N": score.num_train,
        "k": score.num_distinct,
        "s": score.num_reachable,
        "irs_alpha": score.irs_alpha,
        "irs_inf": score.irs_inf,
        "irs_inf_low": low,
        "irs_inf_high": high,
        "is_saturated": score.is_saturated,
        "is_more_even_than_chance": score.is_more_even_than_chance,
    }


def _neighborhoods(space: Space, settings: AuditImagesSettings) -> tuple[dict[str, float], dict[str, int]]:
    # fidelity: prdc-reference
    found: dict[str, float] = {}
    sizes = {}
    for prefix, points in (("prdc", space.released), ("prdc/floor", space.val)):
        size = min(len(points), len(space.test))
        values = prdc(
            real=_drawn(space.test, size, settings, "test"),
            synthetic=_drawn(points, size, settings, prefix),
            nearest_k=settings.nearest_k,
        )
        found |= {f"{prefix}/{name}": value for name, value in values._asdict().items()}
        sizes[prefix] = size
    return found, sizes
