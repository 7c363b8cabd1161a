"""The Makefile turns what was typed into the right command. `make -n` only prints it, nothing is run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = {
    "help", "train", "sweep", "plan", "report", "reproduce", "compare", "test", "test-fast", "lint", "types",
    "format", "check", "lock", "clean", "clean-logs",
}  # fmt: skip

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A virtual environment as far as make can see: a folder with a fresh stamp."""
    folder = tmp_path / "venv"
    folder.mkdir()
    (folder / ".installed").touch()
    return folder


def make(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"VENV", "PYTHON", "DATA_DIR"}
    }
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def dry_run(installed: Path, *words: str, **environment: str) -> list[str]:
    """The words of the first command of a target as the shell would split them."""
    result = make("-n", f"VENV={installed}", *words, **environment)
    assert result.returncode == 0, result.stderr
    return shlex.split(result.stdout.replace("\\\n", " ").splitlines()[0])


def hydra_arguments(command: list[str]) -> list[str]:
    return command[command.index("fedsynth.train") + 1 :]


def test_make_alone_lists_exactly_the_targets() -> None:
    result = make()
    assert result.returncode == 0
    listed = re.findall(r"^  ([a-z-]+)  +\S", result.stdout.split("\n\n")[0], flags=re.MULTILINE)
    assert set(listed) == TARGETS
    assert result.stdout == make("help").stdout


def test_every_listed_target_can_be_made(installed: Path) -> None:
    for target in sorted(TARGETS):
        result = make("-n", f"VENV={installed}", target)
        assert result.returncode == 0, f"make -n {target}: {result.stderr}"


def test_typed_values_reach_hydra_in_order_and_readably(installed: Path) -> None:
    words = ("experiment=feddp_pald", "seed=43", "stages.release.epsilon=1", "data.split=[a,b]")
    printed = make("-n", f"VENV={installed}", "train", *words).stdout
    expected = (
        "python -m fedsynth.train experiment=feddp_pald seed=43 stages.release.epsilon=1 'data.split=[a,b]'"
    )
    assert expected in printed


@pytest.mark.parametrize(
    "word",
    [
        "data.classes=[a, b]", "data.note=it's", 'data.note="quoted"', "a=${seed}", "a=${oc.env:HOME}",
        "a=x$y", "a={b: 1, c: 2}", "a=p*.npz", "a=x#y", r"a=x\y", "a=50%", "a=x;y&z|w", "a=`b`", "a=b=c",
        "a=", "a=x seed=9", "+new.key=1", "++a=1", "data@stages.x.data=toy", "hydra/launcher=basic",
        "hydra=default", "names=a", "app=b", "ranks=3", "install=c", "name=d", "word=e", "c=f",
        "seed=42,43,44", "a=.inf",
    ],
)  # fmt: skip
def test_value_arrives_unchanged(installed: Path, word: str) -> None:
    assert hydra_arguments(dry_run(installed, "train", "experiment=e", word)) == ["experiment=e", word]


def test_last_of_two_values_wins(installed: Path) -> None:
    assert hydra_arguments(dry_run(installed, "train", "seed=1", "seed=2")) == ["seed=2"]


def test_overrides_carries_what_is_no_assignment(installed: Path) -> None:
    command = dry_run(installed, "train", "seed=1", "overrides=~logger '+a=[1, 2]' --cfg job b='${seed}'")
    assert hydra_arguments(command) == ["seed=1", "~logger", "+a=[1, 2]", "--cfg", "job", "b=${seed}"]


@pytest.mark.parametrize(
    "word",
    ["gpus=1", "processes=3", "workers=4", "DATA_DIR=/d", "LOG_DIR=/l", "WANDB_MODE=offline", "args=-x"],
)
def test_settings_of_make_and_the_environment_stay_out_of_hydra(installed: Path, word: str) -> None:
    assert hydra_arguments(dry_run(installed, "train", "trainer=cpu", word)) == ["trainer=cpu"]


