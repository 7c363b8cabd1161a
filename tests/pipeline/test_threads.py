"""Threads of stages: each computes with as many as it asks for, and leaves the next one's alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bench import plan, runner, toy

from fedsynth.composition import compose_config
from fedsynth.pipeline.runner import Selection
from fedsynth.pipeline.threads import set_threads, stage_threads


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("wanted", "processes", "found"), [(3, 1, 3), (6, 2, 3), (2, 4, 1), (0, 1, 4), (None, 2, 4)]
)
def test_processes_share_the_threads_and_zero_changes_nothing(
    wanted: int | None, processes: int, found: int
) -> None:
    with stage_threads({"num_threads": wanted}, processes):
        assert torch.get_num_threads() == found
    assert torch.get_num_threads() == 4
    set_threads({"num_threads": wanted}, processes)
    assert torch.get_num_threads() == found


def test_the_number_is_restored_after_a_failure() -> None:
    with pytest.raises(ValueError, match="stage"), stage_threads({"num_threads": 1}, 1):
        raise ValueError("stage")
    assert torch.get_num_threads() == 4


def test_a_stage_computes_with_its_own_number_of_threads(tmp_path: Path) -> None:
    noting = {"one": toy("train", behavior="note threads", trainer={"num_threads": 1})}
    noting["three"] = toy("train", value=2.0, behavior="note threads", trainer={"num_threads": 3})
    noting["default"] = toy("train", value=3.0, behavior="note threads")
    runner(tmp_path).run(plan(noting, {"num_threads": 2}), Selection())
    found = {name: int((tmp_path / f"threads-{name}").read_text()) for name in noting}
    assert found == {"one": 1, "three": 3, "default": 2}


def test_the_smallest_classifier_asks_for_one_thread_and_the_large_one_for_all() -> None:
    words = ["experiment=pso_secure", "trainer.num_threads=6"]
    small = compose_config(words).stages.tstr_real.trainer
    large = compose_config([*words, "image_classifier=densenet121"]).stages.tstr_real.trainer
    assert (small.num_threads, large.num_threads) == (1, 0)  # 0: those of the run
