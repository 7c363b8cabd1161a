from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moment_cases import SHARES, budget, options, planted, released, streams
from torch import Tensor

from fedsynth.errors import ArtifactError, PrivacyError
from fedsynth.privacy import (
    Adjacency,
    Composition,
    PrivacyParameterError,
    composed_epsilon,
    counted_sum_sensitivity,
    second_moment_sensitivity,
)
from fedsynth.privacy.budget import GaussianBudget, Noisy
from fedsynth.prototypes import (
    MomentFrame,
    MomentRelease,
    moment_budget,
    moments_ledger_entry,
    release_cell_moments,
    release_moments,
)
from fedsynth.records import InvalidTensorError


def frame() -> MomentFrame:
    return MomentFrame(
        basis=torch.eye(3, 2, dtype=torch.float64),
        labels=torch.tensor([0, 0, 1]),
        bounds=torch.tensor([[-2.0, 0.0], [0.0, 2.0], [-2.0, 2.0]], dtype=torch.float64),
        origin=torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64),
        scale=torch.tensor([[1.0, 0.5], [1.0, 0.5], [2.0, 0.5]], dtype=torch.float64),
        clip_radius=3.0,
        coordinate_radius=1.5,
    )


def messages(latents: torch.Tensor, labels: torch.Tensor, clients: torch.Tensor) -> list[torch.Tensor]:
    """The exact last two messages in a given frame: [client, (κ count, sum)] and [client, Σ u uᵀ]."""
    here = frame()
    cells = here.cells(latents, labels)
    counts, sums, second = release_cell_moments(
        here.coordinates(latents, cells), cells, clients, here, budget()
    )
    counted = torch.cat([counts.values.unsqueeze(-1) * here.coordinate_radius, sums.values], dim=-1)
    return [counted, second.values]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 10))
def test_no_replacement_of_any_class_moves_a_message_by_more_than_its_sensitivity(
    seed: int, size: float
) -> None:
    source = torch.Generator().manual_seed(seed)
    latents = size * torch.randn(9, 3, generator=source, dtype=torch.float64)
    labels, clients = torch.randint(2, (9,), generator=source), torch.randint(3, (9,), generator=source)
    before = messages(latents, labels, clients)
    bounds = (counted_sum_sensitivity(1.5), second_moment_sensitivity(1.5))
    for _ in range(10):
        neighbor, others = latents.clone(), labels.clone()
        neighbor[4] = size * torch.randn(3, generator=source, dtype=torch.float64)
        others[4] = torch.randint(2, (), generator=source)
        for exact, moved, bound in zip(before, messages(neighbor, others, clients), bounds, strict=True):
            change = (moved - exact).flatten(1).norm(dim=1)  # of every client
            assert float(change[clients[4]]) <= bound * (1 + 1e-12)
            assert float(change.sum() - change[clients[4]]) == 0


def test_antipodal_records_of_one_cell_attain_the_sensitivity() -> None:
    here = frame()
    labels, clients = torch.tensor([1]), torch.tensor([0])
    latent = torch.tensor([[0.0, 0.75, 0.0]], dtype=torch.float64)  # u = (0, 1.5), on the sphere
    moved = messages(-latent, labels, clients)[0] - messages(latent, labels, clients)[0]
    assert float(moved.norm()) == pytest.approx(counted_sum_sensitivity(here.coordinate_radius), rel=1e-9)


def test_cells_are_chosen_by_class_and_first_coordinate_and_the_outer_ones_are_open() -> None:
    latents = torch.tensor([[-50.0, 0, 0], [-0.5, 9, 9], [0.5, 0, 0], [50.0, 0, 0], [1.0, 0, 0]])
    assert frame().cells(latents, torch.tensor([0, 0, 0, 0, 1])).tolist() == [0, 0, 1, 1, 2]
    with pytest.raises(InvalidTensorError, match=r"no cell for the classes \[2\]"):
        frame().cells(latents[:1], torch.tensor([2]))


def test_coordinates_are_bounded_and_exact_inside_the_bound() -> None:
    latents = 4 * torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cells = frame().cells(latents, torch.zeros(200, dtype=torch.int64))
    assert float(frame().coordinates(latents, cells).norm(dim=1).max()) <= 1.5
    small = torch.tensor([[0.5, 0.25, 9.0]], dtype=torch.float64) / 9
    expected = torch.tensor([[0.5 / 9 - 1, 0.25 / 9 / 0.5]], dtype=torch.float64)
    torch.testing.assert_close(frame().coordinates(small, torch.tensor([1])), expected)


