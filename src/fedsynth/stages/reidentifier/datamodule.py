"""Batches of training pairs: each one image of a person, another of the same, and one of somebody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from fedsynth.data.batches import tensor_loader
from fedsynth.seeding import derive_seed, generator
from fedsynth.stages.reidentifier.held_out import HeldOutPairs
from fedsynth.stages.reidentifier.pairs import PairTable, draw_negatives


class PairOrder(Sampler[Tensor]):
    """Yields [pair, 3] rows (first, second of the same person, of another), one batch after another.

    The order of all pairs is a function of (seed, epoch); rank r takes its slice of every batch. A share of the batch
    are pairs of patients, gone through in random order again and again; the rest are random images paired with
    themselves, whose two views differ.

    Args:
        table: Training images.
        pairs: Pairs of patients; empty where views only are used.
        batch_size: Pairs of this rank.
        patient_share: Share of patient pairs in a batch.
        num_steps: Batches of an epoch; None goes once through the pairs.
        negatives: ``random``, ``matched`` or ``hard``, the latter two from the same class; None draws none (row -1),
            for losses that find theirs in the batch.
        seed: Of the order.
        rank, world_size: This process among all.
    """

    def __init__(
        self,
        table: PairTable,
        pairs: Int64[Tensor, "pair 2"],
        *,
        batch_size: int,
        patient_share: float,
        num_steps: int | None,
        negatives: str | None,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.table, self.pairs, self.seed, self.epoch = table, pairs, seed, 0
        self.batch_size, self.negatives = batch_size, negatives
        self.rank, self.world_size = rank, world_size
        self.num_patient = round(patient_share * batch_size) if len(pairs) else 0
        per_step = max(1, self.num_patient) * world_size
        self.num_steps = -(-len(pairs) // per_step) if num_steps is None else num_steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Int64[Tensor, "pair 3"]]:
        stream = generator(self.seed, "pairs", self.epoch)
        num_views = self.batch_size - self.num_patient
        patients = self._shares(_endless(len(self.pairs), self.num_patient * self._parts, stream))
        views = self._shares(_endless(len(self.table.patient), num_views * self._parts, stream))
        own = generator(self.seed, "negatives", self.epoch, self.rank)
        for step in range(self.num_steps):
            rows = torch.cat([self.pairs[patients[step]], views[step][:, None].expand(-1, 2)])
            # Either image of a pair is the first as often as the other.
            swap = torch.rand(len(rows), generator=own) < 0.5
            rows = torch.where(swap[:, None], rows.flip(1), rows)
            yield torch.cat([rows, self._negatives(rows[:, 0], own)[:, None]], 1)

    def _negatives(self, anchor: Int64[Tensor, " pair"], own: torch.Generator) -> Int64[Tensor, " pair"]:
        if self.negatives is None:
            return torch.full_like(anchor, -1)
        return draw_negatives(self.table, anchor, matched=self.negatives != "random", generator=own).partner

    @property
    def _parts(self) -> int:
        return self.num_steps * self.world_size

    def _shares(self, order: Int64[Tensor, " total"]) -> Int64[Tensor, "step share"]:
        """What this rank takes in every step."""
        return order.view(self.num_steps, self.world_size, -1)[:, self.rank]


def _endless(num: int, wanted: int, stream: torch.Generator) -> Int64[Tensor, " wanted"]:
    """Numbers below ``num``, all in random order, then all in another, as many as wanted."""
    if not wanted:
        return torch.empty(0, dtype=torch.int64)
    rounds = [torch.randperm(num, generator=stream) for _ in range(-(-wanted // num))]
    return torch.cat(rounds)[:wanted]


class PairBatches(Dataset[dict[str, Tensor]]):
    """Images of a batch of rows, with what decides which may be negatives of each other.

    A missing negative (row -1) is the first image itself, and ``has_negative`` says so.
    """

    def __init__(self, table: PairTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table.patient)

    def __getitem__(self, rows: Int64[Tensor, "pair 3"]) -> dict[str, Tensor]:
        has_negative = rows[:, 2] >= 0
        rows = torch.where(rows < 0, rows[:, :1], rows)
        named = {name: getattr(self.table, name)[rows] for name in ("image", "patient", "content", "match")}
        return {**named, "has_negative": has_negative}


class PairData(L.LightningDataModule):
    """Training pairs, and the images of the held-out pairs that choose the weights.

    Args:
        table: Training images.
        pairs: Pairs of patients.
        held_out: Of the validation images.
        batch_size: Pairs of this rank.
        **order: The rest of ``PairOrder``'s arguments.
    """

    def __init__(
        self,
        table: PairTable,
        pairs: Int64[Tensor, "pair 2"],
        held_out: HeldOutPairs,
        *,
        batch_size: int,
        **order: Any,
    ) -> None:
        super().__init__()
        self.order = PairOrder(table, pairs, batch_size=batch_size, **order)
        self.batches, self.held_out = PairBatches(table), held_out

    def train_dataloader(self) -> Any:
        own = torch.Generator().manual_seed(derive_seed(self.order.seed, "loader"))
        return DataLoader(self.batches, sampler=self.order, batch_size=None, collate_fn=_as_is, generator=own)

    def val_dataloader(self) -> Any:
        # All images on every rank: pairs need both embeddings, and all ranks must agree on when to stop.
        return tensor_loader(
            {"image": self.held_out.image}, batch_size=256, shuffle=False, seed=self.order.seed, pad=False
        )


def _as_is(batch: Any) -> Any:
    return batch
