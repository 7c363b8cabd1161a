"""raw → clients: partition, class-aligned pseudo-pairs, normalization (Eqs. 6–8)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


@dataclass(frozen=True)
class ClientsSettings:
    image_size: int = setting(minimum=1)
    label_rule: str = setting(one_of=("n_vs_rest", "aami"))
    num_clients: int = setting(minimum=1, remedy="The paper uses 5.")
    dirichlet_alpha: float = setting(
        above=0.0, remedy="Small values give uneven clients; the paper uses 0.5."
    )
    min_records_per_client: int = setting(minimum=2)
    split_fractions: list[float] = setting(above=0.0, below=1.0)
    split_seed: int = setting(minimum=0)
    partition_seed: int = setting(minimum=0)

    def check(self, path: str) -> None:
        if len(self.split_fractions) != 3 or abs(sum(self.split_fractions) - 1.0) > 1e-6:
            raise ConfigError(
                f"{path}.split_fractions must be three shares (train, validation, test) that sum to 1, "
                f"got {self.split_fractions}.",
                key=f"{path}.split_fractions",
            )


STAGE = Stage(
    kind="clients",
    settings=ClientsSettings,
    runs="fedsynth.stages.clients.run:run",
    side=Side.CLIENT,
    yields=always(Sensitivity.PRIVATE),
    data=("pneumoniamnist", "mitdb"),
    uncovered=lambda settings: (
        "mean and deviation of images and beats, pooled over the training records of all clients",
        "raw ECG windows that a client without a class borrows from another one (counted in the data report)",
        "class counts and ECG record numbers of every client, printed in the data report",
    ),
)
