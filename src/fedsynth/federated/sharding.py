"""Clients spread over processes: each rank trains some clients of a round, all ranks aggregate them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientId, ClientUpdate, canonical_order


def assign_clients(costs: Mapping[ClientId, float], num_ranks: int) -> tuple[tuple[ClientId, ...], ...]:
    """Longest processing time first: costly clients first, each to the least loaded rank (Graham, 1969).

    The longest rank takes at most 4/3 - 1/(3·ranks) times the optimum. Ties fall to the lower rank and the
    canonically first client, so every rank computes the same assignment. Ranks beyond the number of clients
    get none.

    Raises:
        ConfigError: If there is no rank.
    """
    if num_ranks < 1:
        raise ConfigError(f"Clients need at least one rank to run on, got {num_ranks}.")
    loads, shares = [0.0] * num_ranks, [[] for _ in range(num_ranks)]  # type: ignore[var-annotated]
    for client in sorted(canonical_order(costs), key=lambda client: -costs[client]):
        rank = loads.index(min(loads))
        loads[rank] += costs[client]
        shares[rank].append(client)
    return tuple(tuple(canonical_order(share)) for share in shares)


def _never() -> bool:
    return False


class ClientShardedStrategy(DDPStrategy):
    """DDP's processes without DDP's wrapper: gradients are never reduced, clients' updates are gathered.

    Every rank starts from rank zero's model, holds all loaders, validates the whole validation set, and
    aggregates the same updates in the same order, so results equal one process bit for bit (at the same
    number of threads). Since every rank sees every validation record, logged values are not reduced.
    """

    def configure_ddp(self) -> None:
        """Copy rank zero's model to all ranks; no wrapper."""
        assert self.model is not None
        with torch.no_grad():
            for tensor in self.model.state_dict().values():
                if isinstance(tensor, Tensor):
                    torch.distributed.broadcast(tensor, src=0)

    def setup(self, trainer: Any) -> None:
        """As DDP, and keep torchmetrics from gathering: each rank computes on its client or on all data."""
        super().setup(trainer)
        assert self.model is not None
        for module in self.model.modules():
            if hasattr(module, "distributed_available_fn"):
                module.distributed_available_fn = _never  # type: ignore[assignment]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The tensor itself: a client's values are its own, the global model's are equal on all ranks."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """A vote over ranks, as every callback that stops or saves expects."""
        votes = self._gather(bool(decision))
        return min(votes) if all else max(votes)

    def exchange(
        self, updates: Sequence[ClientUpdate], error: Exception | None, terminated: bool
    ) -> list[ClientUpdate]:
        """Every rank's updates, on every rank; a failure or SIGTERM on one rank ends all of them.

        Raises:
            Exception: This rank's own error.
            RuntimeError: If another rank failed.
            SystemExit: If a rank was told to terminate.
        """
        message = None if error is None else f"{type(error).__name__}: {error}"
        gathered = self._gather((list(updates), message, terminated))
        if error is not None:
            raise error
        for rank, (_, failure, _) in enumerate(gathered):
            if failure is not None:
                raise RuntimeError(f"Rank {rank} failed while training its clients: {failure}")
        if any(told for _, _, told in gathered):
            raise SystemExit(
                "SIGTERM: stopped at the end of the clients' training; resume from the last round."
            )
        return [update for part, _, _ in gathered for update in part]

    def _gather(self, value: Any) -> list[Any]:
        if not torch.distributed.is_initialized():
            return [value]
        values: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(values, value)
        return values
