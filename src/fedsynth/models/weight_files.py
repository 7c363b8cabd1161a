"""Stored network weights: read as tensors only, never as code, and loaded only where every one of them fits."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedsynth.errors import ConfigError


def read_weights(path: str | Path, key: str) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file or of a checkpoint of torch, e.g. one that wraps a ``state_dict``.

    Args:
        path: The file.
        key: Config key that named it, for messages.

    Raises:
        ConfigError: If there is no such file, or it holds no named tensors.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{key} must be a file of weights, but there is none at {file}.", key=key)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        held = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"{key}={file} cannot be read as weights: {_fault(error)}. "
            "Give a .safetensors file or a torch checkpoint that holds tensors only.",
            key=key,
        ) from error
    for name in ("state_dict", "model"):
        if isinstance(held, Mapping) and isinstance(held.get(name), Mapping):
            held = held[name]
    tensors = (
        {str(name): value for name, value in held.items() if isinstance(value, Tensor)}
        if isinstance(held, Mapping)
        else {}
    )
    if not tensors:
        raise ConfigError(f"{key}={file} holds no named tensors. Give the state dict of a network.", key=key)
    return tensors


def _fault(error: Exception) -> str:
    """What is wrong with a file, in own words where torch would advise to run the code in it."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds other objects than tensors, whose code is never run, or is no checkpoint"
    if isinstance(error, EOFError):
        return "it is empty or truncated"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": .")


def load_weights(
    network: nn.Module, weights: Mapping[str, Tensor], *, unused: Collection[str], key: str, architecture: str
) -> None:
    """Load weights into a network, in place, if all of it but the heads named is there in the right shape.

    Args:
        network: Of the architecture that is wanted.
        weights: By name; a leading ``module.`` of distributed training is dropped. Names the network does not know may
            only begin with one of ``unused``.
        unused: Beginnings of names that are not needed: classification or projection heads.
        key: Config key, for messages.
        architecture: What the network is called in them.

    Raises:
        ConfigError: If a tensor is absent, unknown or of another shape.
    """
    given = {name.removeprefix("module."): value for name, value in weights.items()}
    own = network.state_dict()
    is_unused = tuple(unused)
    wanted = {name: value for name, value in own.items() if not name.startswith(is_unused)}
    # Batch counters decide nothing in evaluation mode, and old checkpoints have none.
    absent = sorted(name for name in wanted.keys() - given.keys() if not name.endswith("num_batches_tracked"))
    unknown = sorted(name for name in given.keys() - own.keys() if not name.startswith(is_unused))
    misshapen = sorted(
        name for name in wanted.keys() & given.keys() if wanted[name].shape != given[name].shape
    )
    if absent or unknown or misshapen:
        faults = [
            f"{len(names)} {what} ({', '.join(names[:2])}{', …' if len(names) > 2 else ''})"
            for names, what in ((absent, "absent"), (unknown, "unknown"), (misshapen, "of another shape"))
            if names
        ]
        raise ConfigError(
            f"{key} holds weights of another architecture than {architecture}: {'; '.join(faults)}. "
            "Give a file of this architecture.",
            key=key,
        )
    network.load_state_dict({name: given[name] for name in wanted.keys() & given.keys()}, strict=False)


def weights_digest(network: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters and buffers, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
