"""Digests are remembered while a file stays as it is, and never longer."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import pytest

from fedsynth.data import digest_cache
from fedsynth.data.digest_cache import DigestCache
from fedsynth.errors import DataError

LONG_AGO = 10**18


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.csv"
    write(path, b"content")
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read."""
    seen: list[Path] = []
    real = digest_cache.digest_of

    def counted(path: Path, algorithm: str) -> str:
        seen.append(path)
        return real(path, algorithm)

    monkeypatch.setattr(digest_cache, "digest_of", counted)
    return seen


def write(path: Path, content: bytes, changed_ns: int = LONG_AGO) -> None:
    path.write_bytes(content)
    os.utime(path, ns=(changed_ns, changed_ns))


def ask(store: Path, file: Path, **options: bool) -> str:
    cache = DigestCache(store, **options)
    digest = cache.sha256(file)
    cache.save()
    return digest


def test_a_file_is_read_once(tmp_path: Path, big: Path, reads: list[Path]) -> None:
    first = ask(tmp_path / "cache" / "digests.json", big)
    assert first == hashlib.sha256(b"content").hexdigest()
    assert ask(tmp_path / "cache" / "digests.json", big) == first
    assert reads == [big]


@pytest.mark.parametrize("change", ["size", "time", "inode"])
def test_any_sign_of_a_change_makes_it_read_again(
    tmp_path: Path, big: Path, reads: list[Path], change: str
) -> None:
    store = tmp_path / "digests.json"
    ask(store, big)
    if change == "size":
        write(big, b"content, longer")
    elif change == "time":
        write(big, b"CONTENT", LONG_AGO + 1)
    else:
        write(tmp_path / "other", b"CONTENT")
        (tmp_path / "other").replace(big)
    assert ask(store, big) == hashlib.sha256(big.read_bytes()).hexdigest()
    assert len(reads) == 2


def test_a_file_changed_just_now_is_not_remembered(tmp_path: Path, big: Path, reads: list[Path]) -> None:
    big.write_bytes(b"content")
    ask(tmp_path / "digests.json", big)
    assert not (tmp_path / "digests.json").exists()
    ask(tmp_path / "digests.json", big)
    assert len(reads) == 2


def test_read_only_uses_and_writes_nothing(tmp_path: Path, big: Path, reads: list[Path]) -> None:
    store = tmp_path / "digests.json"
    ask(store, big, read_only=True)
    assert not store.exists()
    ask(store, big)
    ask(store, big, read_only=True)
    assert len(reads) == 2


def test_two_processes_keep_what_both_learn(tmp_path: Path, big: Path, reads: list[Path]) -> None:
    store = tmp_path / "digests.json"
    write(tmp_path / "second.csv", b"more")
    one, other = DigestCache(store), DigestCache(store)
    one.sha256(big)
    other.sha256(tmp_path / "second.csv")
    one.save()
    other.save()
    reads.clear()
    ask(store, big)
    ask(store, tmp_path / "second.csv")
    assert reads == []


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"a": [1]}', '{"a": 3}', '{"a": [1, 2, 3, null]}', "[" * 100_000]
)
def test_a_damaged_cache_is_replaced_with_a_warning(
    tmp_path: Path, big: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "digests.json"
    store.write_text(content)
    with caplog.at_level(logging.WARNING):
        ask(store, big)
    assert "digests.json is damaged" in caplog.text
    assert list(json.loads(store.read_text())) == [str(big)]


def test_a_place_that_cannot_be_written_is_no_error(
    tmp_path: Path, big: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert ask(tmp_path / "file" / "digests.json", big) == hashlib.sha256(b"content").hexdigest()
    assert "Cannot keep digests" in caplog.text


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Cannot read .*gone\.csv"):
        DigestCache(None).sha256(tmp_path / "gone.csv")
