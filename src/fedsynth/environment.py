"""The machine and software a run used, as far as they can change its numbers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsynth.errors import ConfigError
from fedsynth.pipeline.threads import set_threads

PACKAGES = (
    "torch", "lightning", "torchmetrics", "hydra-core", "numpy", "scipy", "scikit-learn", "diffusers",
    "wfdb", "medmnist",
)  # fmt: skip


def prepare_process(trainer: Mapping[str, Any]) -> None:
    """Threads and warnings of this process, before any stage runs.

    The number of threads changes the last bits of sums, and with them what training reaches: it is set
    from ``trainer.num_threads`` (0: torch decides) and stated with every result. A stage may ask for another one.

    Raises:
        ConfigError: If the trainer wants a GPU and there is none.
    """
    # Busy-waiting OpenMP threads cost up to fifty times the work itself where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import logging
    import warnings

    import torch

    accelerator = trainer.get("accelerator")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator={accelerator}, but torch finds no CUDA device here. Say trainer=cpu, or "
            "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES."
        )
    set_threads(trainer, int(os.environ.get("WORLD_SIZE", "1")))
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # All data sit in memory and batches are indexed: worker processes would only cost time.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # Stand-ins for ChestMNIST lack positives of some labels: the stage reports which.
    warnings.filterwarnings("ignore", message="No (positive|negative) samples in targets")
    # Lightning 2.6 calls a torch function that torch 2.14 has renamed.
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")


def describe_environment(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, device, threads and processes, for manifests and reports."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        **versions,
        "platform": platform.platform(),
        "device": str(trainer.get("accelerator", "cpu")),
        "threads": int(trainer.get("num_threads") or 0),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def git_commit() -> str:
    """The commit of the checkout, with ``+changes`` if it was edited; ``unknown`` outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()
