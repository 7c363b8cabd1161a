"""Length-bucketed batches: those of ``BatchOrder``, each record once, with no more padding than there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from fedsynth.data.batches import BatchOrder
from fedsynth.data.length_buckets import LengthBucketOrder, bucketed_loader
from fedsynth.errors import ConfigError, DataError
from fedsynth.federated.roster import Roster

shapes = {
    "num": st.integers(1, 90),
    "batch_size": st.integers(1, 12),
    "world_size": st.integers(1, 4),
    "min_last_batch": st.integers(1, 5),
    "pool_batches": st.integers(1, 6),
    "seed": st.integers(0, 2**31),
    "epoch": st.integers(0, 3),
    "shuffle": st.booleans(),
}


def _lengths(num: int, seed: int, longest: int = 30) -> torch.Tensor:
    return torch.randint(1, longest + 1, (num, 2), generator=torch.Generator().manual_seed(seed))


def _bucketed(lengths: torch.Tensor, **changes: Any) -> LengthBucketOrder:
    options = {"pool_batches": 4, "batch_size": 4, "shuffle": True, "seed": 7, "pad": True}
    return LengthBucketOrder(lengths, **(options | changes))


def _ranks(make: Any, epoch: int, world_size: int) -> list[list[list[int]]]:
    """Record numbers by rank and batch."""
    found = []
    for rank in range(world_size):
        order = make(rank=rank, world_size=world_size)
        order.set_epoch(epoch)
        found.append([batch.tolist() for batch in order])
        assert len(order) == len(found[-1])
    return found


def _both(draw: dict[str, Any], *, pad: bool) -> tuple[Any, Any, torch.Tensor]:
    """The bucketed and the plain batches of all ranks, and the lengths."""
    draw = dict(draw)
    num, epoch, world, pool = (draw.pop(key) for key in ("num", "epoch", "world_size", "pool_batches"))
    lengths = _lengths(num, draw["seed"])
    bucketed = _ranks(lambda **r: _bucketed(lengths, pool_batches=pool, pad=pad, **draw, **r), epoch, world)
    plain = _ranks(lambda **r: BatchOrder(num, pad=pad, **draw, **r), epoch, world)
    return bucketed, plain, lengths[:, 0]


@settings(max_examples=80, deadline=None)
@given(draw=st.fixed_dictionaries(shapes), pad=st.booleans())
def test_batches_hold_the_records_of_plain_ones_in_batches_of_the_same_sizes(
    draw: dict[str, Any], pad: bool
) -> None:
    bucketed, plain, _ = _both(draw, pad=pad)
    assert [[len(b) for b in rank] for rank in bucketed] == [[len(b) for b in rank] for rank in plain]
    flat = [[x for rank in ranks for batch in rank for x in batch] for ranks in (bucketed, plain)]
    assert sorted(flat[0]) == sorted(flat[1])
    assert set(flat[0]) == set(range(draw["num"]))
    if not pad:
        assert len(flat[0]) == draw["num"]
    else:
        assert all(len(rank) == len(bucketed[0]) for rank in bucketed)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_ranks_with_shards_of_different_sizes_share_the_records_out(batch_size: int, world_size: int) -> None:
    """Where one rank has a batch more than another, or joins two of its batches and another does not."""
    for num, least in itertools.product(range(1, 20), (1, 2, 3)):
        draw = {"num": num, "epoch": 1, "world_size": world_size, "batch_size": batch_size, "seed": num}
        draw |= {"min_last_batch": least, "pool_batches": 2, "shuffle": True}
        bucketed, plain, _ = _both(draw, pad=False)
        assert [[len(b) for b in rank] for rank in bucketed] == [[len(b) for b in rank] for rank in plain]
        assert sorted(x for rank in bucketed for batch in rank for x in batch) == list(range(num))


@settings(max_examples=150, deadline=None)
@given(draw=st.fixed_dictionaries(shapes), pad=st.booleans())
def test_no_epoch_has_more_padding_than_plain_batches(draw: dict[str, Any], pad: bool) -> None:
    """Computed steps: records of a step times its longest; ranks of one step wait for each other."""

    def cost(ranks: list[list[list[int]]]) -> int:
        total = 0
        for number in range(max(len(rank) for rank in ranks)):
            step = [x for rank in ranks if number < len(rank) for x in rank[number]]
            total += len(step) * int(lengths[step].max())
        return total

    bucketed, plain, lengths = _both(draw, pad=pad)
    assert cost(bucketed) <= cost(plain)


def test_padding_of_many_batches_is_a_fraction_of_that_of_plain_ones() -> None:
    lengths = _lengths(640, seed=0, longest=100)
    wasted, audio = {}, lengths[:, 0]
    plain = BatchOrder(640, batch_size=16, shuffle=True, seed=7, pad=True)
    for name, order in {"plain": plain, "bucketed": _bucketed(lengths, batch_size=16)}.items():
        wasted[name] = sum(int((audio[batch].max() - audio[batch]).sum()) for batch in order)
    # 4 batches a pool: neighbors in length are 1/4 of the range apart, not all of it.
    assert wasted["bucketed"] < 0.35 * wasted["plain"]


def test_order_is_a_pure_function_of_seed_and_epoch_and_batches_are_shuffled() -> None:
    def epoch(number: int, **changes: Any) -> list[list[int]]:
        return _ranks(lambda **r: _bucketed(lengths, **changes, **r), number, 1)[0]

    lengths = _lengths(64, seed=1)
    order = _bucketed(lengths)
    first = [batch.tolist() for batch in order]
    order.set_epoch(3)
    third = [batch.tolist() for batch in order]
    assert third != first
    assert epoch(0) == first
    assert epoch(3) == third
    assert epoch(3, seed=8) != third
    longest = [int(lengths[batch, 0].max()) for batch in epoch(0, pool_batches=16)]
    assert longest != sorted(longest)
    assert {tuple(sorted(b)) for b in first} != {tuple(sorted(b)) for b in third}


def test_equally_long_records_meet_in_new_batches_every_epoch() -> None:
    order = _bucketed(torch.ones(60, 1, dtype=torch.int64), pool_batches=15, batch_size=2)
    partner = []
    for epoch in range(200):
        order.set_epoch(epoch)
        partner += [next(x for x in batch.tolist() if x != 0) for batch in order if 0 in batch.tolist()]
    # Uniform over 59 records: 200 draws leave about 59·e^(-3.4) = 2 of them out; 15 would be far off.
    assert len(set(partner)) > 44


def test_each_place_of_an_epoch_is_equally_likely_for_the_longest_record() -> None:
    order = _bucketed(torch.arange(1, 21).unsqueeze(1), pool_batches=5)
    places = []
    for epoch in range(1000):
        order.set_epoch(epoch)
        places.append(next(place for place, batch in enumerate(order) if 19 in batch.tolist()))
    counts = torch.bincount(torch.tensor(places), minlength=5)
    assert ((counts - 200.0) ** 2 / 200).sum() < 18.5  # 0.999 quantile of χ² at 4 degrees of freedom


def test_second_key_breaks_ties_of_the_first() -> None:
    source = torch.Generator().manual_seed(0)
    keys = torch.stack([torch.full((16,), 5), torch.randperm(16, generator=source)], dim=1)
    spread = [int(keys[batch, 1].max() - keys[batch, 1].min()) for batch in _bucketed(keys)]
    assert spread == [3, 3, 3, 3]


# ── The loader ──────────────────────────────────────────────────────────────────────────────────────────────


def _tensors(num: int, seed: int = 0) -> dict[str, torch.Tensor]:
    audio_length, text_length = _lengths(num, seed, 20)[:, 0], _lengths(num, seed + 1, 6)[:, 0]
    audio = torch.arange(num).float().view(-1, 1, 1).expand(num, 25, 2).clone()
    text = -torch.arange(num).float().view(-1, 1, 1).expand(num, 9, 3).clone()
    audio[torch.arange(25) >= audio_length.unsqueeze(1)] = torch.nan
    text[torch.arange(9) >= text_length.unsqueeze(1)] = torch.nan
    return {
        "audio": audio,
        "audio_length": audio_length,
        "text": text,
        "text_length": text_length,
        "label": torch.arange(num) % 2,
        "participant": torch.arange(num),
    }


def _loader(num: int = 30, **changes: Any) -> torch.utils.data.DataLoader:
    options = {"batch_size": 4, "shuffle": True, "seed": 7, "pad": True} | changes
    return bucketed_loader(_tensors(num), **options)


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_end_at_their_longest_and_keep_every_real_step(shuffle: bool) -> None:
    whole = _tensors(30)
    for batch in _loader(shuffle=shuffle):
        records = batch["participant"]
        assert batch.keys() == whole.keys()
        for name in ("audio", "text"):
            longest = int(batch[f"{name}_length"].max())
            expected = whole[name][records][:, :longest]
            assert torch.equal(batch[name].nan_to_num(nan=0.5), expected.nan_to_num(nan=0.5))
            assert (~batch[name][..., 0].isnan()).sum(1).equal(batch[f"{name}_length"])
        assert torch.equal(batch["label"], records % 2)


def test_evaluation_keeps_the_order_of_records() -> None:
    loader = _loader(shuffle=False, pad=False)
    assert torch.cat([batch["participant"] for batch in loader]).tolist() == list(range(30))


def test_iterating_leaves_the_global_random_state_alone() -> None:
    state = torch.get_rng_state()
    assert sum(1 for _ in _loader()) == len(_loader())
    assert torch.equal(state, torch.get_rng_state())


def test_loaders_serve_the_clients_of_a_federation() -> None:
    loaders = {client: _loader(num) for client, num in {0: 30, 1: 9}.items()}
    combined = CombinedLoader(loaders, mode="sequential")
    combined.limits = [len(loader) for loader in loaders.values()]  # as Lightning does
    roster = Roster.from_loader(combined, num_clients=2)
    assert dict(roster.num_records) == {0: 30, 1: 9}
    assert dict(roster.num_batches) == {0: 8, 1: 2}
    of_epoch = []
    for epoch in (0, 1, 0):
        _set_sampler_epoch(roster.loaders[0].flattened[0], epoch)
        batches = [batch["participant"].tolist() for batch, _, _ in roster.loaders[0]]
        assert sorted(x for batch in batches for x in batch) == list(range(30))
        of_epoch.append(batches)
    assert of_epoch[0] == of_epoch[2] != of_epoch[1]


@pytest.mark.parametrize(
    "change",
    [{"pool_batches": 0}, {"batch_size": 0}, {"min_last_batch": 0}, {"rank": 1}, {"sequences": ()}],
)
def test_impossible_options_are_config_errors(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="got"):
        _loader(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio_length": torch.full((30,), 26)}, r"audio_length must lie in \[1, 25\].*to 26"),
        ({"text_length": torch.zeros(30, dtype=torch.int64)}, r"text_length must lie in \[1, 9\].*from 0"),
        ({"text_length": torch.ones(30)}, "text_length be int64"),
        ({"audio": torch.zeros(30)}, "audio must have shape"),
        ({"label": torch.zeros(29)}, "equal lengths"),
        ({"text_length": None}, "needs the tensors text and text_length"),
    ],
)
def test_damaged_tensors_are_data_errors(change: dict[str, torch.Tensor | None], message: str) -> None:
    tensors = {name: tensor for name, tensor in (_tensors(30) | change).items() if tensor is not None}
    with pytest.raises(DataError, match=message):
        bucketed_loader(tensors, batch_size=4, shuffle=True, seed=7, pad=True)


def test_empty_evaluation_yields_nothing_and_empty_training_is_refused() -> None:
    assert list(_loader(0, pad=False)) == []
    with pytest.raises(DataError, match="no record"):
        _loader(0)