@pytest.mark.parametrize("composition", Composition)
def test_the_parts_in_the_ledger_cost_no_more_than_the_budget(composition: Composition) -> None:
    latents, labels, clients, _ = planted(6000)
    account = budget(8.0, composition=composition, num_rounds=2)
    if composition is Composition.BASIC:
        latents, labels, clients = latents.repeat(8, 1), labels.repeat(8), clients.repeat(8)
    from fedsynth.prototypes import release_moments

    done = release_moments(
        latents, labels, clients, num_classes=2, options=options(num_rounds=2), budget=account
    )
    entry = moments_ledger_entry(done, stage="release", composition=composition)
    assert entry.adjacency is Adjacency.REPLACE_ONE_ANY_LABEL
    assert (entry.epsilon, entry.delta, entry.parts) == (8.0, 1e-5, account.parts)
    assert {part.name for part in entry.parts} == set(SHARES)
    assert account.spent_share == pytest.approx(1.0)
    exact = composed_epsilon([part.mu for part in entry.parts], 1e-5)
    if composition is Composition.GDP:
        assert exact == pytest.approx(8.0, rel=1e-9)
    else:
        assert exact < 8.0


def test_the_same_seed_gives_the_same_bits_whatever_the_order_of_the_records() -> None:
    latents, labels, clients, _ = planted()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    first = released(latents, labels, clients, 4.0).release.to_tensors()
    again = released(latents[order], labels[order], clients[order], 4.0).release.to_tensors()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = released(latents, labels, clients, 4.0, seed=1).release
    assert not torch.equal(first["sums"], other.sums)


def test_without_noise_the_moments_are_exact() -> None:
    latents, labels, clients, _ = planted()
    release = released(latents, labels, clients).release
    here = release.frame
    cells = here.cells(latents, labels)
    u = here.coordinates(latents, cells)
    assert release.counts.sum(dim=0).tolist() == pytest.approx(cells.bincount().tolist())
    assert torch.equal(release.class_counts.sum(dim=0), labels.bincount().double())
    for cell in range(len(here.labels)):
        own = u[cells == cell]
        torch.testing.assert_close(release.sums.sum(dim=0)[cell], own.sum(dim=0))
        torch.testing.assert_close(release.second_moments.sum(dim=0)[cell], own.T @ own)


def test_a_small_client_sits_out_for_a_class() -> None:
    latents, labels, clients, _ = planted()
    keep = (clients != 2) | (labels == 0) | (torch.arange(len(labels)) < 12)  # 2 of class 1 or so
    release = released(latents[keep], labels[keep], clients[keep]).release
    assert release.participates.tolist() == [[True, True], [True, True], [True, False]]


def test_one_client_and_one_dimension_are_enough() -> None:
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    latents = torch.randn(400, 1, generator=source) + 4 * labels.unsqueeze(1)
    release = released(latents, labels, torch.zeros(400, dtype=torch.int64), num_clients=1).release
    assert release.frame.basis.shape == (1, 1)
    assert release.residual_variance == 0.0


def test_identical_records_are_released() -> None:
    labels = torch.arange(400) % 2
    release = released(torch.ones(400, 5), labels, torch.arange(400) % 3).release
    assert release.frame.basis.shape == (5, 1)
    assert bool(torch.isfinite(release.sums).all())


def test_a_class_that_nobody_has_enough_of_is_refused_by_name() -> None:
    latents, labels, clients, _ = planted(600)
    keep = (labels == 0) | (torch.arange(len(labels)) < 6)
    with pytest.raises(PrivacyError, match=r"No client has 10 records of class 1 .* Lower min_class_records"):
        released(latents[keep], labels[keep], clients[keep])


def test_too_many_clients_for_the_budget_are_refused() -> None:
    latents, labels, _, _ = planted(3000)
    clients = torch.arange(3000) % 100
    assert released(latents, labels, clients, num_clients=100).release.counts.shape[0] == 100
    with pytest.raises(PrivacyError, match=r"over 100 clients.* use fewer clients"):
        released(latents, labels, clients, 0.2, num_clients=100)


