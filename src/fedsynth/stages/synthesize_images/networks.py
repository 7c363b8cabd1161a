"""The sampler of a stage, from the artifacts it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedsynth.diffusion.edm import ConditionalDenoiser
from fedsynth.diffusion.edm_samplers import SamplerSettings
from fedsynth.diffusion.lerp_guidance import GuidanceSettings
from fedsynth.errors import DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.diadm.trained import conditions, open_denoiser
from fedsynth.stages.image_codec.stored import open_codec
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.synthesize_images.sampler import CandidateSampler


def open_sampler(
    values: Mapping[str, Any],
    inputs: Mapping[str, Artifact],
    images: ImageSet,
    *,
    seed: int,
    batch_size: int,
    context: StageContext,
    may_need_guide: bool,
    key: str,
) -> CandidateSampler:
    """The sampler that settings and artifacts describe.

    Args:
        values: Settings of a stage ``synthesize_images``: solver, noise levels, guidance, weights.
        inputs: The artifacts ``denoiser`` and ``codec``, and if needed ``features`` and ``guide``.
        images: The training images the denoiser was trained on.
        seed: Of the noise.
        batch_size: Latents denoised together.
        context: Of the stage that samples.
        may_need_guide: Whether a weight other than 1 is asked for.
        key: Config key of the batch size, for messages.

    Raises:
        DataError: If there are not as many features as images.
    """
    device = computing_device(context)
    interval = values["guidance_interval"]
    guidance = GuidanceSettings(kind=values["guidance"], interval=tuple(interval) if interval else None)
    features = (
        inputs["features"].load("features.safetensors")["train.feature"] if "features" in inputs else None
    )
    if features is not None and len(features) != len(images):
        raise DataError(
            f"stages.{inputs['features'].stage} holds features of {len(features)} training images, but there are "
            f"{len(images)}."
        )
    main = _denoiser(inputs["denoiser"], values, device)
    return CandidateSampler(
        main,
        _guide(main, values, inputs, device) if may_need_guide else None,
        conditions(inputs["denoiser"].manifest["notes"], images, features),
        SamplerSettings(
            kind=values["solver"],
            num_steps=values["num_steps"],
            sigma_min=values["sigma_min"],
            sigma_max=values["sigma_max"],
            rho=values["rho"],
        ),
        guidance,
        open_codec(inputs["codec"]).latent_shape,
        seed=seed,
        batch_size=batch_size,
        key=key,
        device=device,
    )


def _denoiser(
    artifact: Artifact, values: Mapping[str, Any], device: torch.device, *, earlier: bool = False
) -> ConditionalDenoiser:
    return open_denoiser(artifact, ema_width=values["ema_width"], earlier=earlier, device=device)


def _guide(
    main: ConditionalDenoiser, values: Mapping[str, Any], inputs: Mapping[str, Artifact], device: torch.device
) -> ConditionalDenoiser | None:
    """The second network: one named as ``guide``, else the denoiser itself without condition or at an earlier step."""
    kind = values["guidance"]
    if kind == "none":
        return None
    if kind == "earlier":
        return _denoiser(inputs["denoiser"], values, device, earlier=True)
    if "guide" in inputs:
        return _denoiser(inputs["guide"], values, device, earlier=kind == "both")
    return main if kind == "unconditional" else _denoiser(inputs["denoiser"], values, device, earlier=True)
