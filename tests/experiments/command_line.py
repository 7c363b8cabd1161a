"""Runs of the app in processes of their own, and what they leave below LOG_DIR."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

EXPERIMENT = "experiment=feddp_pald"
# One thread: results then agree bit for bit with those of several processes of one thread each.
SIMULATED = (EXPERIMENT, "data.source=simulated", "debug=limit", "trainer.num_threads=1")
# Sizes that change no path through the code.
SMALL = ("diffusion.num_synthetic_per_class=100", "diffusion.num_mixture_samples=402",
         "evaluation.classifier_seeds=[42]")  # fmt: skip
NETWORK = (
    "model.image_channels=[4,8]", "model.signal_channels=[4,8]", "model.signal_kernels=[5,3]",
    "model.token_dim=8", "model.num_heads=2", "model.latent_dim=4", "diffusion.width=16",
    "diffusion.num_blocks=1", "diffusion.time_embedding_dim=8",
)  # fmt: skip
# For the small data files of tiny_data.
TINY = ("data.source=real", "data.download=false", "data.num_clients=2", "data.min_records_per_client=4",
        "stages.clients.image_size=12",
        "privacy.num_shards=2", "privacy.min_shard_size=2", *SMALL,
        *NETWORK)  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """Standard error without the frame and its line breaks."""
        return " ".join(self.err.replace("│", " ").split())


@dataclass(frozen=True)
class Whole:
    """A finished run of the whole experiment."""

    log_dir: Path
    done: Finished


def environment(log_dir: Path, data_dir: Path | None = None, **variables: str) -> dict[str, str]:
    missing = log_dir / "no data here"
    return {**os.environ, "LOG_DIR": str(log_dir), "DATA_DIR": str(data_dir or missing), **variables}


def start(words: Sequence[str], log_dir: Path, data_dir: Path | None = None, **variables: str) -> Any:
    """``python -m fedsynth.train WORDS`` in the background."""
    log_dir.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "fedsynth.train", *words],
        env=environment(log_dir, data_dir, **variables),
        cwd=log_dir,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: Any, timeout: float = 400) -> Finished:
    """Wait for a started process."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Finished(process.returncode, out, err)


def run(
    words: Sequence[str], log_dir: Path, data_dir: Path | None = None, *, code: int = 0, **variables: str
) -> Finished:
    """Run the app and insist on its exit status."""
    done = finish(start(words, log_dir, data_dir, **variables))
    assert done.code == code, f"{done.out}\n{done.err}"
    return done


def start_ranks(words: Sequence[str], log_dir: Path, data_dir: Path | None = None) -> list[Any]:
    """Two processes as torchrun would start them, so that each can be killed by its own number."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    common = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1", "RUN_ID": f"ranks-{port}",
    }  # fmt: skip
    return [
        start(["trainer=ddp_sim", *words], log_dir, data_dir, **common, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(2)
    ]


def run_ranks(words: Sequence[str], log_dir: Path, data_dir: Path | None = None) -> list[Finished]:
    """Run two processes and insist that both end well."""
    processes = start_ranks(words, log_dir, data_dir)
    try:
        done = [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [one.code for one in done] == [0, 0], "\n".join(one.out + one.err for one in done)
    return done


def signal_at(
    processes: Sequence[Any], reached: Callable[[], bool], number: signal.Signals, timeout: float = 120
) -> list[Finished]:
    """Send a signal to the processes as soon as something is reached."""
    deadline = time.monotonic() + timeout
    while not reached():
        gone = [process for process in processes if process.poll() is not None]
        assert not gone, finish(gone[0]).err
        assert time.monotonic() < deadline, "what the signal waits for was never reached"
        time.sleep(0.002)
    for process in processes:
        process.send_signal(number)
    return [finish(process) for process in processes]


def checkpoint(log_dir: Path, stage: str, name: str = "last") -> Callable[[], bool]:
    """Whether the stage has written its first checkpoint."""
    pattern = f"artifacts/{stage}/*.partial/checkpoints/{name}.ckpt"
    return lambda: any(log_dir.glob(pattern))


def run_dirs(log_dir: Path) -> list[Path]:
    return sorted(path.parent for path in (log_dir / "runs").rglob("run.json"))


def record(run_dir: Path, file: str = "run.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / file).read_text())
    return content


def printed_statuses(done: Finished) -> dict[str, str]:
    """What the run said of each stage in the end: computed or cached."""
    return dict(
        reversed(found) for found in re.findall(r"^ *(computed|cached) (\w+) ", done.out, flags=re.MULTILINE)
    )


def committed(log_dir: Path, stage: str) -> list[Path]:
    """The finished artifacts of a stage."""
    found = (path.parent for path in (log_dir / "artifacts" / stage).glob("*/manifest.json"))
    return sorted(folder for folder in found if "." not in folder.name)  # not those set aside


def tensors(log_dir: Path, stage: str, file: str) -> dict[str, Tensor]:
    """The tensors of the only artifact of a stage."""
    (folder,) = committed(log_dir, stage)
    loaded: dict[str, Tensor] = load_file(folder / file)
    return loaded


def with_artifacts(source: Path, target: Path, *stages: str) -> Path:
    """A new LOG_DIR that holds these artifacts of another one, and its simulated data."""
    for stage in stages:
        shutil.copytree(source / "artifacts" / stage, target / "artifacts" / stage)
    if (source / "simulated").is_dir():
        shutil.copytree(source / "simulated", target / "simulated")
    return target
