"""Two processes give what one gives, to the last bit, and nothing makes them wait for each other forever."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from toy_federation import difference, make_trainer

from fedsynth.errors import ConfigError
from fedsynth.federated.sharding import ClientShardedStrategy, assign_clients

SCRIPT = Path(__file__).with_name("toy_federation.py")


def run(out: Path, *options: object, succeeds: bool = True) -> tuple[list[dict], str]:
    """Run the toy federation in its own process group; a dead-lock fails after 120 s."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--out", str(out), *map(str, options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"the processes waited for each other for 120 s: {process.communicate()[0][-2000:]}")
    assert (process.returncode == 0) == succeeds, output[-3000:]
    return [torch.load(path) for path in sorted(out.glob("rank*.pt"))], output


def assert_equal(one: dict, other: dict) -> None:
    assert difference(one["state"], other["state"]) == 0.0
    assert {k: v for k, v in one.items() if k != "state"} == {k: v for k, v in other.items() if k != "state"}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> tuple[Path, dict]:  # type: ignore[no-untyped-def]
    out = tmp_path_factory.mktemp("one")
    (result,), _ = run(out)
    return out, result


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> tuple[Path, list[dict]]:  # type: ignore[no-untyped-def]
    out = tmp_path_factory.mktemp("two")
    results, _ = run(out, "--devices", 2)
    return out, results


@pytest.mark.ddp
def test_two_processes_equal_one_to_the_last_bit(one_process, two_processes) -> None:
    assert len(two_processes[1]) == 2
    for result in two_processes[1]:
        assert_equal(result, one_process[1])


def first_round(out: Path) -> Path:
    return out / "ckpt" / "step=32.ckpt"


@pytest.mark.ddp
@pytest.mark.slow
def test_a_checkpoint_of_one_process_resumes_on_two(one_process, tmp_path) -> None:
    results, _ = run(tmp_path, "--devices", 2, "--ckpt", first_round(one_process[0]))
    for result in results:
        assert_equal(result, one_process[1])


@pytest.mark.ddp
@pytest.mark.slow
def test_a_checkpoint_of_two_processes_resumes_on_one(one_process, two_processes, tmp_path) -> None:
    (result,), _ = run(tmp_path, "--ckpt", first_round(two_processes[0]))
    assert_equal(result, one_process[1])


@pytest.mark.ddp
@pytest.mark.slow
def test_a_checkpoint_inside_a_round_of_one_process_resumes_on_two(one_process, tmp_path) -> None:
    run(tmp_path / "one", "--every-n-steps", 5, "--kill-at", 1, 2, succeeds=False)
    results, _ = run(tmp_path / "two", "--devices", 2, "--ckpt", tmp_path / "one" / "ckpt" / "last.ckpt")
    for result in results:
        assert_equal(result, one_process[1])


@pytest.mark.ddp
@pytest.mark.slow
def test_a_rank_without_a_client_keeps_up(tmp_path) -> None:
    (one,), _ = run(tmp_path / "one", "--clients", 1, "--rounds", 2)
    two, _ = run(tmp_path / "two", "--clients", 1, "--rounds", 2, "--devices", 2)
    assert len(two) == 2
    for result in two:
        assert_equal(result, one)


@pytest.mark.ddp
@pytest.mark.slow
def test_logging_with_sync_dist_neither_dead_locks_nor_changes_values(tmp_path) -> None:
    (one,), _ = run(tmp_path / "one", "--sync-dist")
    two, _ = run(tmp_path / "two", "--sync-dist", "--devices", 2)
    for result in two:
        assert difference(result["state"], one["state"]) == 0.0
        assert result["metrics"]["fit/loss_epoch"] == one["metrics"]["fit/loss_epoch"]


@pytest.mark.ddp
@pytest.mark.slow
def test_a_failing_client_on_one_rank_ends_all_ranks(tmp_path) -> None:
    results, output = run(tmp_path, "--devices", 2, "--fail-client", "a", succeeds=False)
    assert results == []
    assert "stopped on purpose" in output
    assert "failed while training its clients" in output


@pytest.mark.ddp
@pytest.mark.slow
def test_saving_by_steps_with_two_processes_is_refused_instead_of_waiting_forever(tmp_path) -> None:
    results, output = run(tmp_path, "--devices", 2, "--every-n-steps", 5, succeeds=False)
    assert results == []
    assert "would save in the middle of a round" in output


@pytest.mark.parametrize(
    "callback",
    [
        ModelCheckpoint(every_n_train_steps=3),
        ModelCheckpoint(train_time_interval=timedelta(seconds=1)),
        ModelCheckpoint(save_on_exception=True),
        OnExceptionCheckpoint("."),
    ],
)
def test_every_way_to_save_inside_a_round_is_refused_with_two_processes(tmp_path, callback) -> None:
    with pytest.raises(ConfigError, match="middle of a round"):
        make_trainer(
            tmp_path,
            callbacks=[callback],
            enable_checkpointing=True,
            devices=2,
            strategy=ClientShardedStrategy(),
        )


def test_stock_ddp_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="ClientShardedStrategy"):
        make_trainer(tmp_path, devices=2, strategy="ddp")


def test_a_distributed_sampler_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="use_distributed_sampler"):
        make_trainer(tmp_path, use_distributed_sampler=True)


@given(
    costs=st.dictionaries(st.integers(0, 50), st.integers(1, 100), max_size=12), num_ranks=st.integers(1, 5)
)
def test_every_client_gets_one_rank_and_no_rank_exceeds_the_bound(costs, num_ranks) -> None:
    shares = assign_clients(costs, num_ranks)
    assert len(shares) == num_ranks
    assert sorted(client for share in shares for client in share) == sorted(costs)
    loads = [sum(costs[client] for client in share) for share in shares]
    if costs:  # list scheduling: the longest rank ends at most one client after the mean
        assert max(loads) <= sum(costs.values()) / num_ranks + max(costs.values())


def test_longest_clients_go_first() -> None:
    assert assign_clients({"a": 7, "b": 6, "c": 5, "d": 4, "e": 2}, 2) == (("a", "d", "e"), ("b", "c"))


def test_the_assignment_does_not_depend_on_the_order_clients_are_listed_in() -> None:
    costs = {"a": 3, "b": 3, "c": 2, "d": 2}
    assert assign_clients(costs, 2) == assign_clients(dict(reversed(costs.items())), 2)


def test_no_rank_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least one rank"):
        assign_clients({"a": 1}, 0)
