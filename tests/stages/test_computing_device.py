"""The device outside of a Trainer is the one that the Trainer itself would take, or there is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning import fabric
from lightning.pytorch.accelerators import MPSAccelerator
from tiny_stages import TRAINER, stage_context, stock_trainer

from fedsynth.errors import ConfigError
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.computing_device import computing_device

ACCELERATORS = ("cpu", "auto", "gpu", "cuda", "mps")
#: (CUDA devices, whether there is MPS) of machines.
MACHINES = [(0, False), (1, False), (4, False), (0, True), (2, True)]


class Machine:
    """This machine, as if it had other devices."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch

    def has(self, num_cards: int, *, mps: bool = False) -> None:
        self.patch.setattr(torch.cuda, "device_count", lambda: num_cards)
        self.patch.setattr(torch.cuda, "is_available", lambda: num_cards > 0)
        # Lightning asks one class or the other.
        for one in (MPSAccelerator, fabric.accelerators.MPSAccelerator):
            self.patch.setattr(one, "is_available", staticmethod(lambda: mps))

    def context(
        self, accelerator: str | None, local_rank: int | None = None, world_size: int = 1
    ) -> StageContext:
        if local_rank is None:
            self.patch.delenv("LOCAL_RANK", raising=False)
        else:
            self.patch.setenv("LOCAL_RANK", str(local_rank))
        return stage_context(
            self.folder / "stage",
            trainer={"accelerator": accelerator},
            rank=local_rank or 0,
            world_size=world_size,
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize(("num_cards", "mps"), MACHINES)
def test_one_process_computes_where_lightning_would(
    machine: Machine, num_cards: int, mps: bool, accelerator: str
) -> None:
    machine.has(num_cards, mps=mps)
    context = machine.context(accelerator)
    try:
        trainer = stock_trainer(machine.folder, accelerator=accelerator)
    except Exception:  # Lightning has several, all of which say that there is no such device
        with pytest.raises(
            ConfigError, match=rf"trainer\.accelerator={accelerator} .* no such device"
        ) as caught:
            computing_device(context)
        assert caught.value.key == "trainer.accelerator"
    else:
        assert computing_device(context) == trainer.strategy.root_device


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
def test_every_process_has_a_card_of_its_own(machine: Machine, accelerator: str) -> None:
    machine.has(4)
    found = [computing_device(machine.context(accelerator, rank, 4)) for rank in range(4)]
    assert found == [torch.device("cuda", rank) for rank in range(4)]


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
def test_a_process_without_a_card_of_its_own_is_refused(machine: Machine, accelerator: str) -> None:
    machine.has(2)
    with pytest.raises(
        ConfigError, match=rf"trainer\.accelerator={accelerator} .* process 2 .* finds 2 CUDA"
    ) as no_card:
        computing_device(machine.context(accelerator, 2, 4))
    with pytest.raises(ConfigError, match="LOCAL_RANK is not set") as unknown:
        computing_device(machine.context(accelerator, None, 2))
    assert {no_card.value.key, unknown.value.key} == {"trainer.accelerator"}


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "mps"])
def test_several_processes_cannot_share_mps(machine: Machine, accelerator: str) -> None:
    machine.has(0, mps=True)
    with pytest.raises(ConfigError, match=rf"trainer\.accelerator={accelerator} .* 2 processes cannot share"):
        computing_device(machine.context(accelerator, 0, 2))


@pytest.mark.parametrize(("accelerator", "num_cards"), [("cpu", 4), ("auto", 0)])
def test_processes_on_the_cpu_need_no_card(machine: Machine, accelerator: str, num_cards: int) -> None:
    machine.has(num_cards)
    for rank in range(3):
        assert computing_device(machine.context(accelerator, rank, 3)) == torch.device("cpu")


def test_nothing_said_means_auto(machine: Machine) -> None:
    machine.has(1)
    assert computing_device(machine.context(None)) == torch.device("cuda", 0)
    context = machine.context("cpu")
    silent = {name: value for name, value in TRAINER.items() if name != "accelerator"}
    object.__setattr__(context, "trainer", silent)
    assert computing_device(context) == torch.device("cuda", 0)


def test_an_unknown_accelerator_is_refused_by_its_key(machine: Machine) -> None:
    with pytest.raises(
        ConfigError, match=r"trainer\.accelerator=tpu for stages\.stage, which is none of cpu,"
    ) as caught:
        computing_device(machine.context("tpu"))
    assert caught.value.key == "trainer.accelerator"
