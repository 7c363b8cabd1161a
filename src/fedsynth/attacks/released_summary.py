"""Membership inference against the released shard means: can one tell who was in the averages?

Every adversary sees exactly what the server sees (`ReleasedMeans`), knows the clipping rule, and decides for
candidate records of known client and class. They differ in what else they know:

| score | also knows |
|---|---|
| `matched_filter`, `nearest_prototype`, `likelihood_ratio` | public class moments (validation latents) |
| `population_likelihood_ratio` | exact moments of that client and class |
| `known_shard_likelihood_ratio` | and the shard the candidate would be in |
| `published_likelihood_ratio` | and uses published variances |
| `variance_likelihood_ratio` | the same, from published variances alone |
| `second_moment_filter` | exact moments, from published second moments alone |
| `informed` | all other records, and who replaces the candidate: the adversary of the DP definition |

Two experiments:

- `released_summary_attack` draws members and non-members at random from the same records, so the two groups
  differ in membership alone and any AUROC above 0.5 is leakage;
- `shifted_summary_attack` compares all training records with held-out test records. There the groups also
  differ in distribution and in encoder overfitting, so its AUROC is **not** leakage of the release; it is
  kept because published audits are often of this form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedsynth.attacks.moment_scores import second_moment_filter, variance_likelihood_ratio
from fedsynth.attacks.population_scores import Cell, informed_scores, population_of, population_scores
from fedsynth.attacks.repetitions import SummaryAttack, auroc_rows
from fedsynth.attacks.summary_scores import (
    Candidates,
    PublicReference,
    ReleasedMeans,
    check_attack_settings,
    clip_latents,
    membership_scores,
)
from fedsynth.evaluation.checks import EvaluationError, PointSet, as_tensor, check_points

#: (latents, labels, clients, generator) -> released shard means; clips, shards and adds noise itself.
Release = Callable[[Tensor, Tensor, Tensor, torch.Generator], ReleasedMeans]


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
    """One repetition: what is released, and who is in question. Row i of `non_members` would replace that of
    `members`, which is row `slots[i]` of `released`."""

    released: Candidates
    members: Candidates
    non_members: Candidates
    slots: Int[Tensor, " pair"]


class _Knowledge(NamedTuple):
    """What adversaries know besides the release."""

    reference: PublicReference
    population: tuple[Cell, ...]
    clip_radius: float
    combine: str


def _knowledge(
    records: Candidates, reference: PublicReference, clip_radius: float, combine: str, *, is_exhaustive: bool
) -> _Knowledge:
    clipped = records._replace(latents=clip_latents(records.latents, clip_radius))
    population = population_of(clipped, is_exhaustive=is_exhaustive)
    return _Knowledge(reference, population, clip_radius, combine)


def _take(records: Candidates, rows: Tensor) -> Candidates:
    return Candidates(*(field[rows] for field in records))


def _scores(
    trial: _Trial, released: ReleasedMeans, knowledge: _Knowledge
) -> dict[str, Float[Tensor, " candidate"]]:
    """Every score this release allows, of members and then of non-members."""
    joined = Candidates(*(torch.cat(pair) for pair in zip(trial.members, trial.non_members, strict=True)))
    joined = joined._replace(latents=clip_latents(joined.latents, knowledge.clip_radius))
    rule = released.shard_of_record
    own = None if rule is None else rule[trial.slots].repeat(2)
    population = knowledge.population
    scores = membership_scores(joined, released, knowledge.reference, combine=knowledge.combine)
    scores |= population_scores(joined, own, released, population)
    if released.variances is not None:
        scores["variance_likelihood_ratio"] = variance_likelihood_ratio(joined, own, released, population)
    best = scores.get("known_shard_likelihood_ratio", scores["population_likelihood_ratio"])
    # Mean and variance of a Gaussian sample are independent, so their log ratios add up.
    scores["published_likelihood_ratio"] = best + scores.get("variance_likelihood_ratio", 0.0)
    if released.second_moments is not None:
        scores["second_moment_filter"] = second_moment_filter(joined, released.second_moments, population)
    if rule is not None and own is not None:
        exact = _exact_means(clip_latents(trial.released.latents, knowledge.clip_radius), rule, released)
        members, others = joined.latents.chunk(2)
        scores["informed"] = informed_scores(members, others, own[: len(members)], exact, released)
    return scores


def _exact_means(clipped: Tensor, shard_of_record: Tensor, released: ReleasedMeans) -> Tensor:
    """The shard means before noise, which the informed adversary can work out but for one record."""
    sums = torch.zeros_like(released.means, dtype=torch.float64).index_add(0, shard_of_record, clipped)
    return sums / released.counts.clamp(min=1).unsqueeze(1)


def _run(
    trials: Iterator[_Trial],
    releases: Mapping[str, Release],
    knowledge: _Knowledge,
    generator: torch.Generator,
) -> dict[str, SummaryAttack]:
    """Attack every release on every trial: same candidates and same noise draws for all releases."""
    aurocs: dict[str, dict[str, list[float]]] = {name: {} for name in releases}
    gaps: dict[str, dict[str, list[float]]] = {name: {} for name in releases}

    def attack(trial: _Trial, release: Release, noise_seed: int) -> tuple[list[str], Tensor, Tensor]:
        published = release(*trial.released, torch.Generator().manual_seed(noise_seed))
        scores = _scores(trial, ReleasedMeans(*published), knowledge)
        is_member = torch.arange(2 * len(trial.slots)) < len(trial.slots)
        table = torch.stack(list(scores.values()))
        gap = table[:, is_member].mean(dim=1) - table[:, ~is_member].mean(dim=1)
        return list(scores), auroc_rows(table, is_member), gap

    # Releases of one trial side by side: each has its own generator, and tensor operations leave Python free.
    with ThreadPoolExecutor(len(releases)) as pool:
        for trial in trials:
            noise_seed = int(torch.randint(2**62, (), generator=generator))
            found = pool.map(attack, repeat(trial), releases.values(), repeat(noise_seed))
            for name, (scores, auroc, gap) in zip(releases, found, strict=True):
                for score, value, difference in zip(scores, auroc.tolist(), gap.tolist(), strict=True):
                    aurocs[name].setdefault(score, []).append(value)
                    gaps[name].setdefault(score, []).append(difference)
    return {name: SummaryAttack(_columns(aurocs[name]), _columns(gaps[name])) for name in releases}


def _columns(rows: Mapping[str, list[float]]) -> dict[str, Tensor]:
    return {score: torch.tensor(values, dtype=torch.float64) for score, values in rows.items()}


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

    Member i of a cell and non-member i of that cell form a pair: the non-member is who would take the member's
    place (replace-one adjacency), in the same shard. Exchanging IN and OUT changes nothing else.

    Not covered: the encoder, which was trained on all records alike; adversaries who combine releases. Shards
    hold half as many records as in deployment, which favors the adversary.

    Args:
        latents, labels, clients: Records to draw from, not clipped.
        reference: From `public_reference`, of records not among `latents`.
        releases: Name -> callable (latents [n, d] float64, labels [n], clients [n], generator) ->
            `ReleasedMeans`. It is called with unclipped members in record order, releases of one repetition in
            threads side by side. Its optional fields decide which attacks are possible.
        clip_radius: C of the releases; candidates are clipped alike before scoring.
        generator: CPU generator of splits and noise.
        num_repetitions: Repetitions.
        combine: How the matched filter combines shards, "sum" or "max".

    Returns:
        For each release, AUROC and mean score gap per repetition and score (table above).

    Raises:
        EvaluationError: Bad inputs, or no cell with two records.
    """
    # fidelity: summary-attack-split
    # fidelity: summary-attack-score
    check_attack_settings(releases, clip_radius, num_repetitions, generator, reference)
    records = _check_records(latents, labels, clients, reference, "the attack's")
    cells = records.clients * len(reference.means) + records.labels
    if int(torch.bincount(cells).max()) < 2:
        raise EvaluationError("no client holds two records of one class: no IN/OUT split. Use more records.")

    def trials() -> Iterator[_Trial]:
        for _ in range(num_repetitions):
            inside, outside = half_split(cells, generator)
            # Both are in record order and have equally many of every cell: the i-th of a cell belong together.
            partner = torch.empty_like(outside)
            partner[cells[inside].argsort(stable=True)] = outside[cells[outside].argsort(stable=True)]
            members = _take(records, inside)
            yield _Trial(members, members, _take(records, partner), torch.arange(len(inside)))

    knowledge = _knowledge(records, reference, clip_radius, combine, is_exhaustive=True)
    return _run(trials(), releases, knowledge, generator)


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
    check_attack_settings(releases, clip_radius, num_repetitions, generator, reference)
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
            slots = torch.cat(inside)
            members, others = _take(records, slots), _take(held_out, torch.cat(outside))
            yield _Trial(records, members, others._replace(clients=members.clients), slots)

    # Held-out records are not from the finite population that is released: the adversary takes a distribution.
    knowledge = _knowledge(records, reference, clip_radius, combine, is_exhaustive=False)
    return _run(trials(), releases, knowledge, generator)
