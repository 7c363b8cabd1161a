"""Seeds derived by name, never by order: adding a stage or reordering clients shifts nobody's stream."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """The seed of one named random stream.

    Args:
        seed: The run's own seed.
        *names: What the stream is for, e.g. ``"release", 3``. Types count: ``1`` and ``"1"`` differ.

    Returns:
        An integer in [0, 2**63), a stable function of its arguments on every platform.
    """
    text = repr((int(seed), *names)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int, device: str = "cpu") -> torch.Generator:
    """A torch generator for the named stream ``(seed, *names)``."""
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))
