"""``variance=EXPERIMENT``: where the spread of the results comes from, over runs of a crossed design.

Runs of one experiment that differ in ``data.split_seed``, ``data.partition_seed`` and ``seed``, and in nothing
else; every combination must be there. Classifier seeds are a factor inside of each run.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsynth.errors import ConfigError
from fedsynth.evaluation.variance import RESIDUAL, VarianceComponent, variance_components
from fedsynth.report.compatibility import differences
from fedsynth.report.content import plain_json
from fedsynth.report.detail_figures import variance_bars
from fedsynth.report.drawing import save_png
from fedsynth.report.files import replace_file
from fedsynth.report.gallery import ReportFigure
from fedsynth.report.html import render_html
from fedsynth.report.runs import Run, find_runs
from fedsynth.report.section import Section
from fedsynth.report.stored import NotRunError
from fedsynth.report.tables import cell, number, table

#: Factor → where a run's config holds its level. The last factor, classifier seed, varies within a run.
RUN_FACTORS = {"ECG split": "split_seed", "partition": "partition_seed", "initialization": ""}
SETTINGS = ("data.split_seed", "data.partition_seed", "seed")
CLASSIFIER = "classifier seed"
#: (label, stage, arm, metric): what is decomposed, as far as the runs have it.
RESPONSES = (
    ("encoder, X-ray and ECG", "fusion_encoder", "both", "test/auroc"),
    ("encoder, X-ray only", "fusion_encoder", "image_only", "test/auroc"),
    ("encoder, ECG only", "fusion_encoder", "ecg_only", "test/auroc"),
    ("TSTR, real latents", "tstr_real", "real", "test/auroc"),
)
FIGURE = "variance"


@dataclass(frozen=True)
class Design:
    """Complete crossed runs.

    Attributes:
        levels: Levels of the run factors, in the order of ``RUN_FACTORS``.
        runs: By the levels of all run factors.
    """

    levels: tuple[tuple[int, ...], ...]
    runs: dict[tuple[int, ...], Run]


@dataclass(frozen=True)
class Response:
    """One decomposed number.

    Attributes:
        label: What it is.
        metric: ``stage/arm/metric``.
        mean, std, low, high: Over all values; std with ddof = 1.
        num_values: Cells of the design.
        components: Largest interactions pooled into the residual.
    """

    label: str
    metric: str
    mean: float
    std: float
    low: float
    high: float
    num_values: int
    components: tuple[VarianceComponent, ...]


def variance_report(log_dir: Path, experiment: str, output_dir: Path | None = None) -> tuple[Path, ...]:
    """Write variance.md, .html, .json and figures/variance.png; returns their paths, documents first.

    Raises:
        ConfigError: No runs, runs that differ in more than the factors, or combinations that are missing.
    """
    design = crossed_design(find_runs(log_dir, experiment), experiment)
    responses = decompose(design)
    if not responses:
        raise ConfigError(
            f"variance={experiment}: the runs hold none of the numbers that are decomposed"
            f" ({', '.join(label for label, *_ in RESPONSES)}). Run: make sweep experiment=feddp_pald/variance"
            " hparams_search=variance."
        )
    simulated = any(run.is_simulated for run in design.runs.values())
    buffer = io.BytesIO()
    save_png(_figure(responses, simulated), buffer)
    markdown = render_variance(experiment, design, responses, simulated)
    folder = output_dir or log_dir / "reports" / experiment
    images = {f"figures/{FIGURE}.png": buffer.getvalue()}
    title = f"{'SIMULATED — ' if simulated else ''}Variance: {experiment}"
    page = render_html(markdown, title=title, images=images, simulated=simulated)
    data = {
        "experiment": experiment,
        "simulated": simulated,
        "levels": dict(zip(RUN_FACTORS, design.levels, strict=True)),
        "runs": {run.run_id: list(levels) for levels, run in design.runs.items()},
        "responses": [asdict(item) for item in responses],
    }
    text = json.dumps(plain_json(data), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    contents = {
        "variance.md": markdown.encode(),
        "variance.html": page.encode(),
        "variance.json": text.encode(),
    }
    return tuple(replace_file(folder / name, content) for name, content in {**contents, **images}.items())


def crossed_design(found: Sequence[Run], experiment: str) -> Design:
    """The newest run of every combination of levels, all comparable with the newest run of all.

    Args:
        found: Runs of one experiment, newest first; unfinished ones are passed over.
        experiment: For messages.

    Raises:
        ConfigError: No finished run, or a combination without a comparable run.
    """
    finished = [run for run in found if run.is_finished]
    if not finished:
        raise ConfigError(
            f"No finished run of {experiment!r}. Run: make sweep experiment={experiment}"
            " hparams_search=variance."
        )
    runs: dict[tuple[int, ...], Run] = {}
    for run in finished:
        if levels_of(run) not in runs and not other_differences(finished[0], run):
            runs[levels_of(run)] = run
    levels = tuple(tuple(sorted(set(column))) for column in zip(*runs, strict=True))
    lacking = [combination for combination in itertools.product(*levels) if combination not in runs]
    if lacking:
        names = ", ".join(f"{name}={level}" for name, level in zip(SETTINGS, lacking[0], strict=True))
        raise ConfigError(
            f"variance={experiment}: {len(lacking)} of {math.prod(map(len, levels))} combinations have no finished"
            f" run with these settings, the first: {names}. Repeat the sweep: what is stored is not computed again."
        )
    return Design(levels, {key: runs[key] for key in sorted(runs)})


def levels_of(run: Run) -> tuple[int, ...]:
    """The run's level of every run factor."""
    clients = (run.config.get("stages") or {}).get("clients") or {}
    return tuple(int(clients.get(key, 0)) if key else run.seed for key in RUN_FACTORS.values())