def test_misspelled_setting_reaches_hydra_which_refuses_it(installed: Path) -> None:
    assert hydra_arguments(dry_run(installed, "train", "SEED=3")) == ["SEED=3"]


def test_environment_does_not_become_an_override(installed: Path) -> None:
    command = dry_run(installed, "train", "seed=1", gpus="4", trainer="ddp", experiment="other", args="-x")
    assert hydra_arguments(command) == ["seed=1"]
    assert "--standalone" not in command


@pytest.mark.parametrize(
    ("words", "ranks", "trainer"),
    [
        ([], None, []),
        (["gpus=0"], None, ["trainer=cpu"]),
        (["gpus=1"], None, ["trainer=gpu"]),
        (["gpus=1", "trainer=h100"], None, ["trainer=h100"]),
        (["gpus=4"], 4, ["trainer=ddp"]),
        (["gpus=4", "trainer=h100"], 4, ["trainer=h100"]),
        (["gpus=4", "overrides=trainer=h100"], 4, ["trainer=h100"]),
        (["trainer=ddp_sim"], 2, ["trainer=ddp_sim"]),
        (["trainer=ddp_sim", "processes=3"], 3, ["trainer=ddp_sim"]),
        (["overrides=trainer=ddp_sim"], 2, ["trainer=ddp_sim"]),
        (["trainer=cpu", "processes=3"], None, ["trainer=cpu"]),
    ],
)
@pytest.mark.parametrize("target", ["train", "sweep"])
def test_number_of_ranks_and_trainer(
    installed: Path, target: str, words: list[str], ranks: int | None, trainer: list[str]
) -> None:
    command = dry_run(installed, target, *words)
    assert [word for word in command if word.startswith("trainer=")] == trainer
    if ranks is None:
        assert command[1:4] == [f"{installed}/bin/python", "-m", "fedsynth.train"]
    else:
        launcher = [
            f"{installed}/bin/torchrun",
            "--standalone",
            f"--nproc_per_node={ranks}",
            "-m",
            "fedsynth.train",
        ]
        assert command[2:7] == launcher
        assert command[1] == "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}"


@pytest.mark.parametrize("words", [["train"], ["train", "gpus=4"], ["sweep", "seed=1,2"]])
def test_one_run_id_for_all_ranks_and_a_new_one_each_time(installed: Path, words: list[str]) -> None:
    first, second = dry_run(installed, *words)[0], dry_run(installed, *words)[0]
    assert re.fullmatch(r"RUN_ID=\d{8}-\d{6}-[0-9a-f]{4}", first)
    assert first != second


def test_run_id_can_be_given(installed: Path) -> None:
    assert dry_run(installed, "train", "RUN_ID=again")[0] == "RUN_ID=again"
    assert dry_run(installed, "train", RUN_ID="again")[0] == "RUN_ID=again"


def test_sweep_is_a_multirun_and_says_how_to_see_the_table(installed: Path) -> None:
    words = ("sweep", "experiment=feddp_pald", "seed=42,43")
    assert hydra_arguments(dry_run(installed, *words)) == [
        "--multirun",
        "experiment=feddp_pald",
        "seed=42,43",
    ]
    assert "make report experiment=feddp_pald" in make("-n", f"VENV={installed}", *words).stdout


def reproduce(installed: Path, *words: str) -> list[list[str]]:
    """The three commands of ``make reproduce``: check, sweep, report."""
    printed = make("-n", f"VENV={installed}", "reproduce", *words).stdout
    return [shlex.split(line) for line in printed.splitlines()]


