"""Candidates of real images: latents sampled from each image's own condition and own noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Float16, Int64
from torch import Tensor

from fedsynth.diffusion.edm import ConditionalDenoiser, Denoise
from fedsynth.diffusion.edm_samplers import SamplerSettings, denoise_latents
from fedsynth.diffusion.lerp_guidance import GuidanceSettings, guided_denoiser
from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.seeding import generator
from fedsynth.stages.out_of_memory import with_smaller_batches

#: Weights that differ by less have the same noise; weights of a schedule are sums of rounded steps.
WEIGHT_DIGITS = 6


class CandidateSampler:
    """Draws candidates for rows of the training images.

    The noise of a candidate is a function of (seed, row, its number, guidance weight): the same image comes out
    in whatever batch, shard or process it is made, but for the last bits, as matrix products of other sizes add
    up in another order. Batches run across images.

    Args:
        main: The denoiser, in eval mode.
        guiding: The guide; None if the weight is always 1.
        condition: Of every training image, or None.
        sampler: Solver and noise levels.
        guidance: Kind and interval; its weight is that of each draw.
        latent_shape: Channels, height, width.
        seed: Of the noise.
        batch_size: Latents denoised together; halved, with a message, where memory runs out, and kept so.
        key: Config key of the batch size, for messages.
        device: Where to sample.
    """

    def __init__(
        self,
        main: ConditionalDenoiser,
        guiding: ConditionalDenoiser | None,
        condition: Float[Tensor, "n e"] | None,
        sampler: SamplerSettings,
        guidance: GuidanceSettings,
        latent_shape: tuple[int, int, int],
        *,
        seed: int,
        batch_size: int,
        key: str,
        device: torch.device | str = "cpu",
    ) -> None:
        self.main, self.guiding, self.condition = main, guiding, condition
        self.sampler, self.guidance, self.latent_shape = sampler, guidance, latent_shape
        self.seed, self.batch_size, self.key, self.device = seed, batch_size, key, device

    def draw(
        self,
        rows: Int64[Tensor, " r"],
        num_candidates: int,
        guidance_weight: float,
        progress: Callable[[float], None] | None = None,
    ) -> Float16[Tensor, "r b c h w"]:
        """``num_candidates`` latents for each of the rows, on the CPU.

        Args:
            rows: Of the training images.
            num_candidates: b.
            guidance_weight: w.
            progress: Told how many latents are done.

        Raises:
            ConfigError: If the weight needs a guide and there is none, or one latent does not fit into memory.
            ArtifactError: If a latent is not finite in half precision: the denoiser has diverged.
        """
        if self.guidance.kind == "none" and guidance_weight != 1:
            raise ConfigError(
                f"Candidates are sampled without guidance, so their weight cannot be {guidance_weight:g}. Say "
                "image_sampler.guidance=unconditional, or leave out weights below 1 (selection.guidance_weights=[]).",
                key="image_sampler.guidance",
            )
        guidance = replace(self.guidance, weight=guidance_weight)
        noise = torch.cat([self.noise(int(row), num_candidates, guidance_weight) for row in rows])
        noise = noise.to(self.device)
        condition = self._condition_of(rows, num_candidates)

        def bind(part: slice) -> Denoise:
            own = None if condition is None else condition[part]
            return guided_denoiser(self.main, self.guiding, own, guidance)

        def tick(done: int, total: int) -> None:
            if progress is not None:
                progress(len(noise) * done / total)

        latent, self.batch_size = with_smaller_batches(
            lambda size: denoise_latents(bind, noise, self.sampler, batch_size=size, progress=tick),
            self.batch_size,
            self.key,
        )
        half = latent.half().cpu()
        if not bool(half.isfinite().all()):
            raise ArtifactError(
                f"{int((~half.isfinite()).flatten(1).any(1).sum())} of {len(half)} candidates are not finite: the "
                "denoiser has diverged. Lower its learning rate (image_network.learning_rate) or train it longer."
            )
        return half.reshape(len(rows), num_candidates, *self.latent_shape)

    def noise(self, row: int, num_candidates: int, guidance_weight: float) -> Float[Tensor, "b c h w"]:
        """The standard normal noise that the candidates of a row start from."""
        # Nothing of the batch or the shard in the name; a new weight gets new noise.  fidelity: candidate-noise
        stream = generator(self.seed, "candidates", row, round(guidance_weight * 10**WEIGHT_DIGITS))
        return torch.randn(num_candidates, *self.latent_shape, generator=stream)

    def _condition_of(self, rows: Tensor, num_candidates: int) -> Tensor | None:
        if self.condition is None:
            return None
        return self.condition[rows].to(self.device).repeat_interleave(num_candidates, 0)