def other_differences(first: Run, run: Run) -> list[str]:
    """Differences of two runs besides the factors."""
    factors = tuple(f"stages.clients.{key}:" for key in RUN_FACTORS.values() if key)
    return [line for line in differences([first, run]) if not line.startswith(factors)]


def decompose(design: Design) -> list[Response]:
    """Variance components of every response that all runs have, factors with one level left out.

    Raises:
        ConfigError: Fewer than two factors vary.
    """
    found = []
    for label, stage, arm, metric in RESPONSES:
        values = _values(design, stage, arm, metric)
        if values is None:
            continue
        names = [*RUN_FACTORS, CLASSIFIER][: values.ndim]
        varied = [axis for axis in range(values.ndim) if values.shape[axis] > 1]
        if len(varied) < 2:
            raise ConfigError(
                f"{label}: a decomposition needs two factors with several levels, got levels"
                f" {dict(zip(names, values.shape, strict=True))}. Sweep more of data.split_seed,"
                " data.partition_seed and seed."
            )
        values = values.squeeze(tuple(axis for axis in range(values.ndim) if axis not in varied))
        order = min(2, values.ndim - 1)
        components = variance_components(values, [names[axis] for axis in varied], max_order=order)
        found.append(
            Response(
                label, f"{stage}/{arm}/{metric}", float(values.mean()), float(values.std(ddof=1)),
                float(values.min()), float(values.max()), values.size, tuple(components),
            )
        )  # fmt: skip
    return found


def _values(design: Design, stage: str, arm: str, metric: str) -> NDArray[np.float64] | None:
    """[split, partition, initialization] or, with classifier seeds, one axis more; None if a run lacks it."""
    rows = {key: _measured(run, stage, arm, metric) for key, run in design.runs.items()}
    sizes = {len(row) for row in rows.values()}
    if len(sizes) != 1 or 0 in sizes:
        return None
    shape = tuple(len(level) for level in design.levels)
    stacked = np.array([rows[key] for key in sorted(rows)]).reshape(*shape, -1)
    return stacked if stacked.shape[-1] > 1 else stacked[..., 0]


def _measured(run: Run, stage: str, arm: str, metric: str) -> list[float]:
    """Values by classifier seed, or the one value of a stage without such seeds."""
    found = run.stages.get(stage)
    rows = [
        row for row in (found.metrics if found else []) if row.get("arm") == arm and row["metric"] == metric
    ]
    rows = sorted(rows, key=lambda row: row.get("seed") or 0)
    return [float(row["value"]) for row in rows if row.get("value") is not None]


