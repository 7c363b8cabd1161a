"""Runs: hits are not computed again, nothing finished is lost, nothing half-done passes for done."""

from __future__ import annotations

import json
import logging
import math
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from bench import calls, chain, plan, run, runner, start, statuses, toy
from toystages.behavior import ToyError

from fedsynth.errors import ArtifactError, ConfigError, PrivacyError
from fedsynth.pipeline.runner import Selection, Terminated, downstream

ALL = ["measure", "publish", "total"]


def result(done: dict[str, Any], name: str) -> float:
    return float(json.loads(done[name]["artifact"].file("result.json").read_text()))


# -- hits ----------------------------------------------------------------------------------------------------


def test_a_run_computes_every_stage_from_the_results_of_its_inputs(tmp_path: Path) -> None:
    done = run(tmp_path, chain())
    assert statuses(done) == dict.fromkeys(ALL, "computed")
    assert [result(done, name) for name in ALL] == [1.0, 2.0, 3.0]


def test_the_same_run_again_calls_no_stage(tmp_path: Path) -> None:
    first = run(tmp_path, chain())
    second = run(tmp_path, chain())
    assert statuses(second) == dict.fromkeys(ALL, "cached")
    assert calls(tmp_path) == ALL
    assert {n: e["artifact"] for n, e in first.items()} == {n: e["artifact"] for n, e in second.items()}


def test_a_changed_setting_computes_only_what_depends_on_it(tmp_path: Path) -> None:
    run(tmp_path, chain())
    done = run(tmp_path, chain(publish={"value": 5.0}))
    assert statuses(done) == {"measure": "cached", "publish": "computed", "total": "computed"}
    assert result(done, "total") == 7.0


def test_results_of_earlier_settings_are_still_there(tmp_path: Path) -> None:
    run(tmp_path, chain())
    run(tmp_path, chain(publish={"value": 5.0}))
    assert set(statuses(run(tmp_path, chain())).values()) == {"cached"}


def test_what_happens_is_announced_in_order(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    run(tmp_path, {"one": toy("constant")}, heard=heard)
    run(tmp_path, {"one": toy("constant")}, heard=heard)
    assert heard == [("one", "running"), ("one", "computed"), ("one", "cached")]


def test_a_damaged_artifact_is_computed_again_and_no_other(tmp_path: Path) -> None:
    done = run(tmp_path, chain())
    done["publish"]["artifact"].file("result.json").write_text("9.9")
    again = run(tmp_path, chain())
    assert statuses(again) == {"measure": "cached", "publish": "computed", "total": "cached"}
    assert result(again, "publish") == 2.0


# -- only, from, force ---------------------------------------------------------------------------------------


def test_only_runs_the_named_stages_and_reports_what_else_is_stored(tmp_path: Path) -> None:
    done = run(tmp_path, chain(), Selection(only=("measure",)))
    assert statuses(done) == {"measure": "computed"}
    done = run(tmp_path, chain(), Selection(only=("publish",)))
    assert statuses(done) == {"measure": "cached", "publish": "computed"}
    assert calls(tmp_path) == ["measure", "publish"]


def test_from_runs_a_stage_and_all_that_depend_on_it(tmp_path: Path) -> None:
    stages = chain() | {"apart": toy("constant")}
    run(tmp_path, stages, Selection(only=("measure",)))
    done = run(tmp_path, stages, Selection(start="publish"))
    assert statuses(done) == {"measure": "cached", "publish": "computed", "total": "computed"}


def test_downstream_is_transitive() -> None:
    stages = chain() | {"apart": toy("constant")}
    assert downstream(plan(stages), "measure") == set(ALL)
    assert downstream(plan(stages), "total") == {"total"}


def test_force_computes_anew_what_is_stored_and_what_depends_on_it_hits(tmp_path: Path) -> None:
    run(tmp_path, chain())
    done = run(tmp_path, chain(), Selection(force=("publish",)))
    assert statuses(done) == {"measure": "cached", "publish": "computed", "total": "cached"}
    assert calls(tmp_path) == [*ALL, "publish"]


def test_force_starts_from_scratch(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"one": toy("constant", behavior="interrupt")})
    with pytest.raises(ToyError):
        run(tmp_path, {"one": toy("constant", behavior="fail")}, Selection(force=("one",)))
    assert list(tmp_path.glob("one/*.partial/checkpoint")) == []


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (
            Selection(only=("totl",)),
            r"only names no stage of this run: 'totl'\. Stages: measure, publish, total",
        ),
        (Selection(start="totl"), r"from names no stage of this run: 'totl'"),
        (Selection(force=("totl",)), r"force names no stage of this run: 'totl'"),
        (Selection(only=("total",), start="total"), r"only=.* and from=total cannot be combined"),
        (Selection(only=("total",), force=("publish",)), r"force names stages that .* leaves out: publish"),
    ],
)
def test_an_impossible_selection_is_refused_before_anything_runs(
    tmp_path: Path, selection: Selection, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, chain(), selection)
    assert calls(tmp_path) == []


