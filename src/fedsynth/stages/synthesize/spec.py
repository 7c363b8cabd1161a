"""diffusion → synthetic: deterministic DDIM with classifier-free guidance (Eqs. 28–31)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage


@dataclass(frozen=True)
class SynthesizeSettings:
    seed: int = setting(minimum=0)
    num_per_class: int = setting(minimum=1)
    num_steps: int = setting(minimum=1)
    timestep_spacing: str = setting(one_of=("leading", "trailing"))
    guidance_scale: float = setting(minimum=0.0)
    batch_size: int = setting(minimum=1, in_key=False)


STAGE = Stage(
    kind="synthesize",
    settings=SynthesizeSettings,
    runs="fedsynth.stages.synthesize.run:run",
    side=Side.SERVER,
    roles=("denoiser",),
)
