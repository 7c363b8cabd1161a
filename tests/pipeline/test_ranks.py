"""Ranks: one process needs no torch; of several, none waits for one that has failed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bench import calls, chain, toy

from fedsynth.pipeline.ranks import Ranks


def test_a_lone_process_is_the_first_of_one() -> None:
    ranks = Ranks.from_environment()
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks.is_first) == (0, 1, 0, True)


def test_torchrun_s_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    ranks = Ranks.from_environment()
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks.is_first) == (5, 8, 1, False)


def test_a_lone_process_gets_its_own_value_and_its_own_error() -> None:
    ranks, value = Ranks(), object()
    ranks.connect()
    assert ranks.broadcast(value) is value
    assert ranks.on_first(lambda: value) is value
    with pytest.raises(ZeroDivisionError):
        ranks.on_first(lambda: 1 / 0)
    ranks.disconnect()


SCRIPT = """
import json, sys
from pathlib import Path
from bench import run, statuses
from fedsynth.errors import FedSynthError
from fedsynth.pipeline.ranks import Ranks
ranks = Ranks.from_environment()
ranks.connect()
report = {"broadcast": ranks.broadcast(ranks.rank), "on_first": ranks.on_first(lambda: ranks.rank)}
for name in ("good", "bad", "blocked"):
    root, stages = json.loads(sys.argv[1])[name]
    try:
        report[name] = statuses(run(Path(root), stages, ranks=ranks))
    except Exception as error:
        report[name] = f"{type(error).__name__}: {error}"
ranks.disconnect()
print(json.dumps(report))
"""


@pytest.mark.ddp
@pytest.mark.timeout(120)
def test_two_ranks_take_the_same_branches_and_fail_together(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    cases = {
        "good": (str(tmp_path / "good"), chain() | {"train": toy("train")}),
        "bad": (str(tmp_path / "bad"), chain(publish={"behavior": "fail"})),
        "blocked": (str(tmp_path / "a file" / "store"), chain()),
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(cases)],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in outputs)

    assert first["broadcast"] == second["broadcast"] == first["on_first"] == second["on_first"] == 0
    assert first["good"] == second["good"] == dict.fromkeys([*chain(), "train"], "computed")
    # Computed stages run on rank zero alone, trained ones on both.
    assert sorted(calls(tmp_path / "good")) == ["measure", "publish", "total", "train", "train"]

    assert first["bad"] == "ToyError: told to fail"
    assert second["bad"].startswith("FedSynthError: rank zero failed: ToyError")
    assert calls(tmp_path / "bad") == ["measure", "publish"]

    assert first["blocked"].startswith("ArtifactError: cannot write")
    assert second["blocked"].startswith("FedSynthError: rank zero failed: ArtifactError")
