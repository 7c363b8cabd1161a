"""Runs in, one page out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsynth.compare.curves import client_figure, learning_figure
from fedsynth.compare.figures import InteractiveFigure
from fedsynth.compare.groups import Grouping, group_runs
from fedsynth.compare.page import render_page
from fedsynth.compare.privacy_utility import privacy_utility_figure
from fedsynth.compare.results import Results, collect_results
from fedsynth.compare.sweep import sweep_figure, sweep_picture
from fedsynth.errors import ConfigError
from fedsynth.report.drawing import save_png
from fedsynth.report.files import replace_file
from fedsynth.report.runs import Run


@dataclass(frozen=True)
class CompareFiles:
    """What was written, and what it says."""

    page: Path
    picture: Path | None  # sweep.png beside the page, when the groups are a sweep
    grouping: Grouping
    results: Results
    figures: tuple[InteractiveFigure, ...]
    remarks: tuple[str, ...]


def compare_runs(runs: Sequence[Run], page: Path, *, remarks: Sequence[str] = ()) -> CompareFiles:
    """Compare runs and write the page, and ``<page>.sweep.png`` beside it when they are a sweep over one setting.

    Each file is replaced in one step. Nothing is written unless everything could be computed.

    Args:
        runs: Of one or several experiments, in any order.
        page: The HTML file to write; its folder is made if needed.
        remarks: On runs that were left out before, to be shown with the others.

    Raises:
        ConfigError: No runs, a page that is no ``.html`` file, or a malformed ``config.paper``.
        ArtifactError: The page cannot be written.
    """
    page = Path(page)
    if page.suffix.lower() not in (".html", ".htm") or page.is_dir():
        raise ConfigError(f"out must be an HTML file, got {str(page)!r}. Give a name that ends in .html.")
    grouping = group_runs(runs)
    results = collect_results(grouping.groups)
    learning, unreadable = learning_figure(grouping.groups)
    drawn = (
        sweep_figure(grouping, results),
        privacy_utility_figure(grouping, results),
        learning,
        client_figure(grouping.groups, results),
    )
    figures = tuple(figure for figure in drawn if figure is not None)
    notes = (*remarks, *grouping.remarks, *unreadable)
    text = render_page(grouping, results, figures, notes, page)
    picture = sweep_picture(grouping, results)
    path = page.with_name(f"{page.stem}.sweep.png")
    if picture is not None:
        buffer = io.BytesIO()
        save_png(picture, buffer)
        replace_file(path, buffer.getvalue(), "out")
    replace_file(page, text.encode(), "out")
    if picture is None:
        path.unlink(missing_ok=True)  # of an earlier comparison under this name
    return CompareFiles(page, None if picture is None else path, grouping, results, figures, notes)


def default_page(log_dir: Path, runs: Sequence[Run]) -> Path:
    """``<log_dir>/compare/<experiments>.html``."""
    names = list(dict.fromkeys(run.experiment for run in runs))
    stem = "_".join(name.replace("/", "-") for name in names[:3]) + ("_and_more" if len(names) > 3 else "")
    return Path(log_dir) / "compare" / f"{stem}.html"
