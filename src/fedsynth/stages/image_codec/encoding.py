"""Latents of many images, in pieces that survive a kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedsynth.data.image_codec import ImageCodec, unit_images
from fedsynth.seeding import generator
from fedsynth.stages.out_of_memory import with_smaller_batches

IMAGES_PER_PIECE = 4096


def encode_pieces(
    codec: ImageCodec,
    image: UInt8[Tensor, "n c h w"],
    *,
    seed: int,
    batch_size: int,
    key: str,
    device: torch.device,
    folder: Path | None,
    piece_size: int = IMAGES_PER_PIECE,
) -> Iterator[Float[Tensor, "m d i j"]]:
    """Raw latents of ``piece_size`` images after another, on the CPU, in the order of the images.

    A piece draws from a stream of its own, so that what is encoded again after a kill is the same.

    Args:
        codec: On ``device``.
        image: Grey levels.
        seed: Of the posterior draws.
        batch_size: Images encoded at a time; halved while memory runs out.
        key: Config key of ``batch_size``.
        device: Where the codec computes.
        folder: Where finished pieces wait; None keeps none, for codecs that cost nothing.
        piece_size: Images of a piece.
    """
    for start in range(0, len(image), piece_size):
        stored = None if folder is None else folder / f"piece-{start:07d}.safetensors"
        if stored is not None and stored.is_file():
            yield load_file(stored)["latent"]
            continue
        part = image[start : start + piece_size]

        def encode(size: int, part: Tensor = part, start: int = start) -> Tensor:
            # fidelity: codec-posterior
            stream = generator(seed, "encode", start)
            batches = [codec.encode(unit_images(rows.to(device)), stream).cpu() for rows in part.split(size)]
            return torch.cat(batches)

        latent, batch_size = with_smaller_batches(encode, batch_size, key)
        if stored is not None:
            _write_whole(stored, latent)
        yield latent


def _write_whole(path: Path, latent: Tensor) -> None:
    """Under its name only once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    save_file({"latent": latent.contiguous()}, half)
    os.replace(half, path)
