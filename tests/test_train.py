"""The app: checks come first and fast, a plan writes nothing, a failure is one message and exit status 1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsynth import environment, run_sources, train
from fedsynth.composition import compose_config, resolved
from fedsynth.data import simulated
from fedsynth.environment import describe_environment, git_commit, prepare_process
from fedsynth.errors import ConfigError, PrivateInputError
from fedsynth.run import Run
from fedsynth.train import check_before_running

EXPERIMENT = "experiment=feddp_pald"
TOYS = Path(__file__).parent / "pipeline"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders that do not exist yet, for logs and for data."""
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def plain(text: str) -> str:
    """What was printed, without the frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())


# -- the boundary, in the real experiment --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "culprit", "supplier"),
    [
        (["stages.latent_ddpm.inputs.mixture=encode"], "latent_ddpm", "encode"),
        (["stages.mix.inputs.release=encode"], "mix", "encode"),
        (["stages.mix.inputs.release=release_nonprivate"], "mix", "release_nonprivate"),
        (["stages.latent_ddpm.inputs.mixture=mix_nonprivate"], "latent_ddpm", "mix_nonprivate"),
        (["privacy.epsilon=inf"], "mix", "release"),
        (["stages.release.as_auditor=true"], "mix", "release"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_no_edit_of_the_experiment_feeds_private_data_to_a_server(
    overrides: list[str], culprit: str, supplier: str
) -> None:
    words = [word if not word.endswith("as_auditor=true") else f"+{word}" for word in overrides]
    with pytest.raises(
        PrivateInputError, match=rf"stages\.{culprit} runs on the server .* '{supplier}', which is private"
    ):
        check_before_running([EXPERIMENT, *words, "plan=true"])


# -- plans ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["auto", "real", "simulated"])
@pytest.mark.parametrize("download", ["true", "false"])
def test_a_plan_without_data_says_so_and_writes_nothing(
    source: str, download: str, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [EXPERIMENT, "plan=true", f"data.source={source}", f"data.download={download}"]
    assert check_before_running(words) is False
    shown = plain(capsys.readouterr().out)
    fate = {
        ("auto", "true"): "a run would download them, or SIMULATED if that fails",
        ("auto", "false"): "Data would be SIMULATED",
        ("real", "true"): "a run would download them.",
        ("real", "false"): "a run would stop at once",
    }.get((source, download), "Data would be SIMULATED")
    assert fate in shown
    assert "(after download)" in shown
    assert "SIMULATED" not in shown or source != "real"
    assert written(folders) == []


def test_a_plan_knows_the_keys_of_simulated_data_that_are_there_and_writes_nothing_more(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "CHEST_SPLITS", {"train": 20, "val": 20, "test": 20})
    monkeypatch.setattr(run_sources, "source_names", lambda config: ["chestmnist"])
    words = [EXPERIMENT, "plan=true", "data.source=simulated"]
    config = resolved(compose_config(words))
    obtained = run_sources.obtain_sources(config)
    before = written(folders)
    assert run_sources.sources_on_disk(config) == (obtained, ["Data are SIMULATED."])

    assert check_before_running(words) is False
    rows = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if "_" in line}
    assert "(after download)" not in rows["pretrain_xray"]
    assert "(after download)" in rows["latent_ddpm"]
    assert written(folders) == before


def test_a_sweep_of_plans_plans_every_run(capsys: pytest.CaptureFixture[str], folders: Path) -> None:
    assert check_before_running(["-m", EXPERIMENT, "plan=true", "seed=1,2"]) is False
    assert capsys.readouterr().out.count("Plan (nothing is run)") == 2
    assert written(folders) == []


# -- checks before a run -------------------------------------------------------------------------------------


def test_a_good_config_is_to_be_run() -> None:
    assert check_before_running([EXPERIMENT]) is True


def test_a_sweep_with_one_bad_value_is_refused_before_any_run(folders: Path) -> None:
    with pytest.raises(ConfigError, match=r"epsilon must be > 0, got -1"):
        check_before_running(["--multirun", EXPERIMENT, "privacy.epsilon=4,-1"])
    assert written(folders) == []


def test_a_bad_value_in_one_plan_of_a_sweep_shows_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"got -1"):
        check_before_running(["--multirun", EXPERIMENT, "plan=true", "privacy.epsilon=4,-1"])
    assert capsys.readouterr().out == ""


def test_a_search_without_multirun_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sweeps over privacy\.epsilon: say make sweep"):
        check_before_running([EXPERIMENT, "hparams_search=epsilon"])


@pytest.mark.parametrize("flag", ["--config-name", "-cn", "--config-dir=elsewhere", "--experimental-rerun"])
def test_options_that_would_run_another_config_than_the_checked_one_are_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"{flag.split('=')[0]} is not an option.*experiment=NAME"):
        check_before_running([EXPERIMENT, flag, "train"])


@pytest.mark.parametrize(
    "words", [["--help"], ["--cfg", "job"], ["-c", "job", EXPERIMENT], ["--info", "plugins"]]
)
def test_questions_to_hydra_are_passed_on(words: list[str]) -> None:
    assert check_before_running(words) is True


def test_questions_about_an_unknown_experiment_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no 'typo'"):
        check_before_running(["--cfg", "job", "experiment=typo"])


def test_a_log_folder_nobody_can_write_is_refused_before_the_run(folders: Path) -> None:
    (folders / "logs").write_text("a file")
    with pytest.raises(ConfigError, match=r"logs.*(LOG_DIR|log_dir)"):
        check_before_running([EXPERIMENT])


@pytest.mark.parametrize("trainer", ["ddp", "ddp_sim"])
def test_several_processes_are_started_by_torchrun_only(
    trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.strategy=ddp .*WORLD_SIZE is not set.*make train"):
        check_before_running([EXPERIMENT, f"trainer={trainer}"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert check_before_running([EXPERIMENT, f"trainer={trainer}"]) is True


def test_a_trainer_of_one_process_is_refused_under_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"must be ddp for the 4 processes.*got auto.*trainer=ddp"):
        check_before_running([EXPERIMENT, "trainer=gpu"])


# -- one message, one exit status ----------------------------------------------------------------------------


def exit_status(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["train", *words])
    with pytest.raises(SystemExit) as caught:
        train.main()
    return caught.value.code


def test_an_error_is_one_message_on_standard_error_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(monkeypatch, EXPERIMENT, "privacy.epsilon=-1") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "stages.release.epsilon must be > 0, got -1" in plain(shown.err)
    assert "Traceback" not in shown.err


def test_an_interruption_says_how_to_go_on_and_is_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: list[str]) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "check_before_running", interrupted)
    assert exit_status(monkeypatch, EXPERIMENT) == 130
    assert "the same command goes on from there" in capsys.readouterr().err


def test_a_programming_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(train, "check_before_running", broken)
    with pytest.raises(ZeroDivisionError):
        train.main()


def test_ranks_other_than_the_first_are_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert exit_status(monkeypatch, EXPERIMENT, "privacy.epsilon=-1") == 1
    assert capsys.readouterr() == ("", "")


# -- in processes of their own -------------------------------------------------------------------------------

TELL = """
import atexit, sys, time
from fedsynth.train import main

