"""The device outside of a Trainer is the one the trainer's accelerator names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_stages import stage_context

from fedsynth.stages.computing_device import computing_device


@pytest.mark.parametrize(
    ("accelerator", "has_gpu", "local_rank", "wanted"),
    [
        ("cpu", True, 0, "cpu"),
        ("auto", False, 0, "cpu"),
        ("auto", True, 1, "cuda:1"),
        ("gpu", True, 3, "cuda:3"),
        ("cuda", True, 0, "cuda:0"),
        ("mps", False, 0, "mps"),
    ],
)
def test_the_device_is_the_accelerators(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: str,
    has_gpu: bool,
    local_rank: int,
    wanted: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    context = stage_context(tmp_path / "stage", trainer={"accelerator": accelerator})
    assert computing_device(context) == torch.device(wanted)