def test_a_missing_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    stages = {"apart": toy("constant")} | chain()
    with pytest.raises(ArtifactError, match=r"stages\.total needs 'publish'.*add publish to only"):
        run(tmp_path, stages, Selection(only=("apart", "total")))
    assert calls(tmp_path) == []


def test_a_stored_stage_needs_no_inputs(tmp_path: Path) -> None:
    done = run(tmp_path, chain())
    subprocess.run(["rm", "-r", str(done["publish"]["artifact"].path)], check=True)
    assert statuses(run(tmp_path, chain(), Selection(only=("total",))))["total"] == "cached"


# -- failures ------------------------------------------------------------------------------------------------


def test_a_failing_stage_keeps_what_was_finished_before_it(tmp_path: Path) -> None:
    with pytest.raises(ToyError, match="told to fail"):
        run(tmp_path, chain(total={"behavior": "fail"}))
    done = run(tmp_path, chain())
    assert statuses(done) == {"measure": "cached", "publish": "cached", "total": "computed"}


@pytest.mark.parametrize(
    ("said", "shown"),
    [("no direction", "stages.one: no direction"), ("stages.one.rank is low", "stages.one.rank is low")],
)
def test_a_refusal_names_its_stage_once(tmp_path: Path, said: str, shown: str) -> None:
    with pytest.raises(PrivacyError) as caught:
        run(tmp_path, {"one": toy("constant", behavior=f"refuse {said}")})
    assert str(caught.value) == shown


def test_an_interrupted_stage_leaves_its_checkpoint_and_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"one": toy("constant", behavior="interrupt")})
    (checkpoint,) = tmp_path.glob("one/*.partial/checkpoint")
    assert checkpoint.read_text() == "epoch 3"
    assert statuses(run(tmp_path, {"one": toy("constant")})) == {"one": "computed"}
    assert list(tmp_path.glob("one/*.partial")) == []


def test_an_interruption_that_lightning_turns_into_an_exit_is_still_an_interruption(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"one": toy("constant", behavior="interrupt as lightning does")})
    assert list(tmp_path.glob("one/*/manifest.json")) == []


def test_a_termination_that_lightning_turns_into_an_exit_without_status_is_143(tmp_path: Path) -> None:
    with pytest.raises(Terminated) as caught:
        run(tmp_path, {"one": toy("constant", behavior="terminate as lightning does")})
    assert caught.value.code == 143
    assert list(tmp_path.glob("one/*/manifest.json")) == []


def test_a_full_disk_in_a_stage_is_one_message_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match=r"stages\.one could not write .* disk is full.*LOG_DIR.*same command"
    ):
        run(tmp_path, {"one": toy("constant", behavior="full")})
    assert statuses(run(tmp_path, {"one": toy("constant")})) == {"one": "computed"}


