"""The folder of a run, renamed once it is known that its data are simulated."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import explained
from fedsynth.pipeline.ranks import Ranks

MARK = "-SIMULATED"


def marked_simulated(run_dir: Path, ranks: Ranks) -> Path:
    """The run's folder under a name that ends in ``-SIMULATED``; the run id, which is that name, with it.

    Whether data are simulated is known only after the attempt to find and fetch real ones, when Hydra has
    already made the folder. A run that is continued (the same RUN_ID) goes on in the folder it had.

    Args:
        run_dir: Where Hydra put its config and this process logs.
        ranks: All processes of the run; each has its own log file there.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    if run_dir.name.endswith(MARK):
        return run_dir
    marked = run_dir.with_name(run_dir.name + MARK)

    def make() -> None:
        with explained(marked):
            marked.mkdir(exist_ok=True)

    def move() -> None:
        with explained(marked):
            for path in sorted(run_dir.glob("*.log")):
                with (marked / path.name).open("a") as log:
                    log.write(path.read_text())
                path.unlink()
            shutil.copytree(run_dir, marked, dirs_exist_ok=True)
            shutil.rmtree(run_dir)

    ranks.on_first(make)
    _redirect_logs(run_dir, marked)
    ranks.broadcast(None)  # No process may still write to what is moved now.
    ranks.on_first(move)
    return marked


def check_run_folder(folder: Path) -> None:
    """Fail with one message where Hydra would fail with a traceback: writes nothing.

    Args:
        folder: Where the folders of runs go; it need not be there yet.

    Raises:
        ConfigError: If it, or what is there of its path, is no folder, or cannot be written.
    """
    there = next((path for path in (folder, *folder.absolute().parents) if os.path.lexists(path)), folder)
    if not there.is_dir():
        problem = "is no folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = "cannot be written"
    else:
        return
    raise ConfigError(
        f"runs cannot be stored in {folder}: {there} {problem}. Remove it, or set LOG_DIR (or paths.log_dir) "
        "to a folder you may write to."
    )


def _redirect_logs(old: Path, new: Path) -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and Path(handler.baseFilename).parent == old.absolute():
            handler.close()  # It opens its file again, to append, with the next message.
            handler.baseFilename = str(new.absolute() / Path(handler.baseFilename).name)
