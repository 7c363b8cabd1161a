"""Where a run's curves and results are logged: CSV, TensorBoard, Weights & Biases, or several at once.

Each stage has its own loggers, and in W&B its own run: group = experiment/run_id, job_type = stage, an id
that the same command takes up again. The report is one more W&B run of the group. Only rank zero logs.
Lightning and wandb are imported when a logger is opened, not before.

The settings are ``config.logger``: one entry per logger, e.g. ``{"csv": {}, "wandb": {"mode": "offline"}}``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsynth.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from fedsynth.report.build import ReportFiles

#: Logger → its settings and their defaults.
LOGGERS: dict[str, dict[str, Any]] = {
    "csv": {"flush_every_n_steps": 100},
    "tensorboard": {},
    # None: the variable of the same name (WANDB_MODE, …), else wandb's own default.
    "wandb": {"mode": None, "project": None, "entity": None, "tags": []},
}
WANDB_MODES = ("online", "offline", "shared", "disabled")
DEFAULT_PROJECT = "fedsynth"
#: Of a record of a report or a comparison, as columns of a W&B table.
RECORD_COLUMNS = (
    "stage", "arm", "metric", "paper", "mean", "std", "ci_low", "ci_high", "seeds", "interval",
)  # fmt: skip


@contextmanager
def stage_loggers(
    logger_config: Mapping[str, Any] | None,
    *,
    experiment: str,
    run_id: str,
    stage: str,
    key: str,
    save_dir: Path,
    config: Mapping[str, Any],
) -> Iterator[list[Logger]]:
    """The Lightning loggers of one stage; closed on leaving, also when training failed.

    Args:
        logger_config: Logger name → its settings; empty or None for no logging.
        experiment: With ``run_id``, the W&B group.
        run_id: Of the run.
        stage: Of the run; the W&B job type. ``stage/part`` for one training of a stage that makes several.
        key: The stage's key; its first 12 digits and the run id make the W&B run id.
        save_dir: Folder that outlives the stage. Made if needed.
        config: The stage's settings, logged once.

    Yields:
        One logger per entry; stand-ins that log nothing on ranks other than zero.

    Raises:
        ConfigError: An unknown logger or setting, or a W&B mode that does not exist.
    """
    settings = check_loggers(logger_config)
    if not settings:
        yield []
        return
    if not _is_rank_zero():
        from lightning.pytorch.loggers.logger import DummyLogger

        # Not []: some callbacks refuse a Trainer without logger, on this rank only.
        yield [DummyLogger()]
        return
    save_dir = Path(save_dir)
    save_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        loggers: list[Logger] = []
        for name, values in settings.items():
            if name == "wandb":
                run = stack.enter_context(
                    wandb_run(
                        values,
                        group=f"{experiment}/{run_id}",
                        job_type=stage.partition("/")[0],
                        run_name=f"{stage} ({run_id})",
                        id=wandb_id(key[:12], run_id, *stage.split("/")[1:]),
                        save_dir=save_dir,
                        config=config,
                    )
                )
                loggers.append(_wandb_logger(run))
            else:
                loggers.append(stack.enter_context(_local_logger(name, values, save_dir, config)))
        yield loggers


def check_loggers(logger_config: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The settings of each configured logger, completed with defaults; an entry that is null or false is off.

    Raises:
        ConfigError: An unknown logger or setting, or a W&B mode that does not exist.
    """
    if logger_config is not None and not isinstance(logger_config, Mapping):
        raise ConfigError(
            f"logger must hold one section per logger, got {logger_config!r}. Say logger=csv or logger=none."
        )
    complete: dict[str, dict[str, Any]] = {}
    for name, values in (logger_config or {}).items():
        if values is None or values is False:
            continue
        if name not in LOGGERS:
            raise ConfigError(
                f"logger.{name} is unknown. Known: {', '.join(LOGGERS)}. Choose with logger=<file>."
            )
        if not isinstance(values, Mapping):
            raise ConfigError(f"logger.{name} must hold settings, got {values!r}. Write logger.{name}={{}}.")
        unknown = sorted(set(values) - set(LOGGERS[name]))
        if unknown:
            known = ", ".join(LOGGERS[name]) or "none"
            raise ConfigError(f"logger.{name} has no setting {', '.join(unknown)}. Known: {known}.")
        complete[name] = {**LOGGERS[name], **values}
    _check_values(complete)
    mode = complete.get("wandb", {}).get("mode")
    if mode is not None and mode not in WANDB_MODES:
        raise ConfigError(f"logger.wandb.mode must be one of {', '.join(WANDB_MODES)} or null, got {mode!r}.")
    return complete


