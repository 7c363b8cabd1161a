"""Progress over rounds and clients: a Rich bar on a terminal, one line per round elsewhere."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedsynth.federated.client import ClientId, ClientUpdate


class FederatedProgressBar(ProgressBar):
    """Shows the round, the clients trained in it, and the round's metrics; costs nothing per batch.

    Args:
        console: Where to write; standard output by default. Not a terminal: one line per round.
        metric_names: Which metrics to show; None shows all but the per-client ones.
    """

    def __init__(self, console: Console | None = None, metric_names: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self._console = console or Console()
        self._metric_names = metric_names
        self._enabled = True
        self._progress: Progress | None = None
        self._rounds: TaskID | None = None
        self._clients: TaskID | None = None
        self._started = 0.0
        self._trained = 0

    def disable(self) -> None:
        """Silence the bar, as Lightning does on all ranks but zero."""
        self._enabled = False

    def enable(self) -> None:
        """Undo :meth:`disable`."""
        self._enabled = True

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the bar on a terminal."""
        if not self._enabled or not self._console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            refresh_per_second=4,
        )
        total = trainer.max_epochs if trainer.max_epochs >= 0 else None
        self._rounds = self._progress.add_task(
            "rounds", total=total, completed=trainer.current_epoch, note=""
        )
        self._clients = self._progress.add_task("clients", total=None, note="")
        self._progress.start()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A round starts."""
        self._started, self._trained = time.monotonic(), 0
        if self._progress is not None and self._clients is not None:
            self._progress.reset(self._clients, total=len(trainer.fit_loop.cohort), note="")

    def on_client_start(self, trainer: Any, pl_module: Any, client: ClientId) -> None:
        """Name the client in training."""
        if self._progress is not None and self._clients is not None:
            self._progress.update(self._clients, note=f"client {client}")

    def on_client_end(self, trainer: Any, pl_module: Any, update: ClientUpdate) -> None:
        """Count it."""
        self._trained += 1
        if self._progress is not None and self._clients is not None:
            self._progress.advance(self._clients)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A round ends: show its metrics."""
        note = "  ".join(f"{name} {value:.4g}" for name, value in self._metrics(trainer).items())
        if self._progress is not None and self._rounds is not None:
            self._progress.update(self._rounds, completed=trainer.current_epoch + 1, note=note)
        elif self._enabled:
            rounds = f"/{trainer.max_epochs}" if trainer.max_epochs >= 0 else ""
            seconds = time.monotonic() - self._started
            clients = len(trainer.fit_loop.cohort)
            line = f"round {trainer.current_epoch + 1}{rounds}  {clients} clients  {seconds:.1f} s  {note}"
            self._console.print(line.rstrip(), highlight=False, soft_wrap=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar."""
        self._stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the terminal back."""
        self._stop()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the terminal back."""
        self._stop()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        if self._enabled:
            self._console.print(*args)

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _metrics(self, trainer: Any) -> dict[str, float]:
        known = {name: float(v) for name, v in trainer.callback_metrics.items() if v.numel() == 1}
        if self._metric_names is not None:
            return {name: known[name] for name in self._metric_names if name in known}
        return {name: value for name, value in known.items() if not name.startswith(("client/", "traffic/"))}
