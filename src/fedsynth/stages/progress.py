"""Progress of a trained stage: a rich bar on a terminal, one line in ten per cent steps elsewhere."""

from __future__ import annotations

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsynth.console import console
from fedsynth.pipeline.stage import StageContext


class EpochProgress(Callback):
    """One bar over all epochs of a stage; updating per epoch costs training nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._progress: Progress | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
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
        if self._progress is not None:
            shown = {
                k: float(v)
                for k, v in trainer.callback_metrics.items()
                if k in ("val/loss", "val/auroc", "train/loss")
            }
            text = "  ".join(f"{name} {value:.4f}" for name, value in shown.items())
            self._progress.update(self._task, completed=trainer.current_epoch + 1, metrics=text)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def epoch_progress(context: StageContext, trainer_class: type[L.Trainer]) -> list[Callback]:
    """The progress callback of a stock Trainer; the federated one brings its own, over rounds and clients."""
    return [EpochProgress(context.name)] if trainer_class is L.Trainer else []