def test_records_survive_storage() -> None:
    latents, labels, clients, _ = planted()
    release = released(latents, labels, clients, 4.0).release
    tensors = release.to_tensors()
    again = MomentRelease.from_tensors(tensors)
    assert all(torch.equal(value, again.to_tensors()[name]) for name, value in tensors.items())
    tensors.pop("sums")
    with pytest.raises(ArtifactError, match=r"missing tensors \['sums'\]"):
        MomentRelease.from_tensors(tensors)


def test_a_claim_without_noise_is_refused() -> None:
    latents, labels, clients, _ = planted(600)
    tensors = released(latents, labels, clients).release.to_tensors()
    with pytest.raises(PrivacyError, match=r"claims epsilon=4\.0 but its noise levels"):
        MomentRelease.from_tensors(tensors | {"epsilon": torch.tensor(4.0, dtype=torch.float64)})


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (SHARES | {"means": 0.5}, "add up to 1"),
        (SHARES | {"means": -0.15}, r"shares\.means"),
        ({"means": 1.0}, "must name exactly radius, subspace, counts, histogram, means, second_moments"),
    ],
)
def test_impossible_splits_are_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(PrivacyParameterError, match=message):
        budget(4.0, shares=shares)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.full((600,), 2)}, r"labels must hold .* in \[0, 2\)"),
        ({"clients": torch.full((600,), 3)}, r"clients must hold .* in \[0, 3\)"),
        ({"latents": torch.full((600, 4), math.nan)}, "NaN"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, "lengths"),
    ],
)
def test_impossible_records_are_refused(change: dict[str, Any], message: str) -> None:
    latents, labels, clients, _ = planted(600)
    given = {"latents": latents, "labels": labels, "clients": clients} | change
    with pytest.raises(InvalidTensorError, match=message):
        released(**given)


def test_shared_noise_is_refused() -> None:
    with pytest.raises(PrivacyError, match="same state"):
        moment_budget(
            options(), epsilon=1.0, delta=1e-5, shares=SHARES, composition=Composition.GDP, num_clients=2,
            seed_generator=lambda client: streams()(0),
        )  # fmt: skip


class Replay(GaussianBudget):
    """Answers with a transcript instead of noise, and remembers what it was asked to protect."""

    def replay(self, transcript: list[Tensor]) -> GaussianBudget:
        self.asked: list[tuple[Tensor, float]] = []
        self.transcript = iter(transcript)
        return self

    def release(self, part: str, values: Tensor, sensitivity: float) -> Noisy:
        noisy = super().release(part, values, sensitivity)
        self.asked.append((values.double(), sensitivity))
        return Noisy(next(self.transcript, noisy.values), noisy.std)


@pytest.mark.parametrize("length", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("moves", [False, True])
def test_given_one_transcript_no_message_of_a_neighbor_moves_beyond_its_sensitivity(
    length: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of the proof, for the whole chain: radius, subspace, counts, histogram and moments."""
    latents, labels, clients, directions = planted()
    heard: list[Tensor] = []
    release = GaussianBudget.release

    def listen(self: GaussianBudget, *arguments: Any) -> Noisy:
        noisy = release(self, *arguments)
        heard.append(noisy.values)
        return noisy

    with monkeypatch.context() as patch:
        patch.setattr(GaussianBudget, "release", listen)
        released(latents, labels, clients, epsilon=4.0)
    monkeypatch.setattr("fedsynth.prototypes.moment_options.GaussianBudget", Replay)
    asked = {}
    for name in ("before", "after"):
        if name == "after":
            row = int(latents.norm(dim=1).argmax())
            latents, labels = latents.clone(), labels.clone()
            latents[row] = -length * directions[:, 0]
            labels[row] = 1 - labels[row] if moves else labels[row]
        spender: Any = budget(4.0)
        arguments = {"num_classes": 2, "options": options(), "budget": spender.replay(list(heard))}
        release_moments(latents, labels, clients, **arguments)
        asked[name] = spender.asked
    assert len(asked["before"]) == len(asked["after"]) == len(heard) == 3 * (6 + 1) + 4
    moved = 0.0
    for (one, sensitivity), (other, same) in zip(asked["before"], asked["after"], strict=True):
        distance = (one - other).reshape(len(one), -1).norm(dim=1)  # [client]
        assert same == sensitivity
        assert int((distance > 1e-9 * sensitivity).sum()) <= 1
        assert float(distance.max()) <= sensitivity * (1 + 1e-9)
        moved = max(moved, float(distance.max()) / sensitivity)
    assert moved > 0.5
