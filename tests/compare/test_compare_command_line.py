"""``python -m fedsynth.compare``: which runs a command line means, and what it says when it means none."""

from __future__ import annotations

import json

import pytest

from fedsynth.compare.__main__ import main, parse_arguments
from fedsynth.compare.selection import select_runs
from fedsynth.errors import ArtifactError, ConfigError


def ids(selection):
    return [run.run_id for run in selection.runs]


def test_default_is_the_experiment_of_the_newest_run(lab):
    lab.run(42, experiment="old", created="2030-01-01T00:00:00Z")
    for seed in (42, 43):
        lab.run(seed, created=f"2030-01-0{seed - 40}T00:00:00Z")
    assert ids(select_runs(lab.log_dir)) == ["run-42-4", "run-43-4"]


def test_several_experiments_and_the_newest_of_them(lab):
    for number, name in enumerate(("a", "b/c", "d")):
        lab.run(42, run_id=name[0], experiment=name, created=f"2030-01-0{number + 1}T00:00:00Z")
    assert ids(select_runs(lab.log_dir, experiments=["a", "b/c"])) == ["a", "b"]
    assert ids(select_runs(lab.log_dir, experiments=["a", "b/c"], last=1)) == ["b"]
    assert ids(select_runs(lab.log_dir, last=2)) == ["b", "d"]


def test_runs_are_named_by_id_unique_start_or_folder_and_count_once(lab):
    folder = lab.run(42, run_id="abc-1").path
    lab.run(43, run_id="abd-2")
    assert ids(select_runs(lab.log_dir, runs=[str(folder), "abd", "abc-1"])) == ["abc-1", "abd-2"]


def test_a_damaged_run_is_left_out_with_a_remark_unless_it_was_named(lab):
    lab.run(42)
    (lab.run(43).path / "run.json").write_text("{")
    selection = select_runs(lab.log_dir, experiments=["fake"])
    assert ids(selection) == ["run-42-4"]
    (remark,) = selection.remarks
    assert "fake/run-43-4 is left out" in remark
    assert "not valid JSON" in remark
    with pytest.raises(ArtifactError, match="not valid JSON"):
        select_runs(lab.log_dir, runs=["run-43-4"])


@pytest.mark.parametrize(
    ("key", "value"), [("seed", "many"), ("stages", [1]), ("config", [1]), ("stages", {"clients": 3})]
)
def test_a_file_of_another_form_is_an_error_in_words(lab, key, value):
    lab.run(42)
    path = lab.run(43).path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    (remark,) = select_runs(lab.log_dir).remarks
    assert f"version: {key}" in remark
    assert "was not written by this version" in remark
    with pytest.raises(ArtifactError, match="not written by this version"):
        select_runs(lab.log_dir, runs=["run-43-4"])


def test_metrics_of_another_form_are_an_error_in_words(lab):
    run = lab.run(42)
    path = run.stages["audit"].path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["metrics"].append({"name": "x"})
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"metrics\[\d+\]\.metric must be text, got None"):
        select_runs(lab.log_dir, runs=["run-42-4"])


def test_an_experiment_of_damaged_runs_only_is_explained(lab):
    lab.run(42, experiment="other")
    (lab.run(43).path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="No run of experiment 'fake'"):
        select_runs(lab.log_dir, experiments=["fake"])


def test_a_run_killed_at_its_start_gets_a_remark(lab):
    lab.run(42)
    (lab.log_dir / "runs/fake/killed/config").mkdir(parents=True)
    (lab.log_dir / "runs/other/killed/config").mkdir(parents=True)
    (remark,) = select_runs(lab.log_dir, experiments=["fake"]).remarks
    assert remark == (
        "fake/killed is left out: it has no run.json, because it stopped before its first stage (data not found, or "
        "killed)."
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnus=x"], "Did you mean runs="),
        (["fake"], "key=value"),
        (["last=0"], "at least 1"),
        (["last=1", "last=2"], "given twice"),
        (["runs="], "empty"),
        (["runs=,"], "empty"),
        (["runs=a", "experiment=b"], "leave out"),
        (["logger=csv"], "logger must be one of"),
    ],
)
def test_unreadable_command_lines_are_explained(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_arguments(words)


def test_names_are_between_commas_or_spaces_and_folders_may_have_spaces(tmp_path):
    assert parse_arguments(["runs=a,b c, a"]).runs == ("a", "b", "c")
    (tmp_path / "my runs").mkdir()
    assert parse_arguments([f"runs={tmp_path / 'my runs'}"]).runs == (str(tmp_path / "my runs"),)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"runs": ["run-9"]}, "no run 'run-9'"),
        ({"runs": ["run-4"]}, "fits 2 runs"),
        ({"experiments": ["fkae"]}, "Did you mean fake"),
        ({"last": 5}, "only 2 runs"),
    ],
)
def test_choices_that_mean_no_run_are_explained(lab, choice, message):
    lab.run(42)
    lab.run(43)
    with pytest.raises(ConfigError, match=message):
        select_runs(lab.log_dir, **choice)


def test_an_empty_log_folder_is_explained(lab):
    with pytest.raises(ConfigError, match="No run to compare"):
        select_runs(lab.log_dir)


def test_the_program_prints_groups_marks_and_the_table_and_writes_the_page(lab, capsys):
    lab.run(42)
    lab.run(43, simulated=True, finished=False, keep=("clients", "fusion_encoder"))
    assert main(["experiment=fake", f"log_dir={lab.log_dir}"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "A: fake (1 run",
        "SIMULATED comparison",
        "! unfinished: run-43-4",
        "encoder: X-ray and ECG",
        "0.5000",
    ):
        assert words in printed
    assert str(lab.log_dir / "compare" / "fake.html") in printed
    assert (lab.log_dir / "compare" / "fake.html").is_file()


def test_one_run_and_a_page_of_ones_own(lab, tmp_path, capsys):
    lab.run(42)
    assert main(["last=1", f"log_dir={lab.log_dir}", f"out={tmp_path / 'x.html'}"]) == 0
    assert (tmp_path / "x.html").is_file()
    assert str(tmp_path / "x.html") in capsys.readouterr().out


def test_errors_are_one_line_and_exit_code_one(lab, capsys):
    assert main(["runs=nothing", f"log_dir={lab.log_dir}"]) == 1
    assert capsys.readouterr().err.startswith("error: runs: no run 'nothing'")


def test_help_prints_the_keys(capsys):
    assert main(["--help"]) == 0
    assert "runs=" in capsys.readouterr().out
