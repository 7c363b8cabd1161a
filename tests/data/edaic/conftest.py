"""The tiny corpus, fresh for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_edaic import write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "edaic")
