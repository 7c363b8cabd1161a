"""Membership inference against the released shard means: can one tell who was in the averages?

The adversary sees exactly what the server sees (`ReleasedMeans`), knows the clipping rule and a public
reference (class moments of validation latents), and decides for candidate records of known client and class.

Two experiments:

- `released_summary_attack` draws members and non-members at random from the same records, so the two groups
  differ in membership alone and any AUROC above 0.5 is leakage;
- `shifted_summary_attack` compares all training records with held-out test records. There the groups also
  differ in distribution and in encoder overfitting, so its AUROC is **not** leakage of the release; it is
  kept because published audits are often of this form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.summary_scores import (
    SCORES,
    Candidates,
    PublicReference,
    ReleasedMeans,
    clip_latents,
    membership_scores,
)
from fedsynth.evaluation.checks import EvaluationError, PointSet, as_tensor, check_points
from fedsynth.evaluation.ranking import auroc

#: (latents, labels, clients, generator) -> released shard means; clips, shards and adds noise itself.
Release = Callable[[Tensor, Tensor, Tensor, torch.Generator], ReleasedMeans]


class Spread(NamedTuple):
    """Over repetitions: mean, sample standard deviation (ddof = 1, NaN for one), 2.5 and 97.5 % quantiles."""

    mean: float
    std: float
    low: float
    high: float


def spread(values: Float[Tensor, " repetition"]) -> Spread:
    """Summary of repetitions. The quantiles describe single repetitions, not the error of their mean.

    Raises:
        EvaluationError: If there is no repetition.
    """
    if values.ndim != 1 or len(values) == 0:
        raise EvaluationError(
            f"values must have shape [repetitions] with at least one, got {tuple(values.shape)}. "
            "Repeat the attack at least once."
        )
    values = values.double()
    low, high = torch.quantile(values, values.new_tensor([0.025, 0.975])).tolist()
    std = float(values.std(correction=1)) if len(values) > 1 else float("nan")
    return Spread(mean=float(values.mean()), std=std, low=low, high=high)


@dataclass(frozen=True)
class SummaryAttack:
    """Outcome of one release: per score name, one value a repetition.

    `score_gap` is the mean score of members minus that of non-members, in units of the score.
    """

    auroc: dict[str, Float[Tensor, " repetition"]]
    score_gap: dict[str, Float[Tensor, " repetition"]]

    def auroc_spread(self, score: str = "matched_filter") -> Spread:
        return spread(self.auroc[score])

    def score_gap_spread(self, score: str = "matched_filter") -> Spread:
        return spread(self.score_gap[score])


class PairedChange(NamedTuple):
    """AUROC of the private release minus that of the non-private one, on the same candidates."""

    change: Spread
    num_reduced: int
    num_repetitions: int


def paired_change(
    private: SummaryAttack, non_private: SummaryAttack, score: str = "matched_filter"
) -> PairedChange:
    """How noise changed the attack; negative is protection. Both must come from one call, hence be paired."""
    first, second = private.auroc[score], non_private.auroc[score]
    if first.shape != second.shape:
        raise EvaluationError(
            f"paired attacks need equally many repetitions, got {len(first)} and {len(second)}. "
            "Take both from one call."
        )
    difference = first - second
    return PairedChange(spread(difference), int((difference < 0).sum()), len(difference))


def half_split(
    cells: Int[Tensor, " n"], generator: torch.Generator
) -> tuple[Int[Tensor, " member"], Int[Tensor, " non_member"]]:
    """A random half of every cell as members and equally many others as non-members, both in record order.

    An odd cell leaves one random record out; a cell of one is left out.
    """
    shuffled = torch.rand(len(cells), generator=generator, dtype=torch.float64).argsort()
    grouped = shuffled[cells[shuffled].argsort(stable=True)]  # cells together, random inside
    sizes = torch.bincount(cells)
    start = sizes.cumsum(0) - sizes
    position = torch.arange(len(cells)) - start[cells[grouped]]  # rank inside the cell
    half = (sizes // 2)[cells[grouped]]
    members, non_members = position < half, (position >= half) & (position < 2 * half)
    return grouped[members].sort().values, grouped[non_members].sort().values


def _check_records(
    latents: PointSet, labels: Tensor, clients: Tensor, reference: PublicReference, name: str
) -> Candidates:
    points = check_points(latents, f"{name} latents", min_points=2).cpu().double()
    classes, owners = as_tensor(labels, f"{name} labels").cpu(), as_tensor(clients, f"{name} clients").cpu()
    for what, values in (("labels", classes), ("clients", owners)):
        if values.shape != points.shape[:1] or values.is_floating_point() or int(values.min()) < 0:
            raise EvaluationError(
                f"{name} {what} must hold one integer >= 0 per latent ({len(points)}), got shape "
                f"{tuple(values.shape)} of {values.dtype}."
            )
    if points.shape[1] != reference.means.shape[1] or int(classes.max()) >= len(reference.means):
        raise EvaluationError(
            f"the public reference covers {len(reference.means)} classes of {reference.means.shape[1]} "
            f"features, but {name} records have class {int(classes.max())} and {points.shape[1]} features. "
            "Build it from the same encoder."
        )
    return Candidates(latents=points, labels=classes.long(), clients=owners.long())


class _Trial(NamedTuple):
    """One repetition: what is released, and who is in question."""

    released: Candidates
    members: Candidates
    non_members: Candidates


def _take(records: Candidates, rows: Tensor) -> Candidates:
    return Candidates(*(field[rows] for field in records))


def _run(
    trials: Iterator[_Trial],
    releases: Mapping[str, Release],
    reference: PublicReference,
    clip_radius: float,
    combine: str,
    generator: torch.Generator,
) -> dict[str, SummaryAttack]:
    """Attack every release on every trial: same candidates and same noise draws for all releases."""
    outcome: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {score: [] for score in SCORES} for name in releases
    }
    for trial in trials:
        noise_seed = int(torch.randint(2**62, (), generator=generator))
        joined = Candidates(*(torch.cat(pair) for pair in zip(trial.members, trial.non_members, strict=True)))
        joined = joined._replace(latents=clip_latents(joined.latents, clip_radius))
        is_member = torch.arange(len(joined.labels)) < len(trial.members.labels)
        for name, release in releases.items():
            released = release(*trial.released, torch.Generator().manual_seed(noise_seed))
            scores = membership_scores(joined, ReleasedMeans(*released), reference, combine=combine)
            for score, values in scores.items():
                gap = float(values[is_member].mean() - values[~is_member].mean())
                outcome[name][score].append((auroc(values, is_member), gap))
    result = {}
    for name, by_score in outcome.items():
        columns = {score: torch.tensor(rows, dtype=torch.float64) for score, rows in by_score.items()}
        result[name] = SummaryAttack(
            auroc={score: rows[:, 0] for score, rows in columns.items()},
            score_gap={score: rows[:, 1] for score, rows in columns.items()},
        )
    return result


def _check_settings(releases: Mapping[str, Release], clip_radius: float, num_repetitions: int) -> None:
    if not releases:
        raise EvaluationError("releases must name at least one release, e.g. {'epsilon=4': release}.")
    if not 0 < clip_radius < float("inf"):
        raise EvaluationError(
            f"clip_radius must be a positive finite number, got {clip_radius}. Use that of the release."
        )
    if num_repetitions < 1:
        raise EvaluationError(
            f"num_repetitions must be at least 1, got {num_repetitions}. The usual value is 100."
        )


def released_summary_attack(
    *,
    latents: PointSet,
    labels: Tensor,
    clients: Tensor,
    reference: PublicReference,
    releases: Mapping[str, Release],
    clip_radius: float,
    generator: torch.Generator,
    num_repetitions: int = 100,
    combine: str = "sum",
) -> dict[str, SummaryAttack]:
    """Membership attack with a fair IN/OUT split, repeated; leakage of the release and of nothing else.

    In each repetition a random half of every (client, class) cell is released and the other half held back
    (`half_split`). All releases (privacy budgets) meet the same candidates and are given generators in the
    same state, so differences between them are paired; adding a release changes no other's numbers.

    Not covered: the encoder, which was trained on all records alike; adversaries who know the shard of a
    record or combine releases. Shards hold half as many records as in deployment, which favors the adversary.

    Args:
        latents, labels, clients: Records to draw from, not clipped.
        reference: From `public_reference`, of records not among `latents`.
        releases: Name -> callable (latents [n, d] float64, labels [n], clients [n], generator) ->
            `ReleasedMeans`. It is called with unclipped members in record order.
        clip_radius: C of the releases; candidates are clipped alike before scoring.
        generator: CPU generator of splits and noise.
        num_repetitions: Repetitions.
        combine: How the matched filter combines shards, "sum" or "max".

    Returns:
        For each release, AUROC and mean score gap per repetition and score (`summary_scores.SCORES`).

    Raises:
        EvaluationError: Bad inputs, or no cell with two records.
    """
    # fidelity: summary-attack-split
    # fidelity: summary-attack-score
    _check_settings(releases, clip_radius, num_repetitions)
    records = _check_records(latents, labels, clients, reference, "the attack's")
    cells = records.clients * len(reference.means) + records.labels
    if int(torch.bincount(cells).max()) < 2:
        raise EvaluationError("no client holds two records of one class: no IN/OUT split. Use more records.")

    def trials() -> Iterator[_Trial]:
        for _ in range(num_repetitions):
            inside, outside = half_split(cells, generator)
            members = _take(records, inside)
            yield _Trial(members, members, _take(records, outside))

    return _run(trials(), releases, reference, clip_radius, combine, generator)


def shifted_summary_attack(
    *,
    latents: PointSet,
    labels: Tensor,
    clients: Tensor,
    held_out_latents: PointSet,
    held_out_labels: Tensor,
    reference: PublicReference,
    releases: Mapping[str, Release],
    clip_radius: float,
    generator: torch.Generator,
    num_repetitions: int = 100,
    combine: str = "sum",
) -> dict[str, SummaryAttack]:
    """The same scores with all training records released and test records as non-members: **test shift, not
    leakage**.

    Per repetition and class, equally many members and held-out records are drawn (as many as the smaller side
    has); each held-out record is assigned the client of the member drawn with it. An AUROC above 0.5 here
    also arises when train and test latents merely differ; read it beside `released_summary_attack` only.

    Args and errors as there, with `held_out_*` the non-members.
    """
    _check_settings(releases, clip_radius, num_repetitions)
    records = _check_records(latents, labels, clients, reference, "the attack's")
    unassigned = torch.zeros_like(as_tensor(held_out_labels, "held-out labels"))
    held_out = _check_records(held_out_latents, held_out_labels, unassigned, reference, "held-out")

    def draw(pool: Candidates, c: int, size: int) -> Tensor:
        rows = (pool.labels == c).nonzero()[:, 0]
        return rows[torch.randperm(len(rows), generator=generator)[:size]]

    def trials() -> Iterator[_Trial]:
        for _ in range(num_repetitions):
            inside, outside = [], []
            for c in range(len(reference.means)):
                size = min(int((records.labels == c).sum()), int((held_out.labels == c).sum()))
                inside.append(draw(records, c, size))
                outside.append(draw(held_out, c, size))
            members, others = _take(records, torch.cat(inside)), _take(held_out, torch.cat(outside))
            yield _Trial(records, members, others._replace(clients=members.clients))

    return _run(trials(), releases, reference, clip_radius, combine, generator)
