"""AUROC by class and its unweighted mean, of several classifiers of the same images, with a bootstrap over patients.

Several images of one patient are not independent, so patients are drawn with replacement and all images of a drawn
one count. Classifiers that differ only in their seed are drawn with replacement too where that is asked: with patients
alone the interval would hold the trained networks fixed. Few seeds vary less than many would (three: by a factor of
√(2/3) on average), so the interval is still too narrow for a small number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from fedsynth.evaluation.checks import (
    EvaluationError,
    as_tensor,
    check_generator,
    check_integer,
    require_finite,
)
from fedsynth.evaluation.pairwise import CHUNK_ELEMENTS
from fedsynth.evaluation.ranking import auroc_from_counts, count_by_score

#: The unweighted mean over classes, in the results by name.
MACRO = "macro"


def both_kinds(target: Shaped[Tensor, "n k"]) -> Bool[Tensor, " k"]:
    """Which columns hold both 0 and 1: the others have no AUROC."""
    return ((target != 0).any(0) & (target == 0).any(0)).cpu()


def class_aurocs(score: Float[Tensor, "n k"], target: Shaped[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """AUROC of every column against the rest, ties one half; NaN where the target holds one kind only.

    Args:
        score: Larger means more positive; only the order within a column matters.
        target: 0 or 1; one column a class (one-vs-rest) or a label.

    Raises:
        EvaluationError: Shapes differ, scores not finite, targets not 0 or 1.
    """
    scores, targets = _checked(score, target)
    weight = scores.new_ones(1, len(scores))
    return torch.stack([_weighted(scores[:, k], targets[:, k], weight)[0] for k in range(targets.shape[1])])


def macro_auroc(score: Float[Tensor, "n k"], target: Shaped[Tensor, "n k"]) -> float:
    """Unweighted mean of `class_aurocs` over the columns that have one; NaN if none has.

    Raises:
        EvaluationError: See `class_aurocs`.
    """
    return float(class_aurocs(score, target).nanmean())


def auroc_replicates(
    systems: Mapping[str, Float[Tensor, "seed n k"]],
    target: Shaped[Tensor, "n k"],
    patient: Int[Tensor, " n"],
    *,
    generator: torch.Generator,
    num_replicates: int = 2_000,
    resample_seeds: bool = False,
) -> dict[str, Float[Tensor, "replicate k_and_macro"]]:
    """Mean over seeds of the AUROC of each class and of the macro AUROC, the last column; first of the sample itself.

    All systems see the same draws of patients, so differences are paired. The macro AUROC is a mean over the columns
    that hold both kinds in the sample; where a replicate has none of one kind it is NaN, never a mean over fewer.

    Args:
        systems: Scores of the same images by every seed of a system.
        target: 0 or 1; one column a class or label.
        patient: Of every image.
        generator: CPU generator of the draws.
        num_replicates: At least 1.
        resample_seeds: Draw the seeds of every system with replacement, too, each system's by themselves.

    Returns:
        By system [1 + num_replicates, k + 1], for `replicate_intervals` and `replicate_differences` by column.

    Raises:
        EvaluationError: No system, systems of other images, patients that are not one an image, bad scores.
    """
    check_generator(generator)
    check_integer(num_replicates, "num_replicates", remedy="The usual value is 2000.")
    if not systems:
        raise EvaluationError("systems must hold at least one system, got none.")
    scores = {name: _stacked(name, score, target) for name, score in systems.items()}
    targets = as_tensor(target, "target").cpu().double()
    if tuple(patient.shape) != (len(targets),):
        raise EvaluationError(
            f"patient must hold one number an image ({len(targets)}), got shape {tuple(patient.shape)}."
        )
    parts: dict[str, list[Tensor]] = {name: [] for name in scores}
    used = both_kinds(targets)
    for weight in _patient_weights(patient.cpu(), num_replicates, generator):
        for name, score in scores.items():
            parts[name].append(_by_seed(score, targets, weight, used))
    found = {}
    for name, rows in parts.items():
        value = torch.cat(rows)  # [1 + replicate, seed, k + 1]
        share = torch.full(value.shape[:2], 1 / value.shape[1], dtype=torch.float64)
        if resample_seeds:
            share[1:] = _seed_shares(num_replicates, value.shape[1], generator)
        found[name] = (value * share.unsqueeze(2)).sum(1)
    return found


def _by_seed(
    score: Float[Tensor, "seed n k"],
    target: Float[Tensor, "n k"],
    weight: Float[Tensor, "replicate n"],
    used: Bool[Tensor, " k"],
) -> Float[Tensor, "replicate seed k_and_macro"]:
    columns = [
        torch.stack([_weighted(one[:, k], target[:, k], weight) for k in range(target.shape[1])], dim=1)
        for one in score
    ]
    by_class = torch.stack(columns, dim=1)
    return torch.cat([by_class, by_class[:, :, used].mean(2, keepdim=True)], dim=2)


def _weighted(
    score: Float[Tensor, " n"], target: Float[Tensor, " n"], weight: Float[Tensor, "replicate n"]
) -> Float[Tensor, " replicate"]:
    return auroc_from_counts(count_by_score(score, target, weight))


def _patient_weights(
    patient: Int[Tensor, " n"], num_replicates: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "part n"]]:
    """Ones for the sample; then how often the patient of each image was drawn, some replicates at a time."""
    numbers, row = patient.unique(return_inverse=True)
    yield torch.ones(1, len(patient), dtype=torch.float64)
    step = max(1, CHUNK_ELEMENTS // len(patient))
    for start in range(0, num_replicates, step):
        size = min(step, num_replicates - start)
        drawn = torch.randint(len(numbers), (size, len(numbers)), generator=generator)
        times = torch.zeros(size, len(numbers), dtype=torch.float64)
        yield times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))[:, row]


def _seed_shares(
    num_replicates: int, num_seeds: int, generator: torch.Generator
) -> Float[Tensor, "replicate seed"]:
    drawn = torch.randint(num_seeds, (num_replicates, num_seeds), generator=generator)
    shares = torch.zeros(num_replicates, num_seeds, dtype=torch.float64)
    return shares.scatter_add_(1, drawn, torch.full_like(drawn, 1 / num_seeds, dtype=torch.float64))


def _stacked(name: str, score: Tensor, target: Tensor) -> Float[Tensor, "seed n k"]:
    if score.ndim != 3 or len(score) == 0:
        raise EvaluationError(
            f"scores of {name!r} must have shape [seeds, images, classes], got {tuple(score.shape)}."
        )
    return torch.stack([_checked(one, target, f"scores of {name!r}")[0] for one in score])


def _checked(
    score: Tensor, target: Tensor, name: str = "score"
) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
    scores, targets = as_tensor(score, name), as_tensor(target, "target")
    if targets.ndim != 2 or 0 in targets.shape or scores.shape != targets.shape:
        raise EvaluationError(
            f"{name} and target must have the same shape [images, classes], got {tuple(scores.shape)} and "
            f"{tuple(targets.shape)}."
        )
    if not bool(((targets == 0) | (targets == 1)).all()):
        raise EvaluationError(f"target must hold only 0 and 1, got {targets.unique()[:5].tolist()}.")
    scores = scores.cpu().double()
    require_finite(scores, name)
    return scores, targets.cpu().double()
