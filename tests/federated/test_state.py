"""Averaging laws: closed form, order, fixed points, BatchNorm buffers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientUpdate
from fedsynth.federated.state import average_states, clone_state, copy_into
from fedsynth.federated.strategies.base import Strategy
from fedsynth.federated.strategies.fedavg import FedAvg


def random_state(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {"weight": scale * torch.randn(3, 4, generator=source), "count": torch.tensor(seed % 7)}


@given(
    seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=6),
    data=st.data(),
)
def test_average_is_the_weighted_mean_in_float64(seeds, data) -> None:
    weights = data.draw(st.lists(st.integers(1, 5000), min_size=len(seeds), max_size=len(seeds)))
    states = [random_state(seed) for seed in seeds]
    exact = sum(w * s["weight"].double() for w, s in zip(weights, states, strict=True)) / sum(weights)
    averaged = average_states(states, weights)
    assert averaged["weight"].dtype == torch.float32
    # One rounding to float32: half a unit in the last place, 2^-24 relative.
    torch.testing.assert_close(averaged["weight"].double(), exact, rtol=2**-23, atol=1e-12)
    assert averaged["count"] == max(seed % 7 for seed in seeds)


@given(seed=st.integers(0, 10_000), weights=st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_equal_states_are_a_fixed_point_to_the_last_bit(seed, weights) -> None:
    averaged = average_states([random_state(seed)] * len(weights), weights)
    assert all(torch.equal(averaged[name], value) for name, value in random_state(seed).items())


def test_small_terms_survive_large_ones() -> None:
    # In float32 the 1 is lost beside 1e8 already in the first partial sum.
    states = [{"w": torch.tensor(value)} for value in (1.0e8, 1.0, -1.0e8)]
    assert average_states(states, [1, 1, 1])["w"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_batchnorm_buffers_are_averaged_and_the_batch_count_is_the_maximum() -> None:
    norms = [nn.BatchNorm1d(2), nn.BatchNorm1d(2)]
    for batches, norm in zip((1, 3), norms, strict=True):
        for batch in range(batches):
            norm(torch.randn(16, 2, generator=torch.Generator().manual_seed(batch)) + batches)
    averaged = average_states([norm.state_dict() for norm in norms], [1, 3])
    for name in ("running_mean", "running_var"):
        expected = (getattr(norms[0], name) + 3 * getattr(norms[1], name)) / 4
        torch.testing.assert_close(averaged[name], expected)
    assert averaged["num_batches_tracked"] == 3
    assert averaged["num_batches_tracked"].dtype == torch.int64


def test_clone_shares_no_memory_and_copy_into_keeps_the_tensors() -> None:
    module = nn.Linear(2, 2)
    state, pointers = clone_state(module), [p.data_ptr() for p in module.parameters()]
    with torch.no_grad():
        module.weight.add_(1.0)
    assert not torch.equal(module.weight, state["weight"])
    copy_into(module, state)
    assert torch.equal(module.weight, state["weight"])
    assert [p.data_ptr() for p in module.parameters()] == pointers


def test_copying_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"missing \['bias'\], unknown \['extra'\]"):
        copy_into(nn.Linear(2, 2), {"weight": torch.zeros(2, 2), "extra": torch.zeros(1)})
    with pytest.raises(ConfigError, match="weight has shape"):
        copy_into(nn.Linear(2, 2, bias=False), {"weight": torch.zeros(3, 2)})


@pytest.mark.parametrize(
    ("states", "weights", "message"),
    [
        ([], [], "one weight per client"),
        ([random_state(0)], [1, 2], "one weight per client"),
        ([random_state(0), random_state(1)], [0, 0], "positive sum"),
        ([random_state(0), random_state(1)], [2, -1], "non-negative"),
        ([random_state(0), {"weight": torch.zeros(3, 4)}], [1, 1], "different tensors"),
    ],
)
def test_impossible_averages_are_refused(states, weights, message) -> None:
    with pytest.raises(ConfigError, match=message):
        average_states(states, weights)


def test_fedavg_weighs_clients_by_their_records() -> None:
    updates = [
        ClientUpdate(client=k, num_records=n, state={"w": torch.tensor(v)}, metrics={}, steps=1)
        for k, n, v in ((0, 10, 1.0), (1, 30, 5.0))
    ]
    assert FedAvg().aggregate({"w": torch.tensor(-9.0)}, updates)["w"].item() == 4.0


def test_fedavg_leaves_the_loss_alone_and_keeps_no_state() -> None:
    loss = torch.tensor(2.0)
    assert FedAvg().local_objective(loss, nn.Linear(1, 1), {}, {}) is loss
    assert FedAvg().state_dict() == {}


def test_a_strategy_without_aggregate_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="aggregate"):
        Strategy()  # type: ignore[abstract]
