"""What clients share of the optimizer: hyperparameters and step schedules, restarted for every client.

Moments and momentum are a client's own and start empty; learning rates belong to the round.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Schedules:
    """Optimizer hyperparameters and the state of per-step schedulers, as a round found them."""

    groups: list[list[dict[str, Any]]]
    schedulers: list[dict[str, Any] | None]

    @classmethod
    def take(cls, trainer: Any) -> Schedules:
        """A copy of the trainer's current learning rates and per-step scheduler states."""
        return cls(
            groups=[
                [
                    copy.deepcopy({k: v for k, v in group.items() if k != "params"})
                    for group in opt.param_groups
                ]
                for opt in trainer.optimizers
            ],
            schedulers=[
                copy.deepcopy(config.scheduler.state_dict()) if config.interval == "step" else None
                for config in trainer.lr_scheduler_configs
            ],
        )

    def restart(self, trainer: Any) -> None:
        """Put a client at the start: the round's learning rates, its step schedules, no optimizer state."""
        for optimizer in trainer.optimizers:
            optimizer.state = defaultdict(dict)
        self.apply(trainer)

    def apply(self, trainer: Any) -> None:
        """Write the copied values back, leaving optimizer state alone."""
        for optimizer, groups in zip(trainer.optimizers, self.groups, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(copy.deepcopy(values))
        for config, state in zip(trainer.lr_scheduler_configs, self.schedulers, strict=True):
            if state is not None:
                config.scheduler.load_state_dict(copy.deepcopy(state))

    @contextmanager
    def swapped_in(self, trainer: Any) -> Iterator[None]:
        """Show the start of a client for the length of a block, then bring the running client back."""
        running, states = Schedules.take(trainer), [optimizer.state for optimizer in trainer.optimizers]
        try:
            self.restart(trainer)
            yield
        finally:
            running.apply(trainer)
            for optimizer, state in zip(trainer.optimizers, states, strict=True):
                optimizer.state = state
