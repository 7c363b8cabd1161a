"""Progress of sampling and scoring: images a second and the time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsynth.console import console
from fedsynth.stages.progress import SECONDS_BETWEEN_LINES


class ImageProgress:
    """A bar on a terminal, a line every ten seconds elsewhere; short stages say nothing.

    Counts the share of this process; the first one speaks.

    Args:
        name: What is done.
        total: Images this process has to make.
    """

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self._before = self._done = 0
        self._start = self._said = time.monotonic()
        self._console = console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total} images"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=total, rate="")

    def __enter__(self) -> ImageProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def within(self, images: float) -> None:
        """So many images of the piece at work are done; a piece that is begun again may say less."""
        self._done = int(self._before + images)
        now = time.monotonic()
        rate = self._done / max(now - self._start, 1e-9)
        self._progress.update(self._task, completed=self._done, rate=f"{rate:.3g} images/s")
        if not self._console.is_terminal and now - self._said >= SECONDS_BETWEEN_LINES and self._done:
            self._said = now
            left = (self.total - self._done) / rate
            self._console.print(
                f"{self.name}: {self._done}/{self.total} images, {rate:.3g} images/s, {_duration(left)} left",
                soft_wrap=True,
            )

    def finish(self, images: int) -> None:
        """A piece of so many images is done."""
        self.within(images)
        self._before += images


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
