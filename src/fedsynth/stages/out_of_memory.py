"""Smaller batches where a batch does not fit into memory: halved until it fits, never silently."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from fedsynth.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")

# What allocators say where torch has no class for it: the CPU's, and CUDA libraries that allocate by themselves.
WORDS = ("not enough memory", "can't allocate memory", "out of memory", "cudnn_status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch's own class, or a RuntimeError in an allocator's words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in WORDS)


def with_smaller_batches(work: Callable[[int], T], batch_size: int, key: str) -> tuple[T, int]:
    """Do ``work(batch_size)``, with half the batch (rounded up) again and again while memory runs out.

    Args:
        work: Called with a batch size; from its start again after each failure, so it must go on from what it has
            finished. Its result must not depend on the batch size beyond rounding.
        batch_size: The first size to try.
        key: Config key of the batch size, for messages.

    Returns:
        What ``work`` returned, and the batch size that fitted.

    Raises:
        ConfigError: If a batch of one does not fit. Every other error passes through unchanged.
    """
    if batch_size < 1:
        raise ConfigError(f"{key} must be ≥ 1, got {batch_size}.", key=key)
    size = batch_size
    while True:
        try:
            return work(size), size
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
        # Outside the handler: there the traceback still holds the tensors of the failed batch.
        _free_memory()
        if size == 1:
            raise ConfigError(
                f"A single record does not fit into memory ({key}={batch_size} was halved down to 1): {said}. "
                "Use a smaller network or smaller images, or a device with more memory.",
                key=key,
            )
        smaller = -(-size // 2)
        log.warning("Out of memory with batches of %d (%s=%d): trying %d.", size, key, batch_size, smaller)
        size = smaller


def _free_memory() -> None:
    """Give back what the failed batch still holds, before the next try allocates."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
