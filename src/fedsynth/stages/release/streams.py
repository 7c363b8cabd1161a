"""Whose noise it is: one stream per client and release."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import torch

from fedsynth.seeding import generator
from fedsynth.stages.release.spec import ReleaseSettings


def noise_streams(settings: ReleaseSettings, key: str) -> Callable[[int], torch.Generator]:
    """One noise stream per client.

    The artifact's key names the streams: it covers the latents and every setting, so no two different releases
    share noise, which whoever held both could subtract. It does not cover hardware or library versions: latents of
    the same key computed elsewhere may differ a little, and only one of the two releases may be published. With
    ``secure_noise`` their root comes from the operating system and is written nowhere; otherwise it follows from
    the seed, which the manifest holds.
    """
    root = secrets.randbits(63) if settings.secure_noise else settings.seed
    return lambda client: generator(root, "release", key, client)
