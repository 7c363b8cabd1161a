"""Work in pieces that survive a kill: each is a file of scratch, written whole or not at all, shared by the ranks."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsynth.pipeline.stage import StageContext

log = logging.getLogger(__name__)
PIECES = "pieces"


def make_pieces(
    context: StageContext, names: Sequence[str], make: Callable[[int], Mapping[str, Tensor]]
) -> list[Path]:
    """The files of these names, each made once: those a killed run finished are taken as they are.

    Every process makes those of its own share and waits for the others at the end. What a piece holds must
    depend on its number only, not on the process or on the pieces made before.

    Args:
        context: Of the stage; its scratch belongs to one configuration only.
        names: File names, known to every process.
        make: The tensors of piece i.

    Returns:
        Their paths, in order.
    """
    folder = context.scratch / PIECES
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        if number % context.world_size == context.rank and not is_whole(folder / name):
            _write(folder / name, make(number))
    wait_for_all(context)
    return [folder / name for name in names]


def finished(context: StageContext, names: Sequence[str]) -> list[bool]:
    """Which of the pieces are there already."""
    return [is_whole(context.scratch / PIECES / name) for name in names]


def is_whole(path: Path) -> bool:
    """Whether the file is there and can be read; a damaged one counts as missing, and is said to."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            file.keys()
    except (SafetensorError, OSError) as error:
        log.warning("%s is damaged (%s): it is made again.", path, error)
        return False
    return True


def keep(path: Path, output: Path) -> None:
    """Put a finished piece into the artifact. By a link: if a kill empties the output, the piece is still there."""
    try:
        os.link(path, output / path.name)
    except OSError:  # a file system without links
        shutil.copyfile(path, output / path.name)


def wait_for_all(context: StageContext) -> None:
    """A barrier of all processes of the stage."""
    if context.world_size > 1:
        # A CPU tensor: the barrier of a process group with NCCL would need each process's GPU to be set.
        torch.distributed.all_reduce(torch.zeros(1))


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    # clone: safetensors refuses tensors that share memory.
    save_file({name: values.detach().cpu().contiguous().clone() for name, values in tensors.items()}, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
