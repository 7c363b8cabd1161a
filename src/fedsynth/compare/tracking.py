"""The comparison as one W&B run: page, table, figures, sweep picture."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsynth.compare.build import CompareFiles
from fedsynth.compare.factors import shown
from fedsynth.tracking import RECORD_COLUMNS, check_loggers, wandb_id, wandb_run


def log_comparison(
    files: CompareFiles, logger_config: Mapping[str, Any] | None, save_dir: Path
) -> str | None:
    """Log a comparison as the W&B run ``compare``.

    It joins the group of the run it is about when there is one run, and is in the group
    ``<experiments>/compare`` when there are several: W&B has one group per run.

    Args:
        files: What ``compare_runs`` returned.
        logger_config: As ``config.logger``; without ``wandb`` nothing is done.
        save_dir: Where W&B keeps its local files.

    Returns:
        The W&B run id, or None when W&B is not among the loggers.

    Raises:
        ConfigError: An unknown logger or setting; W&B cannot start.
    """
    values = check_loggers(logger_config).get("wandb")
    if values is None:
        return None
    import plotly.graph_objects as go
    import wandb

    runs = files.grouping.runs
    experiments = ",".join(dict.fromkeys(run.experiment for run in runs))
    ids = sorted(run.run_id for run in runs)
    id = wandb_id("compare", hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12])
    mark = "SIMULATED " if files.grouping.is_simulated else ""
    save_dir = Path(save_dir)
    save_dir.mkdir(parents=True, exist_ok=True)
    with wandb_run(
        values,
        group=f"{experiments}/{runs[0].run_id if len(runs) == 1 else 'compare'}",
        job_type="compare",
        run_name=f"{mark}compare {experiments}",
        id=id,
        save_dir=save_dir,
        config={"runs": ids, "groups": {group.tag: group.name for group in files.grouping.groups}},
    ) as run:
        media: dict[str, Any] = {
            "compare/page": wandb.Html(files.page.read_text(encoding="utf-8"), inject=False),
            "compare/results": _table(files),
            "compare/settings": _settings(files),
        }
        for figure in files.figures:
            for choice in figure.choices:
                chart = wandb.Plotly(go.Figure({"data": choice.data, "layout": choice.layout}))
                media[f"compare/{figure.name}/{choice.label}"] = chart
        if files.picture is not None:
            media["compare/sweep_picture"] = wandb.Image(str(files.picture))
        run.log(media)
        run.summary.update({"simulated": files.grouping.is_simulated, "runs": len(runs)})
    return id


def _table(files: CompareFiles) -> Any:
    import wandb

    rows = [
        [files.grouping.groups[index].name, *(getattr(record, name) for name in RECORD_COLUMNS)]
        for row in files.results.rows
        for index, record in enumerate(row.cells)
        if record is not None
    ]
    return wandb.Table(columns=["group", *RECORD_COLUMNS], data=rows, allow_mixed_types=True)


def _settings(files: CompareFiles) -> Any:
    import wandb

    columns: list[str | int] = ["setting", *(group.tag for group in files.grouping.groups)]
    rows = [[factor.key, *(shown(value) for value in factor.values)] for factor in files.grouping.factors]
    return wandb.Table(columns=columns, data=rows)
