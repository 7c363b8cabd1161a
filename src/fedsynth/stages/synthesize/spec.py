"""diffusion → synthetic: deterministic DDIM with classifier-free guidance (Eqs. 28–31)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage


@dataclass(frozen=True)
class SynthesizeSettings:
    seed: int = setting(minimum=0)
    num_per_class: int = setting(minimum=1)
    num_steps: int = setting(minimum=1)
    # For the check below only; sampling takes it from the denoiser.
    num_timesteps: int = setting(minimum=2, in_key=False)
    timestep_spacing: str = setting(one_of=("leading", "trailing"))
    guidance_scale: float = setting(minimum=0.0)
    batch_size: int = setting(minimum=1, in_key=False)

    def check(self, path: str) -> None:
        if self.num_steps > self.num_timesteps:
            raise ConfigError(
                f"{path}.num_steps must be ≤ num_timesteps={self.num_timesteps}, got {self.num_steps}. "
                "Lower diffusion.num_sampling_steps or raise diffusion.num_timesteps.",
                key=f"{path}.num_steps",
            )


STAGE = Stage(
    kind="synthesize",
    settings=SynthesizeSettings,
    runs="fedsynth.stages.synthesize.run:run",
    side=Side.SERVER,
    roles=("denoiser",),
    optional_roles=("validation",),  # private latents: with them the stage is the auditor's
    accepts={"denoiser": ("latent_ddpm",), "validation": ("encode",)},
)
