"""Two processes train on the images that one would, in the same steps."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ddp]

SCRIPT = Path(__file__).with_name("two_diadm_ranks.py")


def launched(folder: Path, **variables: str) -> Any:
    return subprocess.Popen(
        [sys.executable, SCRIPT, folder],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def printed(processes: list[Any]) -> list[Any]:
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=180)
            assert process.returncode == 0, err
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
    return found


def test_two_processes_take_the_images_of_one_in_as_many_steps(tmp_path: Path) -> None:
    (alone,) = printed([launched(tmp_path / "alone")])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = printed([launched(tmp_path / "both", **common, RANK=str(r), LOCAL_RANK=str(r)) for r in range(2)])
    halves = zip(both[0]["rows"], both[1]["rows"], strict=True)
    assert [first + second for first, second in halves] == alone["rows"]
    assert len(alone["rows"]) == 16
    assert both[0]["finite"]
    assert both[0]["files"] == alone["files"]
    # The noise is another, the course the same.
    assert both[0]["history"][-1]["val/loss"] == pytest.approx(alone["history"][-1]["val/loss"], rel=0.1)
