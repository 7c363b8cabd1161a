from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from fedsynth.errors import PrivacyError
from fedsynth.privacy import Adjacency, PrivacyParameterError, gaussian_delta
from fedsynth.prototypes import release_ledger_entry, release_prototypes
from fedsynth.records import InvalidTensorError
from fedsynth.seeding import generator


def streams(client: int) -> torch.Generator:
    return generator(7, "release", client)


def records(seed=0, n=400, num_clients=5, dim=64):
    source = torch.Generator().manual_seed(seed)
    latents = torch.randn(n, dim, generator=source) * 1.5
    labels = torch.randint(2, (n,), generator=source)
    clients = torch.randint(num_clients, (n,), generator=source)
    return latents, labels, clients, torch.randperm(n, generator=source)


def release(*data, **changes):
    settings = {
        "num_clients": 5,
        "num_classes": 2,
        "num_shards": 4,
        "clip_radius": 11.0,
        "epsilon": 4.0,
        "delta": 1e-5,
        "min_shard_size": 5,
        "seed_generator": streams,
    }
    return release_prototypes(*(data or records()), **(settings | changes))


def test_released_noise_has_the_calibrated_variance():
    data = records(dim=3000)  # 120,000 draws: an error of 2 % in σ is seen
    noisy, exact = release(*data), release(*data, epsilon=math.inf)
    occupied = noisy.counts > 0
    standardized = ((noisy.means - exact.means) / noisy.noise_std.unsqueeze(-1))[occupied]
    low, high = stats.chi2.interval(1 - 1e-4, df=standardized.numel())
    assert low < float(standardized.square().sum()) < high
    assert stats.kstest(standardized.flatten().numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0, 8.0])
def test_every_shard_spends_its_budget_and_no_more(epsilon):
    released = release(epsilon=epsilon)
    for count, std in zip(
        released.counts.flatten().tolist(), released.noise_std.flatten().tolist(), strict=True
    ):
        if count:
            spent = gaussian_delta(epsilon, std, 2 * 11.0 / count)
            assert 1e-5 * (1 - 1e-9) < spent <= 1e-5


def test_replacing_one_record_moves_one_shard_mean_within_the_sensitivity():
    latents, labels, clients, record_ids = records()
    before = release(latents, labels, clients, record_ids, epsilon=math.inf)
    for record in range(0, 400, 37):
        neighbor = latents.clone()
        neighbor[record] = -50 * latents[record]
        after = release(neighbor, labels, clients, record_ids, epsilon=math.inf)
        moved = torch.linalg.vector_norm(after.means - before.means, dim=-1)
        assert torch.equal(after.counts, before.counts)
        assert int((moved > 0).sum()) == 1  # one shard: parallel composition
        cell = moved == moved.max()
        assert float(moved[cell]) <= 2 * 11.0 / float(before.counts[cell]) * (1 + 1e-12)


def test_noise_depends_on_counts_only_never_on_values():
    latents, labels, clients, record_ids = records()
    other = release(latents.flip(0) * 9, labels, clients, record_ids)
    assert torch.equal(other.noise_std, release().noise_std)


def test_infinite_epsilon_releases_the_exact_means_of_clipped_latents():
    latents, labels, clients, record_ids = records()
    exact = release(latents, labels, clients, record_ids, epsilon=math.inf, num_shards=1)
    norms = torch.linalg.vector_norm(latents.double(), dim=1, keepdim=True)
    clipped = latents.double() * (11.0 / norms).clamp_max(1)
    expected = clipped[(clients == 2) & (labels == 1)]
    torch.testing.assert_close(exact.means[2, 1, 0], expected.mean(dim=0))
    torch.testing.assert_close(exact.variances[2, 1, 0], expected.var(dim=0, correction=0))
    assert float(exact.noise_std.max()) == 0.0