def tell():
    heavy = sorted({"torch", "lightning", "torchmetrics", "matplotlib", "wandb"} & set(sys.modules))
    print("loaded", heavy, "seconds", time.process_time(), flush=True)

atexit.register(tell)
main()
"""


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--help"], 0, "stages: {}"),
        ([EXPERIMENT, "plan=true"], 0, "latent_ddpm"),
        ([EXPERIMENT, "privacy.delta=1"], 1, "stages.release.delta must be > 0 and < 1"),
        (["experiment=typo"], 1, "there is no 'typo'"),
    ],
    ids=["help", "plan", "bad value", "unknown experiment"],
)
def test_answers_come_without_torch_in_seconds(
    words: list[str], status: int, says: str, folders: Path
) -> None:
    result = subprocess.run([sys.executable, "-c", TELL, *words], capture_output=True, text=True, check=False)
    *_, told = result.stdout.splitlines()
    assert result.returncode == status, result.stderr
    assert says in plain(result.stdout + result.stderr)
    assert told.startswith("loaded [] ")
    # CPU time: a busy machine makes the clock on the wall meaningless.
    assert float(told.split()[-1]) < 3.0
    assert "Traceback" not in result.stderr
    assert written(folders) == []


def toy_command(second: str = "normal") -> list[str]:
    stages = {
        "first": {"stage": "toystages.constant", "value": 1, "behavior": "normal"},
        "second": {
            "stage": "toystages.total",
            "value": 2,
            "behavior": second,
            "inputs": {"release": "first"},
        },
    }
    text = ",".join(f"{name}:{as_override(config)}" for name, config in stages.items())
    words = [
        "+data=xray_ecg",
        f"++stages={{{text}}}",
        "experiment_name=toy",
        "logger=none",
        "trainer.num_threads=1",
    ]
    return [sys.executable, "-m", "fedsynth.train", *words]


def as_override(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{as_override(inner)}" for name, inner in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_command(folders: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOYS)}
    waiting = toy_command(f"wait:{folders / 'never'}")
    process = subprocess.Popen(waiting, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(folders.glob("logs/artifacts/second/*.partial/output/*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()

    result = subprocess.run(toy_command(), env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    records = [json.loads(path.read_text()) for path in folders.glob("logs/runs/toy/*/run.json")]
    (killed,) = (record for record in records if record["finished"] is None)
    assert set(killed["stages"]) == {"first"}  # how far it had come, for a report
    (record,) = (record for record in records if record["finished"])
    assert {name: stage["status"] for name, stage in record["stages"].items()} == {
        "first": "cached",
        "second": "computed",
    }
    assert record["experiment"] == "toy"
    assert record["simulated"] is False
    assert record["config"]["trainer"]["num_threads"] == 1
    for stage in record["stages"].values():
        assert (folders / "logs" / stage["path"] / "manifest.json").is_file()


@pytest.mark.slow
def test_a_stage_that_fails_for_want_of_space_is_one_message(folders: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOYS)}
    result = subprocess.run(toy_command("full"), env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "the disk is full" in plain(result.stderr)
    assert "Traceback" not in result.stderr
    assert [path.parent.parent.name for path in folders.glob("logs/artifacts/*/*/manifest.json")] == ["first"]


def test_curves_of_each_training_outlive_the_stage_beside_the_run(folders: Path) -> None:
    run = Run(compose_config([EXPERIMENT]), folders / "logs" / "runs" / "one")
    (planned,) = [planned for planned in run.plan({}) if planned.name == "latent_ddpm"]
    for part in ("last", "second"):
        with run._loggers("latent_ddpm", "k" * 64, planned.settings)(part) as loggers:
            for logger in loggers:
                logger.log_metrics({"train/loss": 0.5}, step=0)
    curves = list(folders.rglob("metrics.csv"))
    assert len(curves) == 2
    assert all(folders / "logs" / "runs" / "one" in path.parents for path in curves)


# -- the machine ---------------------------------------------------------------------------------------------


def test_threads_are_shared_among_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        monkeypatch.setenv("WORLD_SIZE", "2")
        prepare_process({"num_threads": 6})
        assert torch.get_num_threads() == 3
        prepare_process({"num_threads": 1})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"trainer\.accelerator=gpu.*no CUDA device.*trainer=cpu"):
        prepare_process({"accelerator": "gpu"})


def test_the_environment_names_what_can_change_a_number() -> None:
    found = describe_environment({"accelerator": "cpu", "num_threads": 3})
    assert set(environment.PACKAGES) < set(found)
    assert (found["device"], found["threads"], found["processes"]) == ("cpu", 3, 1)
    assert json.loads(json.dumps(found)) == found


def test_outside_a_checkout_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    assert git_commit() == "unknown"
