"""The comparison is one W&B run with page, tables, figures and picture."""

from __future__ import annotations

import pytest

from fedsynth.compare import compare_runs
from fedsynth.compare.tracking import log_comparison
from fedsynth.errors import ConfigError


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / f"wandb-{name}"))
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def logged(monkeypatch):
    """Everything passed to ``Run.log``."""
    import wandb

    calls = []
    log = wandb.Run.log
    monkeypatch.setattr(
        wandb.Run, "log", lambda self, data, **more: calls.append((self, data)) or log(self, data)
    )
    return calls


@pytest.mark.slow
def test_several_runs_are_in_the_group_of_comparisons(lab, tmp_path, logged):
    runs = [
        lab.run(seed, run_id=f"{e}-{seed}", epsilon=e, simulated=True)
        for e in (1.0, 4.0)
        for seed in (42, 43)
    ]
    files = compare_runs(runs, tmp_path / "page.html")
    id = log_comparison(files, {"wandb": {}}, tmp_path / "wandb-files")
    ((run, media),) = logged
    assert (run.group, run.job_type, run.id) == ("fake/compare", "compare", id)
    assert run.name == "SIMULATED compare fake"
    assert {"compare/page", "compare/results", "compare/settings", "compare/sweep_picture"} <= set(media)
    assert sum(name.startswith("compare/privacy_utility/") for name in media) == len(files.figures[1].choices)
    cells = [cell for row in files.results.rows for cell in row.cells if cell is not None]
    assert len(media["compare/results"].data) == len(cells)
    (written,) = (tmp_path / "wandb-files" / "wandb").glob("offline-run-*/*.wandb")
    assert written.stat().st_size > 0


@pytest.mark.slow
def test_one_run_joins_its_own_group_and_the_same_runs_keep_their_id(lab, tmp_path, logged):
    files = compare_runs([lab.run(42)], tmp_path / "page.html")
    ids = {log_comparison(files, {"wandb": {}}, tmp_path / str(n)) for n in range(2)}
    assert {run.group for run, _ in logged} == {"fake/run-42-4"}
    assert len(ids) == 1


@pytest.mark.parametrize("config", [None, {}, {"csv": {}}])
def test_without_wandb_nothing_is_logged(lab, tmp_path, config):
    files = compare_runs([lab.run(42)], tmp_path / "page.html")
    assert log_comparison(files, config, tmp_path / "x") is None
    assert not (tmp_path / "x").exists()


def test_unknown_settings_are_refused(lab, tmp_path):
    files = compare_runs([lab.run(42)], tmp_path / "page.html")
    with pytest.raises(ConfigError, match=r"logger\.wandb\.mode"):
        log_comparison(files, {"wandb": {"mode": "ofline"}}, tmp_path / "x")
