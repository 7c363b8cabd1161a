"""The draw of Gaussian noise. Its calibration is in :mod:`fedsynth.privacy.gaussian`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fedsynth.errors import PrivacyError
from fedsynth.privacy.parameters import PrivacyParameterError, check_noise_std
from fedsynth.records import check_tensor


def add_gaussian_noise(
    values: Float[Tensor, ...], std: float | Float[Tensor, ...], generator: torch.Generator
) -> Float[Tensor, ...]:
    """values + std · z with z ~ N(0, I): FedDP-PALD Eq. (20).

    The number of draws depends on the shape only, not on ``std``: a zero ``std`` leaves its values exactly
    as they are but still consumes its part of the stream.

    Two limits of seeded noise. (i) Whoever knows the seed can subtract the noise: seeds are for
    reproduction, and a real deployment draws from the operating system's secure source. (ii) Two releases
    of the same data at different ε with the same stream reveal the data (two equations, two unknowns):
    give every release its own stream.

    Args:
        values: What to protect; computed and returned in float64.
        std: σ ≥ 0, finite; a float or a tensor that broadcasts to the shape of ``values``.
        generator: On the device of ``values``.

    Raises:
        PrivacyParameterError: If a standard deviation is negative, NaN or infinite, or does not broadcast.
        InvalidTensorError: If the values are not finite floating numbers.
    """
    values = check_tensor(values, "values").double()
    if not isinstance(std, Tensor):
        std = torch.tensor(check_noise_std(std), dtype=torch.float64)
    std = std.to(values)
    if not bool((torch.isfinite(std) & (std >= 0)).all()):
        raise PrivacyParameterError("std must be finite and >= 0 in every entry. 0 means no noise.")
    try:
        std = std.expand(values.shape)
    except RuntimeError:
        raise PrivacyParameterError(
            f"std of shape {tuple(std.shape)} does not broadcast to values of shape {tuple(values.shape)}. "
            "Add trailing axes of length 1."
        ) from None
    noise = torch.randn(values.shape, dtype=torch.float64, device=values.device, generator=generator)
    return values + std * noise


def client_generators(
    num_clients: int, seed_generator: Callable[[int], torch.Generator]
) -> list[torch.Generator]:
    """One generator per client, no two in the same state.

    Args:
        num_clients: K.
        seed_generator: From a client's index to that client's own generator.

    Raises:
        PrivacyError: If two clients would draw the same noise.
    """
    generators = [seed_generator(client) for client in range(num_clients)]
    owner: dict[bytes, int] = {}
    for client, generator in enumerate(generators):
        other = owner.setdefault(generator.get_state().numpy().tobytes(), client)
        if other != client:
            raise PrivacyError(
                f"Clients {other} and {client} got generators in the same state and would share their noise, "
                "which cancels in the difference of their means. Derive the seed from the client's index."
            )
    return generators
