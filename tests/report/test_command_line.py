"""``python -m fedsynth.report``: which runs a command line means, and what it says when it means none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import fedsynth.compare.__main__ as compare
from fedsynth.errors import ConfigError
from fedsynth.report.__main__ import main, parse_arguments
from fedsynth.report.selection import choose_runs


@pytest.fixture
def chosen(lab):
    def inner(*words: str) -> list[str]:
        request = parse_arguments([*words, f"log_dir={lab.log_dir}"])
        return [run.run_id for run in choose_runs(request)[0]]

    return inner


def test_default_is_the_newest_run(lab, chosen):
    lab.run(42, created="2030-01-02T00:00:00Z")
    lab.run(43, created="2030-01-01T00:00:00Z")
    assert chosen() == ["run-42"]


def test_experiment_takes_the_newest_finished_run_of_each_seed_with_equal_settings(lab, chosen):
    lab.run(42, run_id="old-42", created="2030-01-01T00:00:00Z")
    lab.run(42, run_id="new-42", created="2030-01-04T00:00:00Z")
    lab.run(43, run_id="killed-43", created="2030-01-05T00:00:00Z", finished=False)
    lab.run(43, run_id="done-43", created="2030-01-02T00:00:00Z")
    lab.run(44, run_id="other-44", created="2030-01-03T00:00:00Z", epsilon=1.0)
    lab.run(45, run_id="else-45", experiment="else")
    assert chosen("experiment=fake") == ["new-42", "done-43"]


def test_a_seed_with_other_settings_is_reported_as_left_out(lab):
    lab.run(42, created="2030-01-02T00:00:00Z")
    lab.run(43, created="2030-01-01T00:00:00Z", epsilon=1.0)
    request = parse_arguments(["experiment=fake", f"log_dir={lab.log_dir}"])
    (remark,) = choose_runs(request)[1]
    assert "run-43" in remark
    assert "epsilon" in remark


def test_runs_are_named_by_id_unique_start_or_folder(lab, chosen):
    folder = lab.run(42, run_id="abc-1")
    lab.run(43, run_id="abd-2")
    assert chosen(f"runs={folder},abd") == ["abc-1", "abd-2"]


def test_last_takes_the_newest(lab, chosen):
    for seed in (42, 43, 44):
        lab.run(seed, created=f"2030-01-0{seed - 41}T00:00:00Z")
    assert chosen("last=2") == ["run-43", "run-44"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experimet=x"], "Did you mean experiment="),
        (["fake"], "key=value"),
        (["last=0"], "at least 1"),
        (["last=x"], "at least 1"),
        (["last=1", "last=2"], "given twice"),
        (["experiment="], "empty"),
        (["runs=a", "last=2"], "leave out"),
        (["allow_mixed=maybe"], "true or false"),
    ],
)
def test_unreadable_command_lines_are_explained(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_arguments(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experiment=fkae"], "Did you mean fake"),
        (["runs=nothing"], "no run 'nothing'"),
        (["runs=run"], "fits 2 runs"),
        (["last=9"], "only 2 runs"),
    ],
)
def test_names_that_fit_no_run_are_explained(lab, chosen, words, message):
    lab.run(42)
    lab.run(43)
    with pytest.raises(ConfigError, match=message):
        chosen(*words)


def test_an_empty_log_folder_is_explained(chosen):
    with pytest.raises(ConfigError, match="Run an experiment first"):
        chosen()


def test_main_writes_the_report_of_one_run_beside_it(lab, capsys):
    folder = lab.run(stages=("clients", "fusion_encoder"))
    assert main([f"log_dir={lab.log_dir}"]) == 0
    assert (folder / "report.md").is_file()
    assert "AUROC" in capsys.readouterr().out


def test_main_writes_combined_reports_below_reports(lab, capsys):
    for seed in (42, 43):
        lab.run(seed, stages=("clients", "fusion_encoder"))
    assert main(["experiment=fake", f"log_dir={lab.log_dir}"]) == 0
    assert (lab.log_dir / "reports" / "fake" / "report.html").is_file()
    assert "seeds 42, 43" in capsys.readouterr().out


def test_main_turns_user_errors_into_one_message(tmp_path: Path, capsys):
    assert main([f"log_dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: No finished or partial run")
    assert "Traceback" not in error


def test_help_is_the_module_docstring(capsys):
    assert main(["--help"]) == 0
    assert "python -m fedsynth.report" in capsys.readouterr().out


#: Place in run.json or, after "/", in the manifest of the encoder, and what is put there.
DAMAGE = [
    ("seed", None), ("seed", "x"), ("seed", math.nan), ("seed", True), ("seconds", math.nan), ("seconds", "x"),
    ("stages", "x"), ("stages", 7), ("stages", []), ("stages.encode", 7), ("stages.encode.path", 7),
    ("stages.encode.key", 7), ("stages.encode.seconds", "x"), ("config", "x"), ("config.stages", 7),
    ("config.stages.encode", "x"), ("config.paper", 7), ("experiment", 7), ("created", 7), ("environment", "x"),
    ("/metrics", 7), ("/metrics", [7]), ("/metrics", [{"value": 1.0}]), ("/metrics", [{"metric": "m", "value": "x"}]),
    ("/metrics", [{"metric": "m", "value": 1.0, "ci_low": "x"}]), ("/notes", 7), ("/ledger", [7]), ("/ledger", "x"),
    ("/uncovered", [7]), ("/data", [7]), ("/data", "x"), ("/settings", 7), ("/key_parts", 7), ("/inputs", "x"),
    ("/key", 7), ("/key_parts.settings", "x"),
]  # fmt: skip


@pytest.mark.parametrize("tool", [main, compare.main])
@pytest.mark.parametrize(("place", "value"), DAMAGE)
def test_a_damaged_file_is_one_message_that_names_it_and_the_place(lab, tmp_path, capsys, tool, place, value):
    run = lab.run(42)
    other = lab.run(43)
    path = run / "run.json"
    if place.startswith("/"):
        path = lab.log_dir / json.loads(path.read_text())["stages"]["encode"]["path"] / "manifest.json"
    content = json.loads(path.read_text())
    *parents, last = place.strip("/").split(".")
    inner = content
    for name in parents:
        inner = inner[name]
    assert last in inner, "the fake has no such place"
    inner[last] = value
    path.write_text(json.dumps(content))
    where = "output" if tool is main else "out"
    words = [f"runs={run},{other}", f"log_dir={lab.log_dir}", f"{where}={tmp_path / 'out.html'}"]
    assert tool(words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert str(path) in said
    assert place.strip("/") in said
    assert "Delete" in said
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("tool", [main, compare.main])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs=,"], "runs is empty"),
        ([f"runs={'x' * 5000}"], "no run 'xxx"),
        (["last=2", "runs=a"], "leave out"),
        (["last=²"], "whole number"),
    ],
)
def test_words_that_name_no_run_are_one_message(lab, capsys, tool, words, message):
    lab.run(42)
    assert tool([*words, f"log_dir={lab.log_dir}"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("tool", "key"), [(main, "output"), (compare.main, "out")])
def test_a_place_that_cannot_be_written_is_one_message(lab, tmp_path, capsys, tool, key):
    lab.run(42)
    (tmp_path / "file").write_text("kept")
    assert tool([f"log_dir={lab.log_dir}", f"{key}={tmp_path / 'file' / 'x.html'}"]) == 1
    assert f"Give another place with {key}=" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("first", [42, 43])
def test_a_run_killed_before_its_first_stage_is_reported_beside_a_whole_one(lab, tmp_path, first):
    runs = [lab.run(first, stages=(), finished=False), lab.run(85 - first)]
    words = [f"runs={runs[0]},{runs[1]}", f"log_dir={lab.log_dir}"]
    assert main([*words, f"output={tmp_path / 'out'}"]) == 0
    assert compare.main([*words, f"out={tmp_path / 'out.html'}"]) == 0
    assert main([f"runs={runs[0]}", f"log_dir={lab.log_dir}"]) == 0
