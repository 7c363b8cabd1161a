"""What a client is to the server: a name, a size, a random stream, and the update it sends back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedsynth.errors import ConfigError
from fedsynth.federated.state import State
from fedsynth.federated.strategies.base import Strategy
from fedsynth.seeding import derive_seed, generator

ClientId = int | str


@dataclass(frozen=True)
class ClientUpdate:
    """What one client hands to the server after its local epochs. Tensors and plain types only.

    Attributes:
        client: Its key in the training loaders.
        num_records: n_k, the size of its data set (also under ``limit_train_batches``).
        state: Its model after local training, on the CPU.
        metrics: Means over its local training: ``train_loss`` and what the module logged per epoch.
        steps: Optimizer steps it took.
        batches: Batches after which its optimizer stepped; differs from ``steps`` under manual optimization.
        message: What else the strategy makes it send, e.g. class prototypes; on the CPU.
    """

    client: ClientId
    num_records: int
    state: State
    metrics: dict[str, float]
    steps: int
    batches: int = 0
    message: State = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """How clients and server work together; one round is one Lightning epoch.

    Attributes:
        local_epochs: Passes over its data a client makes in a round, ≥ 1.
        seed: Root of the cohort's and of every client's random stream.
        strategy: The server's rule.
        participation: Share of clients drawn each round, in (0, 1]; at least one client takes part.
        num_clients: How many clients the data must have; None accepts any number.
    """

    local_epochs: int
    seed: int
    strategy: Strategy
    participation: float = 1.0
    num_clients: int | None = None

    def __post_init__(self) -> None:
        if self.local_epochs < 1:
            raise ConfigError(f"federation.local_epochs must be at least 1, got {self.local_epochs}.")
        if not 0 < self.participation <= 1:
            raise ConfigError(f"federation.participation must be in (0, 1], got {self.participation}.")
        if self.num_clients is not None and self.num_clients < 1:
            raise ConfigError(f"federation.num_clients must be at least 1, got {self.num_clients}.")
        if not isinstance(self.strategy, Strategy):
            raise ConfigError(
                f"federation.strategy must be a Strategy, got {type(self.strategy).__name__}. "
                "Use for example fedsynth.federated.strategies.fedavg.FedAvg()."
            )


def canonical_order(clients: Iterable[ClientId]) -> list[ClientId]:
    """Numbers in numeric order, then names in lexicographic order: the order of every sum over clients."""
    return sorted(clients, key=lambda client: (isinstance(client, str), client))


def sample_cohort(num_clients: int, participation: float, seed: int, round: int) -> tuple[int, ...]:
    """Positions, in the canonical order, of the clients that take part in one round.

    Drawn without replacement, max(1, round half to even of participation · K) of them, from a stream
    that depends on the seed and the round only, so a resumed run draws the same cohorts.

    Raises:
        ConfigError: If there is no client or the participation is outside (0, 1].
    """
    if num_clients < 1 or not 0 < participation <= 1:
        raise ConfigError(
            f"A cohort needs at least one client and a participation in (0, 1], got {num_clients} clients "
            f"and federation.participation={participation}."
        )
    size = max(1, round_half_even(participation * num_clients))
    if size == num_clients:
        return tuple(range(num_clients))
    drawn = torch.randperm(num_clients, generator=generator(seed, "cohort", round))[:size]
    return tuple(sorted(drawn.tolist()))


def round_half_even(value: float) -> int:
    """Python's ``round``, under a name that does not clash with a communication round."""
    return round(value)


@contextmanager
def random_stream(seed: int, *names: int | str, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run a block on its own global random stream and leave the surrounding one untouched.

    Dropout and augmentation draw from global state; seeding it from ``(seed, *names)`` makes a client's
    draws independent of which clients ran before it, in which process. Covers torch (CPU and the given
    CUDA device), NumPy's legacy generator and :mod:`random`.
    """
    device = torch.device(device)
    cuda = [device.index or 0] if device.type == "cuda" else []
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 - user transforms may draw from it
    python_state = random.getstate()
    derived = derive_seed(seed, *names)
    try:
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(derived)
            np.random.seed(derived % 2**32)  # noqa: NPY002
            random.seed(derived)
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