def render_variance(experiment: str, design: Design, responses: Sequence[Response], simulated: bool) -> str:
    """The page as Markdown."""
    title = f"# {'SIMULATED — ' if simulated else ''}Variance: {experiment}"
    picture = f"![Where the spread comes from](figures/{FIGURE}.png)"
    return "\n\n".join([title, variance_text(design, responses, simulated), picture]) + "\n"


def variance_text(design: Design, responses: Sequence[Response], simulated: bool) -> str:
    """What was run, how far the numbers spread, and where the spread comes from."""
    mark = "**SIMULATED.** " if simulated else ""
    levels = "; ".join(
        f"{name}: {', '.join(map(str, level))}" for name, level in zip(SETTINGS, design.levels, strict=True)
    )
    spread = [
        [cell(item.label), number(item.mean), number(item.std), f"{number(item.low)} to {number(item.high)}"]
        for item in responses
    ]
    return "\n\n".join(
        [
            f"{mark}{len(design.runs)} runs, every combination of {levels}. Test AUROC of each is decomposed by the"
            " random-effects ANOVA of a balanced crossed design (method of moments): a component is the variance one"
            " source would cause alone; its SD is in units of AUROC.",
            table(["AUROC", "mean", "SD", "range"], spread, right=range(1, 4)),
            _components(responses),
            "- An SD of 0 with (<0): the estimate of the variance was negative, that is, about zero.\n"
            f"- *{RESIDUAL}*: larger interactions, which one value per cell cannot tell from error.\n"
            "- Two or three levels of a factor give one or two degrees of freedom: its SD is a rough figure,"
            " often off by a factor of two.\n"
            "- *ECG split*: which ECG records are tested. *Partition*: which client holds what, and which beat goes"
            " with which image. *Initialization*: weights, batches and masks. *Classifier seed*: weights and batches"
            " of the TSTR classifier. The paper's ± holds only the last or the third of them.",
        ]
    )


def variance_section(log_dir: Path, experiment: str, simulated: bool) -> Section | None:
    """The decomposition for the report of ``NAME/paper``, from the runs of ``NAME/variance`` if there are any.

    Raises:
        NotRunError: There are runs, but they are no complete design.
    """
    root, _, last = experiment.rpartition("/")
    found = find_runs(log_dir, f"{root}/variance") if last == "paper" else []
    found = [run for run in found if run.is_simulated == simulated]
    if not found:
        return None
    try:
        design = crossed_design(found, f"{root}/variance")
        responses = decompose(design)
    except ConfigError as error:
        raise NotRunError(str(error)) from error
    if not responses:
        return None
    caption = "Shares of the variance of single values; each source alone, then their interactions."
    figure = ReportFigure(FIGURE, "Where the spread comes from", caption, _figure(responses, simulated))
    text = variance_text(design, responses, simulated)
    return Section("Variance between runs", f"Other runs than those above.\n\n{text}", (figure,))


def _figure(responses: Sequence[Response], simulated: bool) -> Figure:
    shares = {item.label: {one.name: one.share for one in item.components} for item in responses}
    return variance_bars(shares, simulated=simulated)


def _components(responses: Sequence[Response]) -> str:
    """Main effects, then interactions, the residual last."""
    names = dict.fromkeys(one.name for item in responses for one in item.components)
    rows = []
    for name in sorted(names, key=lambda name: (name == RESIDUAL, name.count("×"))):
        row = [cell(name)]
        for item in responses:
            one = next((one for one in item.components if one.name == name), None)
            row.append(_component(one) if one else "")
        rows.append(row)
    header = ["SD (share of variance)", *(cell(item.label) for item in responses)]
    return table(header, rows, right=range(1, len(header)))


def _component(one: VarianceComponent) -> str:
    share = "" if math.isnan(one.share) else f" ({one.share:.0%})"
    return f"{number(one.standard_deviation)}{' (<0)' if one.variance < 0 else share}"
