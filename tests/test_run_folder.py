"""The folder of a run on simulated data carries that in its name, and loses nothing on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsynth.errors import ArtifactError
from fedsynth.pipeline.ranks import Ranks
from fedsynth.run_folder import marked_simulated


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """As Hydra leaves it: its config, and the log of this process."""
    folder = tmp_path / "runs" / "x"
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "config.yaml").write_text("seed: 42\n")
    return folder


@pytest.fixture
def log(run_dir: Path) -> Iterator[logging.FileHandler]:
    handler = logging.FileHandler(run_dir / "train.0.log")
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
    handler.close()


def test_the_folder_is_renamed_with_all_it_holds(run_dir: Path, log: logging.FileHandler) -> None:
    logging.getLogger().warning("before")
    marked = marked_simulated(run_dir, Ranks())
    logging.getLogger().warning("after")
    assert marked == run_dir.with_name("x-SIMULATED")
    assert not run_dir.exists()
    assert (marked / "config" / "config.yaml").read_text() == "seed: 42\n"
    assert (marked / "train.0.log").read_text() == "before\nafter\n"


def test_a_continued_run_keeps_its_folder_and_its_log(run_dir: Path, log: logging.FileHandler) -> None:
    marked = run_dir.with_name("x-SIMULATED")
    marked.mkdir()
    (marked / "train.0.log").write_text("first time\n")
    (marked / "run.json").write_text("{}")
    logging.getLogger().warning("second time")
    assert marked_simulated(run_dir, Ranks()) == marked
    assert (marked / "train.0.log").read_text() == "first time\nsecond time\n"
    assert (marked / "run.json").read_text() == "{}"
    assert (marked / "config" / "config.yaml").is_file()
    assert not run_dir.exists()


def test_a_marked_folder_is_marked_once(tmp_path: Path) -> None:
    marked = tmp_path / "x-SIMULATED"
    marked.mkdir()
    assert marked_simulated(marked, Ranks()) == marked
    assert [path.name for path in tmp_path.iterdir()] == ["x-SIMULATED"]


def test_logs_elsewhere_stay_where_they_are(tmp_path: Path, run_dir: Path) -> None:
    handler = logging.FileHandler(tmp_path / "elsewhere.log")
    logging.getLogger().addHandler(handler)
    try:
        marked_simulated(run_dir, Ranks())
        assert handler.baseFilename == str(tmp_path / "elsewhere.log")
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def test_a_name_that_is_taken_by_a_file_is_explained(run_dir: Path) -> None:
    run_dir.with_name("x-SIMULATED").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"cannot write .*x-SIMULATED.*LOG_DIR"):
        marked_simulated(run_dir, Ranks())
