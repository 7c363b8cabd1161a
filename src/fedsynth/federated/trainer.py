"""A Lightning Trainer whose epochs are communication rounds."""

from __future__ import annotations

from typing import Any

import lightning

from fedsynth.errors import ConfigError
from fedsynth.federated.client import Federation
from fedsynth.federated.guards import refuse_unsupported
from fedsynth.federated.loop import FederatedFitLoop
from fedsynth.federated.progress import FederatedProgressBar

__all__ = ["FederatedTrainer", "Federation"]


class FederatedTrainer(lightning.Trainer):
    """``lightning.Trainer`` with rounds for epochs: ``max_epochs`` counts rounds.

    The module is an ordinary LightningModule; ``train_dataloader()`` returns
    ``CombinedLoader({client: loader}, mode="sequential")``. Callbacks and the module may define the hooks of
    :mod:`fedsynth.federated.hooks`. Batch limits and gradient accumulation act within one client's
    local epoch; per-step LR schedules restart with every client, per-epoch ones step once a round;
    ``max_steps``, ``max_time`` and early stopping act at the end of a round.

    Does not support: more than one process without ``ClientShardedStrategy``, validation within a round,
    weight averaging callbacks, learning rate or batch size finders.

    Args:
        federation: Local epochs, participation, seed and server strategy.
        **kwargs: As for ``lightning.Trainer``.

    Raises:
        ConfigError: If a setting has no meaning in a federated round.
    """

    def __init__(self, *, federation: Federation, **kwargs: Any) -> None:
        kwargs.setdefault("use_distributed_sampler", False)
        if kwargs["use_distributed_sampler"]:
            raise ConfigError(
                "trainer.use_distributed_sampler must be false: processes share out clients, never "
                "the records of one. Remove the key."
            )
        if kwargs.get("enable_progress_bar") is not False and not kwargs.get("barebones"):
            kwargs["callbacks"] = _with_progress_bar(kwargs.get("callbacks"))
        super().__init__(**kwargs)
        self.federation = federation
        # After super().__init__(), which writes fast_dev_run's limits on the stock loop.
        self.fit_loop: FederatedFitLoop = FederatedFitLoop(self, federation)
        refuse_unsupported(self, federation)

    def save_checkpoint(
        self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None
    ) -> None:
        """As Lightning's, but a checkpoint taken while a client trains holds the round's global model."""
        with self.fit_loop.rewound():
            super().save_checkpoint(filepath, weights_only, storage_options)


def _with_progress_bar(callbacks: Any) -> list[Any]:
    from lightning.pytorch.callbacks import ProgressBar

    given = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
    return given if any(isinstance(c, ProgressBar) for c in given) else [*given, FederatedProgressBar()]
