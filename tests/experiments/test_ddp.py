"""Two gloo processes do what one does: the same encoder bit for bit, one run folder, one artifact each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import (
    EXPERIMENT,
    SIMULATED,
    SMALL,
    TINY,
    Whole,
    checkpoint,
    committed,
    environment,
    finish,
    printed_statuses,
    record,
    run,
    run_dirs,
    run_ranks,
    signal_at,
    start,
    start_ranks,
    tensors,
    with_artifacts,
)
from tiny_stages import equal

pytestmark = [pytest.mark.slow, pytest.mark.ddp]

SCRIPT = Path(__file__).with_name("two_ranks.py")
ONE_THREAD = ("trainer=cpu", "trainer.num_threads=1")
ENCODER = (
    EXPERIMENT,
    "debug=limit",
    *TINY,
    "only=[fusion_encoder]",
    "federated.rounds=3",
    "data.num_clients=3",
)


@pytest.fixture(scope="module")
def encoder_of_one_process(tmp_path_factory: pytest.TempPathFactory, tiny_root: Path) -> Path:
    """LOG_DIR of an undisturbed encoder of one process and thread."""
    log_dir = tmp_path_factory.mktemp("one-process") / "logs"
    words = [word for word in ENCODER if not word.startswith("only=")]
    run([*words, *ONE_THREAD, "only=[clients,pretrain_xray,fusion_encoder]"], log_dir, tiny_root)
    return log_dir


def same_encoder(log_dir: Path, wanted: Path) -> bool:
    files = ("model.safetensors", "scores.safetensors")
    return all(
        equal(tensors(log_dir, "fusion_encoder", file), tensors(wanted, "fusion_encoder", file))
        for file in files
    )


def test_torchrun_runs_the_whole_experiment_with_the_same_encoder(whole: Whole, tmp_path: Path) -> None:
    # From the pretrained encoder of one process: the batches of that stage are shared, its sums differ.
    log_dir = with_artifacts(whole.log_dir, tmp_path / "ranks", "clients", "pretrain_xray")
    words = ["trainer=ddp_sim", *SIMULATED, *SMALL]
    command = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc_per_node=2", "-m"]
    process = subprocess.Popen(
        [*command, "fedsynth.train", *words],
        env=environment(log_dir, RUN_ID="ranks", OMP_NUM_THREADS="1"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    done = finish(process)
    assert done.code == 0, done.err
    (run_dir,) = run_dirs(log_dir)
    assert run_dir.name == "ranks-SIMULATED"
    assert {path.name for path in run_dir.glob("*.log")} == {"train.0.log", "train.1.log"}
    found = record(run_dir)
    assert found["finished"]
    assert found["environment"]["processes"] == 2
    assert record(run_dir, "report.json")["runs"][0]["stages_not_run"] == []
    statuses = printed_statuses(done)
    assert {name for name, status in statuses.items() if status == "cached"} == {"clients", "pretrain_xray"}
    for stage in statuses:
        assert len(committed(log_dir, stage)) == 1, stage
        assert not list((log_dir / "artifacts" / stage).glob("*.partial"))

    assert same_encoder(log_dir, whole.log_dir)


def test_a_checkpoint_of_one_process_is_taken_up_by_two(
    encoder_of_one_process: Path, tiny_root: Path, tmp_path: Path
) -> None:
    log_dir = with_artifacts(encoder_of_one_process, tmp_path / "logs", "clients", "pretrain_xray")
    process = start([*ENCODER, *ONE_THREAD], log_dir, tiny_root)
    (killed,) = signal_at([process], checkpoint(log_dir, "fusion_encoder"), signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert committed(log_dir, "fusion_encoder") == []
    first, second = run_ranks(ENCODER, log_dir, tiny_root)
    assert "round 1/3" not in first.out
    assert "round 3/3" in first.out
    assert second.out == ""
    assert same_encoder(log_dir, encoder_of_one_process)


def test_a_checkpoint_of_two_processes_is_taken_up_by_one(
    encoder_of_one_process: Path, tiny_root: Path, tmp_path: Path
) -> None:
    log_dir = with_artifacts(encoder_of_one_process, tmp_path / "logs", "clients", "pretrain_xray")
    processes = start_ranks(ENCODER, log_dir, tiny_root)
    killed = signal_at(processes, checkpoint(log_dir, "fusion_encoder"), signal.SIGKILL)
    assert [one.code for one in killed] == [-signal.SIGKILL] * 2
    assert committed(log_dir, "fusion_encoder") == []
    done = run([*ENCODER, *ONE_THREAD], log_dir, tiny_root)
    assert "round 1/3" not in done.out
    assert "round 3/3" in done.out
    assert same_encoder(log_dir, encoder_of_one_process)


def test_a_process_without_a_client_waits_for_the_other(tiny_root: Path, tmp_path: Path) -> None:
    words = [
        "experiment=feddp_pald/random_init", "debug=limit", *TINY, "data.num_clients=1",
        "only=[clients,fusion_encoder]",
    ]  # fmt: skip
    alone = start([*words, *ONE_THREAD], tmp_path / "alone", tiny_root)
    run_ranks(words, tmp_path / "ranks", tiny_root)
    done = finish(alone)
    assert done.code == 0, done.err
    assert same_encoder(tmp_path / "ranks", tmp_path / "alone")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What ``two_ranks.py`` reports: of one process, and of both of two."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    together = tmp_path_factory.mktemp("together")
    started = {"alone": launched(tmp_path_factory.mktemp("alone"))}
    for rank in ("0", "1"):
        variables = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        started[rank] = launched(together, **variables)
    done = {name: finish(process) for name, process in started.items()}
    assert all(one.code == 0 for one in done.values()), "\n".join(one.err for one in done.values())
    return {name: json.loads(one.out.splitlines()[-1]) for name, one in done.items()}


def launched(folder: Path, **variables: str) -> Any:
    return subprocess.Popen(
        [sys.executable, SCRIPT, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_pretraining_metrics_of_two_processes_are_those_of_all_predictions(
    found: dict[str, dict[str, Any]],
) -> None:
    alone = found["alone"]["validated"]
    assert set(alone) == {"val/loss", "val/auroc"}
    for rank in ("0", "1"):
        assert found[rank]["validated"] == pytest.approx(alone, rel=1e-5)


def test_processes_that_share_batches_make_as_many_steps_as_one(found: dict[str, dict[str, Any]]) -> None:
    alone, together = found["alone"]["trained"], found["0"]["trained"]
    # 35 samples in batches of 16: 16, 16, 3 alone; 8, 8, 2 on each of two.
    assert alone["latent_ddpm"] == together["latent_ddpm"]
    assert alone["latent_ddpm"]["steps"] == 20 * 3
    assert alone["tstr_mlp"] == together["tstr_mlp"]
    assert together["finite"]
    # Other draws of noise, the same course: means of 350 samples.
    means = [sum(one["losses"][10:]) / 10 for one in (alone, together)]
    assert means[1] == pytest.approx(means[0], rel=0.3)
