"""Batches of padded sequences of similar length, trimmed to their longest, so that padding costs little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader

from fedsynth.data.batches import BatchOrder, TensorBatches, whole_batch_loader
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator

SPEECH_SEQUENCES = ("audio", "text")


class TrimmedBatches(TensorBatches):
    """`TensorBatches` whose padded sequences are cut to the longest of the batch.

    Each sequence ``name`` [n, steps, ...] has its lengths in ``<name>_length`` [n], between 1 and steps.

    Raises:
        DataError: If a tensor is missing, tensors differ in length, or a length is impossible.
    """

    def __init__(self, tensors: Mapping[str, Tensor], sequences: Sequence[str] = SPEECH_SEQUENCES) -> None:
        super().__init__(tensors)
        for name in sequences:
            _check_sequence(tensors, name)
        self.sequences = tuple(sequences)

    def __getitem__(self, index: Int64[Tensor, " batch"]) -> dict[str, Tensor]:
        batch = {}
        for name, tensor in self.tensors.items():
            if name in self.sequences and len(index):
                longest = int(self.tensors[f"{name}_length"][index].max())
                tensor = tensor[:, :longest]  # a view: only what the batch keeps is copied below
            batch[name] = tensor[index]
        return batch


class LengthBucketOrder(BatchOrder):
    """`BatchOrder` in which the full batches of an epoch hold records of similar length.

    The order of `BatchOrder` is cut into pools of ``pool_batches`` batches; each pool is sorted by length and
    cut into batches again, and the batches of all pools are shuffled. The number and sizes of batches stay those
    of `BatchOrder`, and so do the records of the last batch if its size differs; hence no epoch has more padding
    than there. Equally long records are in random order. With several ranks, one piece of a sorted pool is a step
    of all ranks, so that none waits long for another. Without `shuffle` nothing is sorted: records come in their
    own order.

    Args:
        lengths: One row of sort keys a record, the most important first.
        pool_batches: Batches sorted together. Many: little padding, but batches of the same records every epoch
            when lengths are distinct; one: no bucketing.
        batch_size: As for `BatchOrder`, like all that follow.
        shuffle: A new order each epoch.
        seed: Of the order.
        rank: This process.
        world_size: Number of processes that share the records.
        pad: Repeat records so that ranks hold equally many.
        min_last_batch: A last batch below it joins the one before.

    Raises:
        ConfigError: If a size or rank is impossible.
        DataError: If a training order has no record.
    """

    def __init__(
        self,
        lengths: Int64[Tensor, "n keys"],
        *,
        pool_batches: int,
        batch_size: int,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        pad: bool,
        min_last_batch: int = 2,
    ) -> None:
        super().__init__(
            len(lengths),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            rank=rank,
            world_size=world_size,
            pad=pad,
            min_last_batch=min_last_batch,
        )
        if pool_batches < 1:
            raise ConfigError(f"pool_batches must be ≥ 1, got {pool_batches}.", key="pool_batches")
        self.lengths = lengths
        self.pool_batches = pool_batches

    def _order(self) -> Int64[Tensor, " total"]:
        order = super()._order()
        num_steps = self._num_full_steps() if self.shuffle else 0
        if not num_steps:
            return order
        step_size = self.world_size * self.batch_size
        bucketed, rest = order.tensor_split([num_steps * step_size])
        pools = [_sorted_by(pool, self.lengths) for pool in bucketed.split(self.pool_batches * step_size)]
        steps = torch.cat(pools).view(num_steps, step_size)
        shuffled = torch.randperm(num_steps, generator=generator(self.seed, "step-order", self.epoch))
        return torch.cat([steps[shuffled].flatten(), rest])

    def _num_full_steps(self) -> int:
        """Steps in which every rank has a batch of exactly ``batch_size`` records; the last one joins or differs."""
        largest = -(-self.num_records // self.world_size)
        smallest = largest if self.pad else self.num_records // self.world_size
        return min(self._batch_sizes(shard).count(self.batch_size) for shard in (smallest, largest))


def bucketed_loader(
    tensors: Mapping[str, Tensor],
    *,
    batch_size: int,
    shuffle: bool,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    pad: bool,
    min_last_batch: int = 2,
    pool_batches: int = 16,
    sequences: Sequence[str] = SPEECH_SEQUENCES,
) -> DataLoader[dict[str, Tensor]]:
    """`fedsynth.data.batches.tensor_loader` with trimmed batches of similar length.

    Batches hold every tensor given, for speech ``audio, audio_length, text, text_length, label, participant``.
    The law about padding holds for the first sequence; the others break ties and gain as far as their lengths go
    with it. ``loader.dataset.num_records`` is the number of records.

    Args:
        tensors: Equal first dimensions; ``<name>_length`` for each of ``sequences``.
        batch_size: Records per batch and rank.
        shuffle: A new order each epoch, bucketed; without it records come in their own order, trimmed only.
        seed: Of the order.
        rank: This process.
        world_size: Number of processes that share the records.
        pad: True for training, False for evaluation (each record once).
        min_last_batch: See `BatchOrder`.
        pool_batches: See `LengthBucketOrder`.
        sequences: The padded tensors, the one that costs most first.

    Raises:
        ConfigError: If a size or rank is impossible, or there is no sequence.
        DataError: If a tensor is missing, a length is impossible, or a training loader is empty.
    """
    if not sequences:
        raise ConfigError("sequences must name at least one padded tensor, got none.", key="sequences")
    dataset = TrimmedBatches(tensors, sequences)
    order = LengthBucketOrder(
        torch.stack([tensors[f"{name}_length"] for name in sequences], dim=1),
        pool_batches=pool_batches,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        rank=rank,
        world_size=world_size,
        pad=pad,
        min_last_batch=min_last_batch,
    )
    return whole_batch_loader(dataset, order)


def _sorted_by(records: Int64[Tensor, " m"], lengths: Int64[Tensor, "n keys"]) -> Int64[Tensor, " m"]:
    """The records by ascending keys; equal ones stay in the order given."""
    for key in reversed(range(lengths.shape[1])):  # stable sorts, the most important key last
        records = records[lengths[records, key].argsort(stable=True)]
    return records


def _check_sequence(tensors: Mapping[str, Tensor], name: str) -> None:
    missing = [key for key in (name, f"{name}_length") if key not in tensors]
    if missing:
        raise DataError(
            f"A loader of padded sequences needs the tensors {name} and {name}_length, got {sorted(tensors)}."
        )
    padded, length = tensors[name], tensors[f"{name}_length"]
    if padded.ndim < 2 or length.ndim != 1 or length.dtype != torch.int64:
        raise DataError(
            f"{name} must have shape [n, steps, ...] and {name}_length be int64 of shape [n], got "
            f"{list(padded.shape)} and {length.dtype} {list(length.shape)}."
        )
    if len(length) and (int(length.min()) < 1 or int(length.max()) > padded.shape[1]):
        raise DataError(
            f"{name}_length must lie in [1, {padded.shape[1]}], the padded length, got values from "
            f"{int(length.min())} to {int(length.max())}. Leave segments without {name} out."
        )