def test_a_stage_killed_in_the_middle_leaves_no_artifact_and_none_of_its_output(tmp_path: Path) -> None:
    process = start(tmp_path, chain(publish={"behavior": f"wait:{tmp_path / 'never'}"}))
    wait_for(process, lambda: list(tmp_path.glob("publish/*.partial/output/half-written.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = run(tmp_path, chain())
    assert statuses(done) == {"measure": "cached", "publish": "computed", "total": "computed"}
    assert done["publish"]["artifact"].manifest["files"].keys() == {"result.json"}
    assert {path.name for path in done["publish"]["artifact"].path.iterdir()} == {
        "manifest.json",
        "result.json",
    }


def test_two_runs_at_once_compute_a_stage_once_and_the_second_hits(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stages = chain(publish={"behavior": f"wait:{gate}"})
    first = start(tmp_path, stages)
    wait_for(first, lambda: list(tmp_path.glob("publish/*.partial/output/half-written.json")))
    second = start(tmp_path, stages)
    # The second hits `measure`, then stands at the lock of `publish`; 0.5 s is time to do wrong.
    time.sleep(0.5)
    assert second.poll() is None
    gate.touch()
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    first_statuses, second_statuses = (json.loads(output) for output, _ in outputs)
    assert first_statuses == dict.fromkeys(ALL, "computed")
    assert second_statuses["publish"] == "cached"
    assert "waiting for it" in outputs[1][1]
    assert sorted(calls(tmp_path)) == sorted(ALL)
    assert list(tmp_path.glob("*/*.corrupt*")) == []


def wait_for(process: subprocess.Popen[str], condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- manifests -----------------------------------------------------------------------------------------------


def test_a_manifest_says_all_about_its_artifact(tmp_path: Path) -> None:
    done = run(tmp_path, chain())
    artifact = done["publish"]["artifact"]
    manifest = json.loads((artifact.path / "manifest.json").read_text())
    assert manifest == artifact.manifest
    assert manifest.pop("seconds") >= 0
    digest = manifest["files"]["result.json"].pop("sha256")
    parts = manifest.pop("key_parts")
    assert len(digest) == 64
    assert parts.keys() == {"kind", "code", "settings", "trainer", "inputs", "data"}
    assert manifest == {
        "stage": "publish",
        "kind": "publish",
        "key": artifact.key,
        "side": "client",
        "sensitivity": "released",
        "simulated": False,
        "settings": {"value": 1, "behavior": "normal"},
        "trainer": {},
        "inputs": {"numbers": done["measure"]["artifact"].key},
        "metrics": [
            {"arm": "toy", "metric": "sum", "value": 2.0, "seed": 42, "ci_low": None, "ci_high": None}
        ],
        "ledger": [{"epsilon": 1.0}],
        "uncovered": ["the number of numbers"],
        "notes": {"fed": {"numbers": 1.0}},
        "files": {"result.json": {"bytes": 3}},
        "data": [],
        "environment": {"threads": 1},
        "commit": "abc",
    }


def test_the_trainer_is_in_the_manifest_of_a_trained_stage(tmp_path: Path) -> None:
    done = runner(tmp_path).run(plan({"train": toy("train")}, {"max_epochs": 3, "devices": 1}), Selection())
    assert done["train"]["artifact"].manifest["trainer"] == {"max_epochs": 3, "devices": 1}


def test_simulated_data_mark_everything_made_of_them_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_SIMULATED", "1")
    done = run(tmp_path, chain() | {"apart": toy("constant")})
    marks = {name: entry["artifact"].manifest["simulated"] for name, entry in done.items()}
    assert marks == {"measure": True, "publish": True, "total": True, "apart": False}


def test_a_private_result_is_stored_as_private(tmp_path: Path) -> None:
    stages = chain(publish={"value": math.inf}, total={"as_auditor": True})
    manifest = run(tmp_path, stages)["total"]["artifact"].manifest
    assert (manifest["side"], manifest["sensitivity"]) == ("auditor", "private")
    assert run(tmp_path, stages)["total"]["artifact"].manifest == manifest


def test_finished_runs_leave_no_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(tmp_path, chain())
        run(tmp_path, chain())
    assert caplog.records == []
