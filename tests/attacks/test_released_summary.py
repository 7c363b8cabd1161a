"""The membership attack on released means: null, theory, the 1/σ law, pairing, and what test shift does."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
import torch

from fedsynth.attacks import (
    ReleasedMeans,
    SummaryAttack,
    paired_change,
    public_reference,
    released_summary,
    released_summary_attack,
    shifted_summary_attack,
)
from fedsynth.attacks.released_summary import half_split
from fedsynth.attacks.summary_scores import clip_latents
from fedsynth.evaluation import EvaluationError

DIM, CLASSES, CLIENTS = 16, 2, 3
RADIUS = 1e3  # nothing is clipped unless a test says so


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _records(n: int, seed: int, shift: float = 0.0) -> dict[str, torch.Tensor]:
    generator = _generator(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    latents = torch.randn(n, DIM, generator=generator, dtype=torch.float64) + labels[:, None] + shift
    clients = torch.randint(CLIENTS, (n,), generator=generator)
    return {"latents": latents, "labels": labels, "clients": clients}


def _reference(seed: int = 99):
    records = _records(4000, seed)
    return public_reference(records["latents"], records["labels"], num_classes=CLASSES)


def _shard_means(noise: float, num_shards: int = 1, radius: float = RADIUS, *, publishes_rule: bool = False):
    """A release: clipped means of fixed shards, noise of standard deviation noise / count."""

    def release(latents, labels, clients, generator) -> ReleasedMeans:
        cell = clients * CLASSES + labels
        rank = torch.zeros_like(cell)
        for c in cell.unique():
            rows = (cell == c).nonzero()[:, 0]
            rank[rows] = torch.arange(len(rows)) % num_shards
        shard, total = cell * num_shards + rank, CLIENTS * CLASSES * num_shards
        counts = torch.bincount(shard, minlength=total)
        empty = torch.zeros(total, latents.shape[1], dtype=torch.float64)
        sums = empty.index_add(0, shard, clip_latents(latents, radius))
        std = noise / counts.clamp(min=1).double()
        drawn = torch.randn(sums.shape, generator=generator, dtype=torch.float64)
        means = sums / counts.clamp(min=1)[:, None] + drawn * std[:, None]
        index = torch.arange(total) // num_shards
        rule = shard if publishes_rule else None
        return ReleasedMeans(means, std, counts, index % CLASSES, index // CLASSES, rule)

    return release


def _attack(records, releases, **options) -> dict[str, SummaryAttack]:
    options = {"reference": _reference(), "clip_radius": RADIUS, "num_repetitions": 20} | options
    options = {"generator": _generator(5)} | options
    return released_summary_attack(**records, releases=releases, **options)


def test_half_split_takes_equal_random_halves_of_every_cell():
    cells = torch.tensor([0] * 10 + [1] * 7 + [3] * 1 + [4] * 2)
    members, others = half_split(cells, _generator(0))
    assert not set(members.tolist()) & set(others.tolist())
    for c, expected in ((0, 5), (1, 3), (3, 0), (4, 1)):
        assert int((cells[members] == c).sum()) == int((cells[others] == c).sum()) == expected
    assert torch.equal(members, members.sort().values)
    again, _ = half_split(cells, _generator(1))
    assert not torch.equal(members, again)


def test_each_record_is_member_in_half_of_the_splits():
    cells, generator = torch.arange(6) // 3 * 0, _generator(2)
    times = torch.zeros(6)
    for _ in range(2000):
        times[half_split(cells, generator)[0]] += 1
    # Binomial(2000, 1/2) has standard deviation 22.4.
    assert bool(((times - 1000).abs() < 4 * 22.4).all())


def test_a_release_independent_of_the_members_is_not_attacked():
    def blind(latents, labels, clients, generator) -> ReleasedMeans:
        released = _shard_means(0.0)(latents, labels, clients, generator)
        drawn = torch.randn(released.means.shape, generator=generator, dtype=torch.float64)
        return released._replace(means=drawn)

    outcome = _attack(_records(600, 0), {"blind": blind}, num_repetitions=60)["blind"]
    for name, values in outcome.auroc.items():
        # Four standard errors of the mean over repetitions.
        assert abs(float(values.mean()) - 0.5) < 4 * float(values.std()) / 60**0.5 < 0.03, name


@pytest.mark.parametrize("score", ["matched_filter", "likelihood_ratio"])
def test_auroc_without_noise_is_that_of_the_gaussian_theory(score):
    # <h - m, mean - m> has d' = sqrt(d / n) for n records in a shard: here 1200 / 2 / 6 = 100 on average.
    outcome = _attack(_records(1200, 1), {"plain": _shard_means(0.0)}, num_repetitions=40)["plain"]
    expected = NormalDist().cdf(math.sqrt(DIM / 100) / math.sqrt(2))
    assert outcome.auroc_spread(score).mean == pytest.approx(expected, abs=0.02)


def test_score_gap_is_affine_in_inverse_noise():
    # score = signal / σ + noise term; common noise draws make the relation exact across releases.
    sigmas = (2.0, 5.0, 20.0)
    outcome = _attack(_records(400, 2), {str(s): _shard_means(s) for s in sigmas}, num_repetitions=5)
    gap = [outcome[str(s)].score_gap["matched_filter"] for s in sigmas]
    slope = (gap[0] - gap[1]) / (1 / sigmas[0] - 1 / sigmas[1])
    predicted = gap[0] + slope * (1 / sigmas[2] - 1 / sigmas[0])
    assert torch.allclose(predicted, gap[2], rtol=1e-9, atol=1e-9)
    assert bool((slope > 0).all())


def test_more_noise_leaks_less():
    releases = {str(s): _shard_means(s) for s in (0.0, 10.0, 1000.0)}
    outcome = _attack(_records(600, 3), releases, num_repetitions=30)
    for score in ("matched_filter", "likelihood_ratio"):
        means = [outcome[str(s)].auroc_spread(score).mean for s in (0.0, 10.0, 1000.0)]
        assert means[0] > means[1] > means[2] - 0.01, score
        assert abs(means[2] - 0.5) < 0.02


def test_likelihood_ratio_is_the_strongest_attack_on_plain_shards():
    outcome = _attack(_records(800, 4), {"plain": _shard_means(0.0, num_shards=4)})["plain"]
    means = {name: float(values.mean()) for name, values in outcome.auroc.items()}
    assert means["likelihood_ratio"] > max(means["matched_filter"], means["nearest_prototype"])


def test_adding_a_release_changes_no_other():
    records = _records(200, 5)
    alone = _attack(records, {"a": _shard_means(3.0)}, num_repetitions=4)["a"]
    together = _attack(records, {"b": _shard_means(1.0), "a": _shard_means(3.0)}, num_repetitions=4)["a"]
    assert all(torch.equal(alone.auroc[name], together.auroc[name]) for name in alone.auroc)


def test_equal_releases_are_paired_exactly():
    outcome = _attack(_records(200, 6), {"a": _shard_means(3.0), "b": _shard_means(3.0)}, num_repetitions=4)
    change = paired_change(outcome["a"], outcome["b"])
    assert (change.change.mean, change.num_reduced, change.num_repetitions) == (0.0, 0, 4)


@pytest.fixture
def scored(monkeypatch) -> list:
    """The candidates that are scored, in order."""
    calls, original = [], released_summary.membership_scores

    def spy(candidates, *args, **kwargs):
        calls.append(candidates)
        return original(candidates, *args, **kwargs)

    monkeypatch.setattr(released_summary, "membership_scores", spy)
    return calls


def test_members_only_are_released_and_candidates_are_clipped(scored):
    records, seen = _records(100, 7), []

    def spy(latents, labels, clients, generator) -> ReleasedMeans:
        seen.append(latents)
        return _shard_means(0.0, radius=2.0)(latents, labels, clients, generator)

    _attack(records, {"spy": spy}, clip_radius=2.0, num_repetitions=1)
    cells = records["clients"] * CLASSES + records["labels"]
    assert len(seen[0]) == int((torch.bincount(cells) // 2).sum())
    assert float(seen[0].norm(dim=1).max()) > 2.0
    assert torch.allclose(scored[0].latents[: len(seen[0])], clip_latents(seen[0], 2.0))
    assert float(scored[0].latents.norm(dim=1).max()) < 2.0 + 1e-9


def test_shifted_variant_mistakes_test_shift_for_membership_and_the_fair_one_does_not():
    # Large shards: the release says nothing about single records, but test latents are moved away.
    records, held_out = _records(3000, 8), _records(500, 9, shift=-0.5)
    options = {"reference": _reference(), "clip_radius": RADIUS, "num_repetitions": 5}
    releases = {"noisy": _shard_means(200.0)}
    shifted = shifted_summary_attack(
        **records,
        held_out_latents=held_out["latents"],
        held_out_labels=held_out["labels"],
        releases=releases,
        generator=_generator(5),
        **options,
    )["noisy"]
    fair = _attack(records, releases, num_repetitions=5)["noisy"]
    assert shifted.auroc_spread("nearest_prototype").mean > 0.6
    assert abs(fair.auroc_spread("nearest_prototype").mean - 0.5) < 0.03


@pytest.mark.parametrize(("num_train", "num_held_out"), [(300, 80), (80, 300)])
def test_shifted_variant_draws_equal_numbers_of_each_class(scored, num_train, num_held_out):
    records, held_out = _records(num_train, 10), _records(num_held_out, 11)
    shifted_summary_attack(
        **records,
        held_out_latents=held_out["latents"],
        held_out_labels=held_out["labels"],
        reference=_reference(),
        releases={"a": _shard_means(0.0)},
        clip_radius=RADIUS,
        generator=_generator(0),
        num_repetitions=1,
    )
    half = len(scored[0].labels) // 2
    assert half == 80
    assert torch.equal(scored[0].labels[:half], scored[0].labels[half:])
    assert torch.equal(scored[0].clients[:half], scored[0].clients[half:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"releases": {}}, "at least one release"),
        ({"clip_radius": 0.0}, "clip_radius"),
        ({"clip_radius": math.nan}, "clip_radius"),
        ({"num_repetitions": 0}, "num_repetitions"),
        ({"num_repetitions": 1.5}, "num_repetitions"),
        ({"clip_radius": "2"}, "clip_radius"),
        ({"combine": "mean"}, "combine"),
        ({"generator": None}, "generator must be a torch.Generator, got NoneType"),
        ({"generator": 3}, "generator must be"),
        ({"reference": None}, "public_reference"),
        ({"releases": None}, "releases must name"),
        ({"releases": {"a": 3}}, "releases must name"),
        ({"labels": torch.zeros(20)}, "labels must hold one integer"),
        ({"labels": torch.full((20,), 2)}, "public reference"),
        ({"clients": torch.arange(20)}, "no IN/OUT split"),
        ({"clients": torch.zeros(19, dtype=torch.int64)}, "clients must hold one integer"),
        ({"latents": torch.zeros(20, 3)}, "public reference"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = _records(20, 12) | {"releases": {"a": _shard_means(0.0)}} | changes
    records = {name: arguments.pop(name) for name in ("latents", "labels", "clients")}
    with pytest.raises(EvaluationError, match=message):
        _attack(records, arguments.pop("releases"), **arguments)


def test_held_out_records_of_another_encoder_are_refused():
    with pytest.raises(EvaluationError, match="held-out records have class"):
        shifted_summary_attack(
            **_records(20, 13),
            held_out_latents=torch.zeros(5, DIM + 1),
            held_out_labels=torch.zeros(5, dtype=torch.int64),
            reference=_reference(),
            releases={"a": _shard_means(0.0)},
            clip_radius=RADIUS,
            generator=_generator(0),
        )


def test_a_non_member_would_take_the_place_of_the_member_it_is_paired_with(scored):
    records, released = _records(101, 14), []

    def spy(latents, labels, clients, generator) -> ReleasedMeans:
        released.append((latents, labels, clients))
        return _shard_means(0.0)(latents, labels, clients, generator)

    _attack(records, {"spy": spy}, num_repetitions=1)
    labels, clients = scored[0].labels.chunk(2), scored[0].clients.chunk(2)
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(clients[0], clients[1])
    assert torch.equal(labels[0], released[0][1])  # pair i stands at row i of the release


def test_every_further_piece_of_knowledge_makes_the_attack_stronger():
    # Nearly collapsed latents: one wide direction hides the others from all but a whitened attack.
    records = _records(800, 15)
    records["latents"] = records["latents"] * torch.tensor([10.0] + [0.1] * (DIM - 1), dtype=torch.float64)
    reference = public_reference(records["latents"] + 0.3, records["labels"], num_classes=CLASSES)
    release = _shard_means(0.0, num_shards=4, publishes_rule=True)
    outcome = _attack(records, {"plain": release}, reference=reference, num_repetitions=10)["plain"]
    ladder = ("matched_filter", "population_likelihood_ratio", "known_shard_likelihood_ratio", "informed")
    means = [outcome.auroc_spread(score).mean for score in ladder]
    assert all(later > earlier + 0.03 for earlier, later in itertools.pairwise(means)), means
    assert means[-1] == 1.0


def test_the_informed_adversary_stays_below_the_bound_of_the_mechanism():
    radius, noise = 1.0, 2.0  # Δ = 2C/n, σ = noise/n
    release = _shard_means(noise, num_shards=2, radius=radius, publishes_rule=True)
    outcome = _attack(_records(600, 16), {"a": release}, clip_radius=radius, num_repetitions=20)["a"]
    bound = NormalDist().cdf(2 * radius / noise / math.sqrt(2))
    found = outcome.auroc_spread("informed")
    assert outcome.auroc_spread("known_shard_likelihood_ratio").mean < found.mean < bound
    assert found.mean > 0.6


def test_secret_shards_leave_only_the_attacks_that_need_no_shard():
    outcome = _attack(_records(200, 17), {"secret": _shard_means(1.0, num_shards=2)}, num_repetitions=2)
    scores = outcome["secret"].auroc
    assert "informed" not in scores
    assert "known_shard_likelihood_ratio" not in scores
    assert torch.equal(scores["published_likelihood_ratio"], scores["population_likelihood_ratio"])


def test_more_repetitions_keep_the_first_ones():
    records = _records(200, 18)
    few = _attack(records, {"a": _shard_means(1.0)}, num_repetitions=3)["a"].auroc["matched_filter"]
    more = _attack(records, {"a": _shard_means(1.0)}, num_repetitions=6)["a"].auroc["matched_filter"]
    assert torch.equal(few, more[:3])
