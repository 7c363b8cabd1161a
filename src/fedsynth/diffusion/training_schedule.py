"""Learning rate and length of EDM2's trainings, as functions of the images or iterations seen."""

from __future__ import annotations

import math

from fedsynth.diffusion.inputs import DiffusionInputError


def inverse_sqrt_rate(time: float, *, reference: float, decay: float = 0.0, ramp: float = 0.0) -> float:
    """lr(t) = reference · min(t / ramp, 1) / √max(t / decay, 1), EDM2 (Karras et al. 2024, Sect. 2.4).

    PSO-secure sharing uses decay = 17,000 iterations of 2,048 images and ramp = 10,000,000 images. The rate at
    t = 0 is 0 if there is a ramp, as in the released code.

    Args:
        time: t, in images or iterations.
        reference: α_ref, the rate between ramp and decay; 0.0003 in the paper, 0.0012 in its released code.
        decay: t from which the rate falls, in the unit of ``time``; 0 for never.
        ramp: t until which it rises linearly; 0 for not at all.

    Raises:
        DiffusionInputError: If a time is negative or the reference not positive.
    """
    if not min(time, decay, ramp) >= 0:
        raise DiffusionInputError(f"time, decay and ramp must be at least 0, got {time}, {decay}, {ramp}.")
    if not (math.isfinite(reference) and reference > 0):
        raise DiffusionInputError(f"reference must be positive and finite, got {reference}.")
    # fidelity: image-learning-rate
    rate = reference
    if decay:
        rate /= math.sqrt(max(time / decay, 1))
    if ramp:
        rate *= min(time / ramp, 1)
    return rate


def iterations_of(kimg: int, batch_size: int) -> int:
    """Iterations after which at least ``kimg`` thousand images are seen: ⌈1000 kimg / batch_size⌉.

    Lengths in this literature are thousands of images rounded *down*, so this undoes the rounding: 83,886 kimg
    are 80 · 2²⁰ images, at batch 2,048 exactly 40,960 iterations, and 100,663 kimg are 49,152.

    Raises:
        DiffusionInputError: If ``kimg`` is negative or the batch empty.
    """
    # fidelity: training-length-unit
    if kimg < 0 or batch_size < 1:
        raise DiffusionInputError(
            f"kimg must be at least 0 and batch_size at least 1, got {kimg} and {batch_size}."
        )
    return -(-1000 * kimg // batch_size)
