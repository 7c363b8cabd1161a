"""Where a stage computes outside of a Trainer: on the very device that a Trainer of the stage would take."""

from __future__ import annotations

import os

import torch
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator

from fedsynth.errors import ConfigError
from fedsynth.pipeline.stage import StageContext

#: What each ``trainer.accelerator`` may be, in the order in which Lightning asks for it.
KINDS = {
    "cpu": ("cpu",), "cuda": ("cuda",), "mps": ("mps",), "gpu": ("mps", "cuda"), "auto": ("mps", "cuda", "cpu"),
}  # fmt: skip


def computing_device(context: StageContext) -> torch.device:
    """The device that ``trainer.accelerator`` names; of several GPUs this process's own.

    ``auto``, which is also meant where nothing is said, takes the first of MPS, CUDA and CPU that is there, ``gpu`` the
    first of MPS and CUDA, as Lightning does. A stage that runs in one process takes the first card, whatever
    ``LOCAL_RANK`` says.

    Args:
        context: Of the stage; its trainer arguments and its place among the processes count.

    Raises:
        ConfigError: The accelerator is unknown or not there, or this process has no GPU of its own. Nothing is
            computed elsewhere instead.
    """
    accelerator = context.trainer.get("accelerator") or "auto"
    if accelerator not in KINDS:
        raise _refused(context, f"which is none of {', '.join(KINDS)}")
    kind = next((kind for kind in KINDS[accelerator] if _is_available(kind)), None)
    if kind is None:
        raise _refused(context, "but there is no such device here. Say trainer=cpu, or check the driver")
    if kind == "cpu":
        return torch.device("cpu")
    if context.world_size == 1:
        return torch.device(kind, 0)
    return torch.device(kind, _own_card(context, kind))


def _is_available(kind: str) -> bool:
    return kind == "cpu" or (CUDAAccelerator if kind == "cuda" else MPSAccelerator).is_available()


def _own_card(context: StageContext, kind: str) -> int:
    """LOCAL_RANK, if there are so many cards: two processes on one would wait for each other, or run out of memory."""
    if kind == "mps":
        raise _refused(
            context,
            f"which {context.world_size} processes cannot share. Say trainer=cpu, or start one process",
        )
    local_rank, num_cards = os.environ.get("LOCAL_RANK"), torch.cuda.device_count()
    if local_rank is None:
        raise _refused(
            context,
            f"but which card is that of process {context.rank} of {context.world_size} is not known: LOCAL_RANK is "
            "not set. Start the processes by torchrun (make train gpus=…)",
        )
    if int(local_rank) >= num_cards:
        raise _refused(
            context,
            f"but process {local_rank} (LOCAL_RANK, from 0) finds {num_cards} CUDA devices and none of its own. Start "
            f"one process a device (gpus={num_cards}), or say trainer=ddp_sim",
        )
    return int(local_rank)


def _refused(context: StageContext, why: str) -> ConfigError:
    accelerator = context.trainer.get("accelerator") or "auto"
    return ConfigError(
        f"trainer.accelerator={accelerator} for stages.{context.name}, {why}.", key="trainer.accelerator"
    )
