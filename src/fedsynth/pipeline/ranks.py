"""The processes of one run, as torchrun starts them. One process needs no torch here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from fedsynth.errors import FedSynthError

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among the processes of the run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Ranks:
        """As torchrun says in RANK, WORLD_SIZE and LOCAL_RANK; a lone process if it says nothing."""
        read = {
            name: int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
        }
        return cls(read["RANK"], read["WORLD_SIZE"], int(os.environ.get("LOCAL_RANK", 0)))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def connect(self) -> None:
        """Join the process group (gloo for CPU tensors, NCCL for CUDA ones). Lightning finds and uses it."""
        if self.world_size == 1:
            return
        import torch

        if not torch.distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            # Ranks wait while rank zero computes a stage alone, which can take hours for large images.
            torch.distributed.init_process_group(backend, timeout=timedelta(hours=6))

    def disconnect(self) -> None:
        if self.world_size > 1:
            import torch

            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()

    def broadcast(self, value: Any) -> Any:
        """Rank zero's value, on every rank; also a barrier."""
        if self.world_size == 1:
            return value
        import torch

        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def on_first(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on rank zero, on every rank; also a barrier.

        Raises:
            BaseException: On rank zero, what ``function`` raised.
            FedSynthError: On the others, at the same place, so that none waits for a rank that has failed.
        """
        if self.world_size == 1:
            return function()
        value, failure = None, None
        if self.is_first:
            try:
                value = function()
            except BaseException as error:
                failure = error
        value, failed = self.broadcast((value, repr(failure) if failure else ""))
        if failed:
            raise failure or FedSynthError(f"rank zero failed: {failed}")
        return value
