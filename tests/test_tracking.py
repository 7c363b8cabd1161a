"""Loggers: several at once, closed whatever happens, rank zero only, W&B offline really writes a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsynth.errors import ConfigError
from fedsynth.tracking import check_loggers, log_report, stage_loggers, wandb_id

KEY = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)


def open_loggers(logger_config, save_dir: Path, stage: str = "mix"):
    return stage_loggers(
        logger_config,
        experiment="fake/nested",
        run_id="20300101-000000-0001",
        stage=stage,
        key=KEY,
        save_dir=save_dir,
        config={"epsilon": 4.0, "nested": {"a": [1, 2]}},
    )


@pytest.mark.parametrize("nothing", [None, {}, {"csv": None}, {"csv": False}])
def test_no_logger_is_no_logger(nothing, tmp_path):
    with open_loggers(nothing, tmp_path / "x") as loggers:
        assert loggers == []
    assert not (tmp_path / "x").exists()


def test_csv_holds_what_was_logged(tmp_path):
    with open_loggers({"csv": {}}, tmp_path) as (logger,):
        logger.log_metrics({"val/loss": 0.25}, step=3)
    (path,) = tmp_path.rglob("metrics.csv")
    assert path.read_text().splitlines() == ["step,val/loss", "3,0.25"]


def test_a_resumed_stage_keeps_the_curve_of_its_first_attempt(tmp_path):
    for value in (0.25, 0.5):
        with open_loggers({"csv": {}}, tmp_path) as (logger,):
            logger.log_metrics({"loss": value}, step=0)
    written = [path.read_text() for path in sorted(tmp_path.rglob("metrics.csv"))]
    assert ["0.25" in written[0], "0.5" in written[1]] == [True, True]


def test_loggers_are_closed_when_the_stage_fails(tmp_path):
    def fail() -> None:
        with open_loggers({"csv": {}}, tmp_path) as (logger,):
            logger.log_metrics({"loss": 0.25}, step=0)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    (path,) = tmp_path.rglob("metrics.csv")
    assert "0.25" in path.read_text()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"csw": {}}, "logger.csw is unknown"),
        ({"csv": 3}, "must hold settings"),
        ({"csv": {"flsh": 1}}, "no setting flsh"),
        (3, "logger must hold one section per logger, got 3"),
        ({"csv": {"flush_every_n_steps": "abc"}}, "logger.csv.flush_every_n_steps must be .*'abc'"),
        ({"csv": {"flush_every_n_steps": 0}}, "logger.csv.flush_every_n_steps must be .*got 0"),
        ({"wandb": {"project": 3}}, "logger.wandb.project must be a name, got 3"),
        ({"wandb": {"tags": "a"}}, "logger.wandb.tags must be a list of words, got 'a'"),
        ({"wandb": {"mode": "ofline"}}, "logger.wandb.mode must be one of"),
    ],
)
def test_unknown_loggers_and_settings_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        check_loggers(config)


def test_other_ranks_log_nothing_but_have_a_logger(tmp_path, monkeypatch):
    from lightning.pytorch.utilities import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with open_loggers({"csv": {}, "wandb": {}}, tmp_path / "x") as loggers:
        assert [type(logger).__name__ for logger in loggers] == ["DummyLogger"]
    assert not (tmp_path / "x").exists()
    assert log_report(SimpleNamespace(), {}, {"wandb": {}}, tmp_path / "x") is None


@pytest.mark.parametrize("parts", [("a/b", "c d"), ("ä", "x" * 300)])
def test_run_ids_hold_only_what_wandb_accepts(parts):
    import re

    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", wandb_id(*parts))


@pytest.mark.slow
def test_all_loggers_at_once_write_and_wandb_is_one_finished_run_per_stage(tmp_path):
    import wandb

    for stage in ("mix", "release"):
        with open_loggers(
            {"csv": {}, "tensorboard": {}, "wandb": {"tags": ["t"]}}, tmp_path / stage, stage
        ) as loggers:
            run = loggers[2].experiment
            assert (run.group, run.job_type) == ("fake/nested/20300101-000000-0001", stage)
            assert run.id == "0123456789ab-20300101-000000-0001"
            assert run.project == "fedsynth"
            assert run.config["epsilon"] == 4.0
            for logger in loggers:
                logger.log_metrics({"val/loss": 0.25}, step=1)
        assert wandb.run is None
        assert list((tmp_path / stage).rglob("events.out.tfevents*"))
        (written,) = (tmp_path / stage / "wandb").glob("offline-run-*/*.wandb")
        assert written.stat().st_size > 0


@pytest.mark.slow
def test_wandb_run_is_finished_as_failed_when_the_stage_fails(tmp_path, monkeypatch):
    import wandb

    codes = []
    finish = wandb.Run.finish
    monkeypatch.setattr(
        wandb.Run, "finish", lambda self, exit_code=None: codes.append(exit_code) or finish(self, exit_code)
    )
    with pytest.raises(RuntimeError, match="stop"), open_loggers({"wandb": {}}, tmp_path):
        raise RuntimeError("stop")
    assert codes == [1]


@pytest.mark.slow
def test_report_run_writes_table_figures_and_page(tmp_path):
    figure, page = tmp_path / "roc.png", tmp_path / "report.html"
    from PIL import Image

    Image.new("RGB", (4, 4)).save(figure)
    page.write_text("<p>x</p>")
    record = {
        "stage": "s",
        "arm": "a",
        "metric": "m",
        "mean": 0.5,
        "std": None,
        "ci_low": None,
        "ci_high": None,
    }
    record |= {"seeds": 1, "paper": None, "interval": "none", "place": None}
    files = SimpleNamespace(
        records=(SimpleNamespace(**record),), figures=(figure,), html=page, simulated=True
    )
    run_json = {
        "experiment": "fake",
        "run_id": "r1",
        "seed": 42,
        "command": "c",
        "commit": "0",
        "simulated": True,
    }
    assert log_report(files, run_json, {"csv": {}}, tmp_path / "none") is None
    assert log_report(files, run_json, {"wandb": {}}, tmp_path) == "report-r1"
    media = {path.suffix for path in (tmp_path / "wandb").rglob("media/**/*") if path.is_file()}
    assert {".json", ".png", ".html"} <= media
