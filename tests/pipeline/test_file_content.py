"""Files that settings name enter keys by what they hold, not by where they lie."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import plan, run, statuses
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.errors import ConfigError
from fedsynth.pipeline import file_content
from fedsynth.pipeline.file_content import content_key


def key(weights: str | Path | None) -> str:
    (planned,) = plan(
        {"weighted": {"stage": "toystages.weighted", "weights": weights and os.fspath(weights)}}
    )
    return planned.key


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_other_bytes_are_another_key_and_the_same_bytes_elsewhere_are_not(tmp_path: Path) -> None:
    first, moved = write(tmp_path / "a" / "w.pth", b"weights"), write(tmp_path / "b" / "v.pt", b"weights")
    before = key(first)
    assert key(moved) == before
    # The same size, in the same tick of the clock.
    write(first, b"WEIGHTS")
    assert key(first) != before
    write(first, b"weights")
    assert key(first) == before
    assert len({before, key(None), key("hub/model"), key(tmp_path / "absent.pth")}) == 4


@given(st.text().filter(lambda text: "\0" not in text))
def test_what_names_no_file_stays_as_it_is(value: str) -> None:
    if not os.path.exists(os.path.expanduser(value)):
        assert content_key(value) == value


def test_a_file_counts_by_its_sha256(tmp_path: Path) -> None:
    path = write(tmp_path / "w", b"abc")
    assert content_key(str(path)) == {"sha256": hashlib.sha256(b"abc").hexdigest()}
    assert content_key(None) is None


def test_a_folder_counts_by_the_names_and_bytes_of_its_files(tmp_path: Path) -> None:
    def folder(name: str, **files: bytes) -> Path:
        for file, content in files.items():
            write(tmp_path / name / file.replace("_", "/"), content)
        return tmp_path / name

    one = content_key(str(folder("one", vae_config=b"c", vae_weights=b"w", unet=b"u")))
    assert content_key(str(folder("two", vae_config=b"c", vae_weights=b"w", unet=b"u"))) == one
    others = [
        folder("swapped", vae_config=b"w", vae_weights=b"c", unet=b"u"),
        folder("renamed", vae_config=b"c", vae_other=b"w", unet=b"u"),
        folder("more", vae_config=b"c", vae_weights=b"w", unet=b"u", new=b""),
        folder("changed", vae_config=b"c", vae_weights=b"w", unet=b"U"),
    ]
    assert all(content_key(str(other)) != one for other in others)
    # What is left behind by tools, or lies in another part of the folder, is not read.
    write(tmp_path / "two" / ".cache" / "lock", b"1")
    assert content_key(str(tmp_path / "two")) == one
    part = content_key(str(tmp_path / "one"), below="vae")
    assert part == content_key(str(others[3]), below="vae") != content_key(str(others[1]), below="vae")


def test_a_settled_file_is_read_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = write(tmp_path / "w", b"abc"), []
    os.utime(path, ns=(0, 10**18))
    real = file_content.file_digest
    monkeypatch.setattr(file_content, "file_digest", lambda path: read.append(path) or real(path))
    first = content_key(str(path))
    assert content_key(str(path)) == first
    assert len(read) == 1
    write(path, b"abd")
    os.utime(path, ns=(0, 10**18 + 1))
    assert content_key(str(path)) != first


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "w", b"abc")
    path.chmod(0)
    with pytest.raises(ConfigError, match=rf"Cannot read {path}.*permissions"):
        content_key(str(path))


def test_unreadable_bytes_are_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "w", b"abc")

    def broken(path: Path) -> str:
        raise OSError(5, "Input/output error", os.fspath(path))

    monkeypatch.setattr(file_content, "file_digest", broken)
    with pytest.raises(ConfigError, match=rf"Cannot read {path}: Input/output error"):
        content_key(str(path))


def test_a_stored_artifact_names_the_file_of_this_run(tmp_path: Path) -> None:
    """The file of the run that made it may be gone; whoever opens the artifact must find the one that is there."""

    def done(weights: Path) -> dict[str, Any]:
        stages = {"weighted": {"stage": "toystages.weighted", "weights": str(weights)}}
        return run(tmp_path / "store", stages)

    old, new = write(tmp_path / "old", b"abc"), write(tmp_path / "new", b"abc")
    assert done(old)["weighted"]["artifact"].manifest["settings"] == {"weights": str(old)}
    old.unlink()
    again = done(new)
    assert statuses(again) == {"weighted": "cached"}
    artifact = again["weighted"]["artifact"]
    assert artifact.manifest["settings"] == {"weights": str(new)}
    assert artifact.manifest["key_parts"]["settings"] == {"weights": content_key(str(new))}


def test_keys_of_files_need_no_torch() -> None:
    code = "import sys, fedsynth.pipeline.file_content; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
