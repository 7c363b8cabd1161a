"""Run folders in, report files out."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsynth.report.compatibility import require_comparable
from fedsynth.report.content import ReportContent
from fedsynth.report.drawing import save_png
from fedsynth.report.files import replace_file
from fedsynth.report.gallery import HISTORY_KINDS, build_gallery
from fedsynth.report.html import render_html
from fedsynth.report.markdown import render_markdown
from fedsynth.report.records import ReportRecord, collect_records
from fedsynth.report.runs import load_run
from fedsynth.report.section import Material
from fedsynth.report.sections import FIGURE_NAMES as SECTION_FIGURES
from fedsynth.report.sections import build_sections
from fedsynth.report.stored import NotRunError
from fedsynth.report.variance import FIGURE as VARIANCE_FIGURE
from fedsynth.report.variance import variance_section

#: Every figure name this program can write; a stale one of an earlier report is removed.
FIGURE_NAMES = SECTION_FIGURES | frozenset(
    [
        VARIANCE_FIGURE,
        "partition",
        "roc",
        "precision_recall",
        "latent_pca",
        "neighbor_distances",
        "calibration",
    ]
    + [f"learning_{kind}" for kind in HISTORY_KINDS]
)


@dataclass(frozen=True)
class ReportFiles:
    """What was written, and what it says."""

    markdown: Path
    html: Path
    json: Path
    figures: tuple[Path, ...]
    content: ReportContent

    @property
    def records(self) -> tuple[ReportRecord, ...]:
        return self.content.records

    @property
    def simulated(self) -> bool:
        return self.content.simulated


def build_report(
    run_dirs: Sequence[Path], output_dir: Path, *, log_dir: Path, allow_mixed: bool = False
) -> ReportFiles:
    """Write report.md, report.html, report.json and figures/*.png.

    Each file is replaced in one step, so a reader sees the old or the new one, never half of one; the
    three documents come last. Nothing is written unless everything could be computed.

    Args:
        run_dirs: One folder with ``run.json``, or several of different seeds.
        output_dir: Made if needed; other files in it are left alone.
        log_dir: What relative artifact paths of the runs are relative to.
        allow_mixed: Report runs that differ in more than the seed; the differences are printed.

    Raises:
        ConfigError: The runs are not repetitions of one experiment, or ``config.paper`` is malformed.
        ArtifactError: A run folder or an artifact file is missing its ``run.json`` or damaged.
    """
    runs = tuple(load_run(Path(path), log_dir=Path(log_dir)) for path in run_dirs)
    mixed = require_comparable(runs, allow_mixed=allow_mixed)
    records = collect_records(runs, allow_mixed=allow_mixed)
    simulated = any(run.is_simulated for run in runs)
    gallery = build_gallery(runs, simulated=simulated)
    sections, left_out = build_sections(Material(runs, tuple(records)))
    try:
        found = variance_section(Path(log_dir), runs[0].experiment, simulated)
        sections += [found] if found else []
    except NotRunError as reason:
        left_out.append(f"Variance between runs: left out, {reason}")
    content = ReportContent(
        runs=runs,
        records=tuple(records),
        gallery=gallery,
        mixed=tuple(mixed),
        sections=tuple(sections),
        left_out=tuple(left_out),
    )

    images: dict[str, bytes] = {}
    for item in content.figures:
        buffer = io.BytesIO()
        save_png(item.figure, buffer)
        images[f"figures/{item.name}.png"] = buffer.getvalue()
    markdown = render_markdown(content)
    page = render_html(markdown, title=content.title, images=images, simulated=simulated)
    data = json.dumps(content.to_json(), indent=1, allow_nan=False, ensure_ascii=False, default=str)

    output_dir = Path(output_dir)
    paths = [replace_file(output_dir / name, content_bytes) for name, content_bytes in images.items()]
    for name in FIGURE_NAMES - {item.name for item in content.figures}:
        (output_dir / "figures" / f"{name}.png").unlink(missing_ok=True)
    return ReportFiles(
        markdown=replace_file(output_dir / "report.md", markdown.encode()),
        html=replace_file(output_dir / "report.html", page.encode()),
        json=replace_file(output_dir / "report.json", (data + "\n").encode()),
        figures=tuple(paths),
        content=content,
    )
