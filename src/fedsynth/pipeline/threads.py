"""How many threads a stage computes with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def set_threads(trainer: Mapping[str, Any], num_processes: int) -> None:
    """Give this process its share of ``trainer.num_threads``; 0 or nothing leaves the number that the run has."""
    wanted = int(trainer.get("num_threads") or 0)
    if wanted:
        import torch

        torch.set_num_threads(max(1, wanted // num_processes))


@contextmanager
def stage_threads(trainer: Mapping[str, Any], num_processes: int) -> Iterator[None]:
    """The threads that a stage asks for, for as long as it runs: a second one slows the smallest networks down."""
    if not trainer.get("num_threads"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    set_threads(trainer, num_processes)
    try:
        yield
    finally:
        torch.set_num_threads(before)
