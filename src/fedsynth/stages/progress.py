"""Progress of a trained stage: a rich bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsynth.console import console
from fedsynth.pipeline.stage import StageContext

# Without a terminal, stages of a few seconds say nothing.
SECONDS_BETWEEN_LINES = 10.0


class EpochProgress(Callback):
    """One bar over all epochs of a stage; updating per epoch costs training nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._progress: Progress | None = None
        self._said = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._said = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} epochs"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=console(),
            transient=True,
            disable=not console().is_terminal or trainer.global_rank != 0,
        )
        self._progress.start()
        self._task = self._progress.add_task(
            self.name, total=trainer.max_epochs, completed=trainer.current_epoch, metrics=""
        )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._progress is None:
            return
        shown = [name for name in ("train/loss", "val/loss", "val/auroc") if name in trainer.callback_metrics]
        text = "  ".join(f"{name} {float(trainer.callback_metrics[name]):.4g}" for name in shown)
        epoch = trainer.current_epoch + 1
        self._progress.update(self._task, completed=epoch, metrics=text)
        now = time.monotonic()
        if not console().is_terminal and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            console().print(f"epoch {epoch}/{trainer.max_epochs}  {text}", soft_wrap=True)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        # Lightning tears nothing down after an error, and a terminal holds one bar at a time: another try may follow.
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def epoch_progress(context: StageContext, trainer_class: type[L.Trainer]) -> list[Callback]:
    """The progress callback of a stock Trainer; the federated one brings its own, over rounds and clients."""
    return [EpochProgress(context.name)] if trainer_class is L.Trainer else []
