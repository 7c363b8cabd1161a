"""Where a stage computes outside of a Trainer."""

from __future__ import annotations

import os

import torch

from fedsynth.pipeline.stage import StageContext


def computing_device(context: StageContext) -> torch.device:
    """The device that the stage's ``trainer.accelerator`` names; of several GPUs this process's own.

    ``auto`` takes a GPU if there is one. A GPU that is asked for but not there was refused before the run.
    """
    accelerator = context.trainer.get("accelerator", "cpu")
    if accelerator == "mps":
        return torch.device("mps")
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
