"""Noise on class prototypes of every round: price against dp-accounting, sensitivity, what is refused, the ledger."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsynth.errors import BudgetError, PrivacyError
from fedsynth.privacy import (
    CLIENT_WEIGHTS,
    Adjacency,
    LedgerEntry,
    PrivacyParameterError,
    PrototypeMechanism,
    composed_epsilon,
    gaussian_mu,
    noise_root,
)
from fedsynth.prototypes.class_prototypes import ClassPrototypes, PrototypeSums
from fedsynth.records import InvalidTensorError
from fedsynth.seeding import generator

DELTA = 1e-5


def mechanism(**changes: Any) -> PrototypeMechanism:
    given: dict[str, Any] = {
        "epsilon": 4.0, "delta": DELTA, "clip_radius": 2.0, "num_rounds": 30, "num_modalities": 3,
    }  # fmt: skip
    return PrototypeMechanism(**(given | changes))


def prototypes(counts: list[int], dim: int = 8, **scale: float) -> ClassPrototypes:
    """Means of norm at most 1 (times ``scale`` by modality)."""
    count = torch.tensor(counts)
    stream = torch.Generator().manual_seed(0)
    mean = {}
    for name in ("audio", "text", "fused"):
        rows = torch.nn.functional.normalize(torch.randn(len(counts), dim, generator=stream), dim=1)
        mean[name] = scale.get(name, 1.0) * rows * (count > 0).unsqueeze(1)
    return ClassPrototypes(mean=mean, count=dict.fromkeys(mean, count))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("covers", ["means", "training"])
@pytest.mark.parametrize(("epsilon", "rounds"), [(0.5, 30), (4.0, 30), (8.0, 100)])
def test_dp_accounting_finds_the_stated_epsilon_and_never_more(
    epsilon: float, rounds: int, covers: str
) -> None:
    made = mechanism(epsilon=epsilon, num_rounds=rounds, covers=covers)
    ratio = made.noise_std(17) / made.sensitivity(17)
    messages = rounds * 3 * (2 if covers == "training" else 1)
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(ratio), messages)
    # Normalized by its sensitivity, replacing a record is what adding one is to this accountant.
    spent = PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(DELTA)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon * 1.01  # it rounds up to a grid, message by message
    exact = composed_epsilon([1 / ratio] * messages, DELTA)
    assert epsilon * (1 - 1e-9) <= exact <= epsilon * (1 + 1e-9)


@given(
    st.floats(1e-3, 20),
    st.integers(1, 500),
    st.integers(1, 200),
    st.integers(1, 4),
    st.floats(0.01, 100),
)
def test_the_noise_has_its_closed_form(
    epsilon: float, count: int, rounds: int, modalities: int, radius: float
) -> None:
    made = mechanism(epsilon=epsilon, clip_radius=radius, num_rounds=rounds, num_modalities=modalities)
    wanted = 2 * radius / count * math.sqrt(rounds * modalities) / gaussian_mu(epsilon, DELTA)
    assert wanted <= made.noise_std(count) <= wanted * (1 + count * 2.0**-23)  # float32 means are paid for


@settings(max_examples=50)
@given(st.integers(1, 12), st.integers(0, 2**31), st.floats(0.1, 10))
def test_no_exchange_of_a_record_moves_a_mean_by_more_than_the_sensitivity(
    count: int, seed: int, radius: float
) -> None:
    made = mechanism(clip_radius=radius)
    source = torch.Generator().manual_seed(seed)
    records = 3 * radius * torch.randn(count, 5, generator=source)
    other = records.clone()
    other[0] = -10 * records[0]  # the antipode, clipped to the sphere
    label = torch.zeros(count, dtype=torch.int64)
    means = []
    for rows in (records, other):
        sums = PrototypeSums(num_classes=1)
        sums.add({"fused": made.clip(rows)}, label)
        means.append(sums.prototypes().mean["fused"].double())
    assert float((means[0] - means[1]).norm()) <= made.sensitivity(count)


def test_a_record_moves_the_mean_through_its_encoder_by_the_whole_diameter() -> None:
    """Why ``means`` is no guarantee for training: one record of eleven turns all embeddings around."""

    def mean_after_training(records: torch.Tensor) -> torch.Tensor:
        direction = records.mean().sign()  # an encoder fitted to the records
        return (direction * torch.ones(len(records), 1)).mean()

    even = torch.tensor([1.0, -1.0] * 5)
    first = mean_after_training(torch.cat([even, torch.tensor([0.5])]))
    second = mean_after_training(torch.cat([even, torch.tensor([-0.5])]))
    moved = float((first - second).abs())
    assert moved == 2.0
    given_encoder, whole = mechanism(clip_radius=1.0), mechanism(clip_radius=1.0, covers="training")
    assert given_encoder.sensitivity(11) < moved <= whole.sensitivity(11)


def test_exchanging_a_person_costs_as_many_records_and_at_most_all() -> None:
    one, person = mechanism(), mechanism(records_per_person=6)
    assert person.noise_std(60) == pytest.approx(6 * one.noise_std(60), rel=1e-4)
    assert person.sensitivity(3) == pytest.approx(2 * 2.0, rel=1e-6)  # the diameter, not 6 · 2C / 3


def test_released_noise_has_the_calibrated_variance_in_every_class_and_modality() -> None:
    made, exact = mechanism(), prototypes([10, 40], dim=20_000)
    sent = made.release(exact, stream())
    for name, mean in sent.mean.items():
        for row, count in enumerate((10, 40)):
            noise = (mean[row] - exact.mean[name][row]).double() / made.noise_std(count)
            low, high = stats.chi2.interval(1 - 1e-6, df=noise.numel())
            assert low < float(noise.square().sum()) < high


def test_noise_of_modalities_classes_clients_and_rounds_differs() -> None:
    exact = prototypes([10, 10], dim=50)
    noises = []
    for client, round_ in ((0, 0), (0, 1), (1, 0)):
        sent = mechanism().release(exact, generator(5, "prototypes", client, round_), round=round_)
        noises += [row for name in sent.mean for row in sent.mean[name] - exact.mean[name]]
    correlation = torch.corrcoef(torch.stack(noises)) - torch.eye(len(noises))
    assert float(correlation.abs().max()) < 0.75  # 50 coordinates: five standard deviations


def test_small_classes_are_dropped_by_count_alone() -> None:
    for epsilon in (4.0, math.inf):
        sent = mechanism(epsilon=epsilon, min_class_records=5).release(prototypes([4, 5]), stream())
        for name in sent.mean:
            assert sent.count[name].tolist() == [0, 5]
            assert not sent.mean[name][0].any()
            assert sent.known(name).tolist() == [False, True]


def test_without_a_budget_the_means_pass_unchanged_and_only_clipped() -> None:
    exact = prototypes([10, 20])
    sent = mechanism(epsilon=math.inf).release(exact, stream())
    assert all(torch.equal(sent.mean[name], exact.mean[name]) for name in exact.mean)
    assert list(sent.mean) == list(exact.mean)
    assert mechanism(epsilon=math.inf).noise_std(1) == 0.0
    clipped = mechanism(epsilon=math.inf).clip(torch.tensor([[30.0, 40.0], [0.3, 0.4]]))
    assert clipped.dtype == torch.float64
    torch.testing.assert_close(clipped.norm(dim=1).tolist(), [2.0, 0.5])


def test_the_order_of_modalities_does_not_change_the_noise() -> None:
    exact = prototypes([10, 20])
    turned = ClassPrototypes(
        mean=dict(reversed(exact.mean.items())), count=dict(reversed(exact.count.items()))
    )
    first, second = (mechanism().release(given, stream(3)) for given in (exact, turned))
    assert all(torch.equal(first.mean[name], second.mean[name]) for name in exact.mean)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 1e6])
def test_extreme_budgets_give_finite_noise_that_keeps_the_price(epsilon: float) -> None:
    made = mechanism(epsilon=epsilon, num_rounds=10**9)
    std = made.noise_std(1)
    assert 0 < std < math.inf
    mu = math.sqrt(made.num_messages) * made.sensitivity(1) / std
    assert composed_epsilon([mu], DELTA) <= epsilon * (1 + 1e-9)


def test_a_single_record_is_drowned() -> None:
    made = mechanism(epsilon=1.0, clip_radius=1.0, min_class_records=1)
    assert made.noise_std(1) > 60  # in every coordinate, against a norm of 1 at most


def test_the_ledger_states_price_and_gaps() -> None:
    made = mechanism()
    entry = made.ledger_entry("fedmpa", [40, 10, 3, 0], (CLIENT_WEIGHTS,))
    assert (entry.epsilon, entry.delta, entry.adjacency) == (4.0, DELTA, Adjacency.REPLACE_ONE)
    assert entry.num_releases == 2 * 30 * 3  # two classes have five records or more
    assert entry.noise_std_range == (made.noise_std(40), made.noise_std(10))
    assert entry.sensitivity_range == (made.sensitivity(40), made.sensitivity(10))
    assert composed_epsilon([part.mu for part in entry.parts], DELTA) == pytest.approx(4.0)
    gaps = " ".join(entry.not_covered)
    assert all(word in gaps for word in ("weights", "encoders", "several records"))
    assert LedgerEntry.from_record(entry.to_record()) == entry


def test_the_ledger_of_whole_training_lists_no_encoder_and_refuses_weights() -> None:
    made = mechanism(covers="training")
    assert not any("encoders behind" in gap for gap in made.ledger_entry("fedproto", [10], ()).not_covered)
    with pytest.raises(PrivacyError, match="covers=training cannot hold"):
        made.ledger_entry("fedmpa", [10], (CLIENT_WEIGHTS,))


def test_without_noise_the_ledger_claims_nothing() -> None:
    entry = mechanism(epsilon=math.inf).ledger_entry("fedmpa", [10], (CLIENT_WEIGHTS,))
    assert not entry.is_private
    assert entry.adjacency is None
    assert CLIENT_WEIGHTS in entry.not_covered
    assert any("without noise" in name for name in entry.not_covered)


def test_means_of_unclipped_embeddings_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"'text' has norm 2\.1, above clip_radius=2"):
        mechanism().release(prototypes([10, 10], text=2.1), stream())
    mechanism().release(prototypes([10, 10], text=2.0), stream())


def test_means_that_are_not_finite_are_refused() -> None:
    @torch.no_grad()
    def broken() -> ClassPrototypes:
        made = prototypes([10, 10])
        made.mean["text"][0, 0] = math.nan  # after the record's own checks
        return made

    with pytest.raises(InvalidTensorError, match="NaN"):
        mechanism().release(broken(), stream())


def test_what_was_not_paid_for_is_refused() -> None:
    exact = prototypes([10, 10, 10])
    with pytest.raises(BudgetError, match="3 modalities"):
        mechanism(num_modalities=2).release(exact, stream())
    with pytest.raises(BudgetError, match="round 30"):
        mechanism().release(exact, stream(), round=30)
    with pytest.raises(BudgetError, match="3 classes"):
        mechanism(covers="training").release(exact, stream())
    with pytest.raises(PrivacyParameterError, match=r"leaves no prototype to send: the largest .* has 4"):
        mechanism().ledger_entry("fedmpa", [4, 2], ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", math.nan), ("epsilon", 1e7), ("delta", 0.0), ("delta", 1.0),
        ("clip_radius", 0.0), ("clip_radius", math.inf), ("clip_radius", 1e9), ("num_rounds", 0), ("num_rounds", 2.5),
        ("num_rounds", 10**400), ("num_modalities", 0), ("min_class_records", 0), ("records_per_person", 0),
        ("covers", "everything"),
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(PrivacyParameterError, match=f"{name} must be"):
        mechanism(**{name: value})


@pytest.mark.parametrize("count", [0, -1, 2.0])
def test_a_class_without_records_has_no_noise_level(count: Any) -> None:
    with pytest.raises(PrivacyParameterError, match="count must be an integer"):
        mechanism().noise_std(count)


def test_noise_beyond_float32_is_refused() -> None:
    with pytest.raises(PrivacyParameterError, match="which float32 does not hold"):
        mechanism(delta=1e-300, epsilon=1e-300, clip_radius=1e6, num_rounds=10**15).noise_std(1)


def test_roots_of_noise_differ_by_seed_and_key_and_are_secret_if_asked() -> None:
    roots = {noise_root(seed, key, secure_noise=False) for seed in (1, 2) for key in ("a", "b")}
    assert len(roots) == 4
    assert noise_root(1, "a", secure_noise=False) in roots
    assert len({noise_root(1, "a", secure_noise=True) for _ in range(4)} | roots) == 8


def test_a_mechanism_is_made_without_torch() -> None:
    code = (
        "import sys; from fedsynth.privacy import PrototypeMechanism as P; "
        "P(epsilon=4.0, delta=1e-5, clip_radius=1.0, num_rounds=30, num_modalities=3).noise_std(5); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