def _check_values(loggers: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse values that a logger would stumble over when the first stage opens it."""
    rows = loggers.get("csv", {}).get("flush_every_n_steps", 1)
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise ConfigError(
            f"logger.csv.flush_every_n_steps must be a whole number ≥ 1, got {rows!r}. 100 is the default."
        )
    values = loggers.get("wandb", {})
    for name in ("project", "entity"):
        if not isinstance(values.get(name), str | None):
            raise ConfigError(
                f"logger.wandb.{name} must be a name, got {values[name]!r}. Quote it, or say null for the default."
            )
    tags = values.get("tags") or []
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise ConfigError(f"logger.wandb.tags must be a list of words, got {tags!r}. Say [first, second].")


def wandb_id(*parts: str) -> str:
    """A W&B run id: the parts joined, characters that W&B refuses replaced, at most 128 long."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts))[:128]


@contextmanager
def wandb_run(
    values: Mapping[str, Any],
    *,
    group: str,
    job_type: str,
    run_name: str,
    id: str,
    save_dir: Path,
    config: Mapping[str, Any],
) -> Iterator[Any]:
    """One W&B run, finished on leaving with exit code 1 if the body failed.

    Raises:
        ConfigError: W&B cannot start: not logged in, or no connection. The message says how to go on.
    """
    import wandb

    mode: Any = values.get("mode") or os.environ.get("WANDB_MODE") or None
    try:
        run = wandb.init(
            project=values.get("project") or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            entity=values.get("entity") or os.environ.get("WANDB_ENTITY") or None,
            group=group,
            job_type=job_type,
            name=run_name,
            id=id,
            # Offline, wandb writes a new local run of the same id, and joins them when they are synced.
            resume=None if mode in ("offline", "disabled") else "allow",
            dir=str(save_dir),
            mode=mode,
            tags=list(values.get("tags") or []),
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
    except (wandb.errors.Error, OSError) as error:
        raise ConfigError(
            f"W&B could not start for {job_type}: {error}. Log in (wandb login), or set WANDB_MODE=offline"
            " and upload later (wandb sync), or choose logger=csv."
        ) from error
    try:
        yield run
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


def log_report(
    files: ReportFiles, record: Mapping[str, Any], logger_config: Mapping[str, Any] | None, save_dir: Path
) -> str | None:
    """Log a finished report as the W&B run ``report`` of its group: table, figures, HTML, headline values.

    Args:
        files: What ``build_report`` returned.
        record: ``run.json`` of the run the report is about.
        logger_config: ``config.logger``; without ``wandb`` nothing is done.
        save_dir: Where W&B keeps its local files.

    Returns:
        The W&B run id, or None when W&B is not among the loggers or this is not rank zero.
    """
    values = check_loggers(logger_config).get("wandb")
    if values is None or not _is_rank_zero():
        return None
    import wandb

    experiment, run_id = str(record["experiment"]), str(record["run_id"])
    id = wandb_id("report", run_id)
    columns: list[str | int] = [*RECORD_COLUMNS, "place"]
    rows = [[getattr(item, str(column)) for column in columns] for item in files.records]
    mark = "SIMULATED " if files.simulated else ""
    with wandb_run(
        values,
        group=f"{experiment}/{run_id}",
        job_type="report",
        run_name=f"{mark}report ({run_id})",
        id=id,
        save_dir=Path(save_dir),
        config={name: record.get(name) for name in ("seed", "command", "commit", "simulated")},
    ) as run:
        media: dict[str, Any] = {f"report/{path.stem}": wandb.Image(str(path)) for path in files.figures}
        media["report/results"] = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        media["report/page"] = wandb.Html(files.html.read_text(encoding="utf-8"), inject=False)
        run.log(media)
        run.summary.update(_summary(files))
    return id


def _summary(files: ReportFiles) -> dict[str, float | bool]:
    summary: dict[str, float | bool] = {"simulated": files.simulated}
    for record in files.records:
        if record.mean is not None:
            summary["/".join(part for part in (record.stage, record.arm, record.metric) if part)] = (
                record.mean
            )
    return summary


@contextmanager
def _local_logger(
    name: str, values: Mapping[str, Any], save_dir: Path, config: Mapping[str, Any]
) -> Iterator[Logger]:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    logger: CSVLogger | TensorBoardLogger
    if name == "csv":
        # A new version_N folder for each attempt: CSVLogger empties the folder it is given, and a resumed
        # stage must not lose the first half of its curve.
        logger = CSVLogger(save_dir, name="csv", flush_logs_every_n_steps=values["flush_every_n_steps"])
    else:
        logger = TensorBoardLogger(save_dir, name="tensorboard", version="", default_hp_metric=False)
    try:
        logger.log_hyperparams(dict(config))
        yield logger
    except BaseException:
        logger.finalize("failed")
        raise
    logger.finalize("success")


def _wandb_logger(run: Any) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    if run.settings.mode != "disabled":
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run)


def _is_rank_zero() -> bool:
    from lightning.pytorch.utilities import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0