def test_reproduce_sweeps_the_paper_s_experiment_over_its_seeds_and_reports_it(installed: Path) -> None:
    check, sweep, report = reproduce(installed, "paper=feddp_pald", "debug=limit")
    assert check[1:] == ["-m", "fedsynth.reproduce", "paper=feddp_pald"]
    assert hydra_arguments(sweep) == [
        "--multirun",
        "experiment=feddp_pald/paper",
        "hparams_search=seeds",
        "debug=limit",
    ]
    assert report[1:] == ["-m", "fedsynth.report", "experiment=feddp_pald/paper"]


def test_reproduce_takes_other_seeds_and_devices(installed: Path) -> None:
    _, sweep, _ = reproduce(installed, "paper=feddp_pald", "seed=1,2", "gpus=2")
    assert hydra_arguments(sweep) == ["--multirun", "trainer=ddp", "experiment=feddp_pald/paper", "seed=1,2"]
    assert "--nproc_per_node=2" in sweep


def test_plan_and_report_pass_the_same_values(installed: Path) -> None:
    assert hydra_arguments(dry_run(installed, "plan", "experiment=e"))[:2] == ["plan=true", "experiment=e"]
    assert dry_run(installed, "report", "last=3")[1:] == ["-m", "fedsynth.report", "last=3"]
    words = ("runs=a b", "logger=wandb")
    assert dry_run(installed, "compare", *words)[1:] == ["-m", "fedsynth.compare", *words]


def test_fast_tests_leave_out_slow_and_ddp(installed: Path) -> None:
    command = dry_run(installed, "test-fast", "args=-k 'a or b' -x")
    beside = ["-n", "2", "--dist", "loadfile"]
    assert command[1:] == ["-m", "pytest", "-m", "not slow and not ddp", *beside, "-k", "a or b", "-x"]
    assert dry_run(installed, "test")[1:] == ["-m", "pytest", *beside]
    assert dry_run(installed, "test", "workers=0")[1:5] == ["-m", "pytest", "-n", "0"]


def test_check_is_lint_types_test_in_this_order(installed: Path) -> None:
    printed = make("-n", f"VENV={installed}", "check").stdout
    places = [printed.index(word) for word in ("/ruff check", "/ruff format --check", "/mypy", "-m pytest")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "target", ["train", "sweep", "plan", "report", "test", "test-fast", "lint", "types", "format"]
)
def test_missing_or_stale_environment_is_installed_first(
    tmp_path: Path, installed: Path, target: str
) -> None:
    assert "INSTALL" not in make("-n", f"VENV={installed}", target).stdout
    stale = min((ROOT / name).stat().st_mtime for name in ("requirements.lock", "pyproject.toml")) - 10
    os.utime(installed / ".installed", (stale, stale))
    assert "INSTALL" in make("-n", f"VENV={installed}", target).stdout.splitlines()[0]
    assert "INSTALL" in make("-n", f"VENV={tmp_path / 'missing'}", target).stdout.splitlines()[0]


@pytest.mark.parametrize("target", ["help", "clean", "clean-logs", "lock"])
def test_housekeeping_needs_no_environment(tmp_path: Path, target: str) -> None:
    assert "INSTALL" not in make("-n", f"VENV={tmp_path / 'missing'}", target).stdout


def test_clean_keeps_environment_logs_and_data() -> None:
    removed = shlex.split(make("-n", "clean").stdout)
    assert not {".venv", "logs", "data", ".env", "."} & {
        Path(word).parts[0] for word in removed if Path(word).parts
    }


def test_unusable_interpreter_is_named_with_the_way_out(tmp_path: Path) -> None:
    result = make(f"VENV={tmp_path / 'venv'}", "PYTHON=no-such-python", "lint")
    assert result.returncode != 0
    assert "tried: no-such-python" in result.stderr
    assert "PYTHON=/path/to" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_folder_that_is_no_environment_is_never_cleared(tmp_path: Path) -> None:
    treasure = tmp_path / "thesis.tex"
    treasure.touch()
    result = make(f"VENV={tmp_path}", "lint")
    assert result.returncode != 0
    assert "something else in it" in result.stderr
    assert treasure.exists()
