"""mixture → diffusion: class-conditional noise prediction with label dropout and EMA (Eqs. 26–27)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Side, Stage


@dataclass(frozen=True)
class LatentDDPMSettings:
    seed: int = setting(minimum=0)
    whiten: bool = setting()
    num_timesteps: int = setting(minimum=2)
    beta_schedule: str = setting(one_of=("linear", "cosine"))
    width: int = setting(minimum=1)
    num_blocks: int = setting(minimum=1)
    time_embedding_dim: int = setting(minimum=2)
    label_dropout: float = setting(minimum=0.0, maximum=1.0)
    ema_decay: float = setting(minimum=0.0, below=1.0)
    learning_rate: float = setting(above=0.0)
    batch_size: int = setting(minimum=1)
    num_snapshots: int = setting(minimum=1, remedy="1 keeps the final average only.")

    def check(self, path: str) -> None:
        if self.time_embedding_dim % 2:
            raise ConfigError(
                f"{path}.time_embedding_dim must be even (sine and cosine pairs), got {self.time_embedding_dim}. "
                "Set diffusion.time_embedding_dim.",
                key=f"{path}.time_embedding_dim",
            )


STAGE = Stage(
    kind="latent_ddpm",
    settings=LatentDDPMSettings,
    runs="fedsynth.stages.latent_ddpm.run:run",
    side=Side.SERVER,
    roles=("mixture",),
    accepts={"mixture": ("mix",)},
    trains=True,
)