def test_two_clients_never_share_noise():
    same = torch.ones(40, 64)
    labels, clients = torch.zeros(40, dtype=torch.int64), torch.arange(40) // 20
    released = release(same, labels, clients, torch.arange(40), num_clients=2, num_classes=1)
    assert torch.equal(released.counts[0], released.counts[1])
    assert float((released.means[0] - released.means[1]).abs().min()) > 0


def test_generators_in_the_same_state_are_refused():
    with pytest.raises(PrivacyError, match="Clients 0 and 1"):
        release(seed_generator=lambda client: torch.Generator().manual_seed(1))
    shared = torch.Generator().manual_seed(1)
    with pytest.raises(PrivacyError, match="share their noise"):
        release(seed_generator=lambda client: shared)


def test_renumbering_the_clients_renumbers_the_release():
    latents, labels, clients, record_ids = records()
    new_index = torch.tensor([3, 0, 4, 1, 2])
    old_index = torch.argsort(new_index)
    renumbered = release(
        latents,
        labels,
        new_index[clients],
        record_ids,
        seed_generator=lambda client: streams(int(old_index[client])),
    )
    assert torch.equal(renumbered.means[new_index], release().means)


def test_order_of_records_changes_nothing_bit_for_bit():
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    shuffled = release(*(tensor[order] for tensor in records()))
    for name, tensor in release().to_tensors().items():
        assert torch.equal(shuffled.to_tensors()[name], tensor), name


def test_client_without_a_class_releases_zeros_for_it():
    latents, labels, clients, record_ids = records()
    keep = ~((clients == 1) & (labels == 0))
    released = release(latents[keep], labels[keep], clients[keep], record_ids[keep])
    for tensor in (released.counts, released.means, released.variances, released.noise_std):
        assert float(tensor[1, 0].abs().max()) == 0.0
    assert torch.equal(released.means[2:], release().means[2:])  # the others do not notice


def test_small_shards_are_joined_so_that_none_is_released_below_the_minimum():
    latents, labels, clients, record_ids = records(n=60)
    counts = release(latents, labels, clients, record_ids).counts
    assert int(counts.sum()) == 60
    for cell in counts.reshape(-1, 4):
        occupied = cell[cell > 0]
        assert len(occupied) <= 1 or int(occupied.min()) >= 5


def test_global_random_state_is_untouched():
    before = torch.random.get_rng_state()
    release()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"clip_radius": 0.0}, "clip_radius"),
        ({"num_shards": 0}, "num_shards"),
        ({"min_shard_size": 0}, "min_shard_size"),
        ({"num_clients": 0}, "num_clients"),
    ],
)
def test_release_refuses_impossible_settings_by_name(change, name):
    with pytest.raises(PrivacyParameterError, match=name):
        release(**change)


def test_release_refuses_diverged_latents_and_strangers():
    latents, labels, clients, record_ids = records()
    latents[3, 5] = torch.nan
    with pytest.raises(InvalidTensorError, match="latents holds 1 NaN"):
        release(latents, labels, clients, record_ids)
    with pytest.raises(InvalidTensorError, match=r"clients must lie in \[0, 3\)"):
        release(num_clients=3)
    with pytest.raises(InvalidTensorError, match="labels"):
        release(records()[0], labels.tolist(), clients, record_ids)


def test_ledger_entry_states_price_range_and_gaps():
    released = release()
    entry = release_ledger_entry(released, stage="release")
    occupied = released.counts > 0
    assert (entry.epsilon, entry.delta, entry.adjacency) == (4.0, 1e-5, Adjacency.REPLACE_ONE)
    assert entry.num_releases == int(occupied.sum())
    assert entry.sensitivity_range == pytest.approx(
        (22 / int(released.counts.max()), 22 / int(released.counts[occupied].min()))
    )
    assert entry.noise_std_range[1] == float(released.noise_std.max())
    assert any("variances" in gap for gap in entry.not_covered)


def test_release_without_noise_is_an_entry_without_guarantee():
    entry = release_ledger_entry(release(epsilon=math.inf), stage="release")
    assert not entry.is_private
    assert entry.epsilon == math.inf
    assert "without noise" in entry.not_covered[0]
