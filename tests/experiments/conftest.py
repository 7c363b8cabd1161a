"""Data made once for all runs, and one finished run whose artifacts others start from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))

from command_line import SIMULATED, Whole, run
from tiny_data import write_data


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The whole experiment, finished once, on simulated data."""
    log_dir = tmp_path_factory.mktemp("whole")
    return Whole(log_dir, run(SIMULATED, log_dir))


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of small files that are no simulation to the program."""
    return write_data(tmp_path_factory.mktemp("tiny-data"))
