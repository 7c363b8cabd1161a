"""The tiny corpus, fresh for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tiny_edaic import write_corpus


@pytest.fixture(scope="session")
def corpus_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "edaic")


@pytest.fixture
def corpus(corpus_template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus_template, tmp_path / "edaic"))
