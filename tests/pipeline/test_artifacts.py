"""The store: whole artifacts or none, whatever happens to processes, disks and files."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsynth.errors import ArtifactError
from fedsynth.pipeline import artifacts
from fedsynth.pipeline.artifacts import MANIFEST, Artifact, ArtifactStore, explained, is_disk_full
from fedsynth.pipeline.stage import Sensitivity

KEY = "0123456789ab" + "c" * 52
OTHER = "f" * 64
#: What the runner writes at least.
MINIMAL: dict[str, Any] = {
    "kind": "mix", "side": "server", "sensitivity": "released", "simulated": False, "settings": {},
    "inputs": {}, "metrics": [],
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def make(store: ArtifactStore, key: str = KEY, stage: str = "mix", text: str = "42") -> Artifact:
    output = store.fresh_output(stage, key)
    (output / "result.json").write_text(text)
    (output / "folder").mkdir()
    (output / "folder" / "part.bin").write_bytes(b"\0" * 10)
    return store.commit(stage, key, dict(MINIMAL))


def test_a_committed_artifact_is_found_with_all_it_holds(store: ArtifactStore) -> None:
    made = make(store)
    found = store.find("mix", KEY)
    assert found == made
    assert (found.key, found.sensitivity) == (KEY, Sensitivity.RELEASED)
    assert found.file("result.json").read_text() == "42"
    assert found.file("folder/part.bin").stat().st_size == 10
    assert found.manifest["files"].keys() == {"result.json", "folder/part.bin"}


def test_what_was_never_made_is_not_found(store: ArtifactStore) -> None:
    make(store)
    assert store.find("mix", OTHER) is None
    assert store.find("release", KEY) is None


def test_a_file_the_artifact_does_not_hold_is_refused(store: ArtifactStore) -> None:
    with pytest.raises(ArtifactError, match=r"mix 0123456789ab has no file 'x'; it holds .*result\.json"):
        make(store).file("x")


def test_nothing_is_found_before_the_commit(store: ArtifactStore) -> None:
    output = store.fresh_output("mix", KEY)
    (output / "result.json").write_text("42")
    assert store.find("mix", KEY) is None


def test_the_commit_leaves_no_scratch(store: ArtifactStore) -> None:
    make(store)
    assert [path.name for path in (store.root / "mix").iterdir()] == [KEY[:12]]


def test_a_commit_that_fails_at_the_rename_leaves_nothing(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(ArtifactError, match=r"No space left.*LOG_DIR"):
            make(store)
    assert store.find("mix", KEY) is None
    assert make(store, text="43").file("result.json").read_text() == "43"


def test_fresh_output_drops_what_a_killed_run_left_and_keeps_its_checkpoints(store: ArtifactStore) -> None:
    output = store.fresh_output("mix", KEY)
    (output / "half-written").write_text("x")
    (store.scratch("mix", KEY) / "last.ckpt").write_text("epoch 3")
    assert list(store.fresh_output("mix", KEY).iterdir()) == []
    assert (store.scratch("mix", KEY) / "last.ckpt").read_text() == "epoch 3"


def test_the_name_of_the_manifest_is_taken(store: ArtifactStore) -> None:
    (store.fresh_output("mix", KEY) / MANIFEST).write_text("{}")
    with pytest.raises(ArtifactError, match=r"stages\.mix wrote a file named manifest\.json"):
        store.commit("mix", KEY, {"sensitivity": "public"})


# -- damage --------------------------------------------------------------------------------------------------


def rewrite(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        manifest = change(json.loads((folder / MANIFEST).read_text()))
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return damage


def become_a_file(folder: Path) -> None:
    subprocess.run(["rm", "-r", str(folder)], check=True)
    folder.write_text("a file")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped byte": lambda folder: (folder / "result.json").write_text("43"),
    "truncated file": lambda folder: (folder / "folder" / "part.bin").write_bytes(b"\0"),
    "lost file": lambda folder: (folder / "result.json").unlink(),
    "truncated manifest": lambda folder: os.truncate(folder / MANIFEST, 20),
    "empty manifest": lambda folder: os.truncate(folder / MANIFEST, 0),
    "lost manifest": lambda folder: (folder / MANIFEST).unlink(),
    "binary manifest": lambda folder: (folder / MANIFEST).write_bytes(b"\xff\xfe\x00"),
    "manifest is a list": rewrite(lambda manifest: [manifest]),
    "files are a list": rewrite(lambda manifest: {**manifest, "files": ["result.json"]}),
    "no key": rewrite(lambda manifest: {k: v for k, v in manifest.items() if k != "key"}),
    "key of another artifact": rewrite(lambda manifest: {**manifest, "key": KEY[:12] + "d" * 52}),
    "unknown mark": rewrite(lambda manifest: {**manifest, "sensitivity": "secret"}),
    "a file instead of a folder": become_a_file,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_artifact_is_set_aside_with_a_warning_and_nothing_else_is_lost(
    store: ArtifactStore, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    made, neighbor = make(store), make(store, key=OTHER)
    damage(made.path)
    with caplog.at_level(logging.WARNING):
        assert store.find("mix", KEY) is None
    assert "is damaged" in caplog.text
    assert len(list((store.root / "mix").glob(f"{KEY[:12]}.corrupt-*"))) == 1
    assert store.find("mix", OTHER) == neighbor
    assert store.find("mix", KEY) is None
    assert make(store) == store.find("mix", KEY)


def test_a_look_without_verification_moves_nothing(store: ArtifactStore) -> None:
    made = make(store)
    os.truncate(made.path / MANIFEST, 20)
    assert store.find("mix", KEY, verify=False) is None
    assert made.path.exists()


def test_two_runs_that_find_the_same_damage_both_go_on(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(store)
    (made.path / "result.json").write_text("43")
    real_inspect = artifacts._inspect

    def other_is_faster(folder: Path, key: str, *, verify: bool) -> Any:
        found = real_inspect(folder, key, verify=verify)
        folder.rename(folder.with_name("set aside by the other"))
        return found

    monkeypatch.setattr(artifacts, "_inspect", other_is_faster)
    assert store.find("mix", KEY) is None


# -- folders that cannot be written --------------------------------------------------------------------------


@pytest.fixture
def blocked(tmp_path: Path) -> ArtifactStore:
    """A store whose root lies below a file: nobody can write there, root neither."""
    (tmp_path / "logs").write_text("a file")
    return ArtifactStore(tmp_path / "logs" / "artifacts")


def hold(store: ArtifactStore) -> None:
    with store.lock("mix", KEY):
        pass


@pytest.mark.parametrize(
    "use",
    [
        ArtifactStore.check_writable,
        hold,
        lambda store: store.scratch("mix", KEY),
        lambda store: store.fresh_output("mix", KEY),
    ],
    ids=["check", "lock", "scratch", "output"],
)
def test_an_unwritable_store_is_one_message_that_names_log_dir(
    blocked: ArtifactStore, use: Callable[[ArtifactStore], object]
) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write .*logs/artifacts.*Not a directory.*LOG_DIR"):
        use(blocked)


def test_the_check_of_a_writable_store_leaves_nothing_behind(store: ArtifactStore) -> None:
    store.check_writable()
    assert list(store.root.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_seen_before_the_run(store: ArtifactStore) -> None:
    store.root.mkdir(parents=True)
    (store.root / f".write-test-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match=r"No space left on device.*LOG_DIR"):
        store.check_writable()


def test_full_disks_are_known_by_number_and_by_word() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "x"))
    assert is_disk_full(OSError(errno.EDQUOT, "x"))
    assert is_disk_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert not is_disk_full(OSError(errno.EACCES, "x"))
    assert not is_disk_full(ValueError("space"))


def test_only_failed_writes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="the same command goes on"), explained(tmp_path):
        raise OSError(errno.EACCES, "Permission denied")
    with pytest.raises(ValueError, match="other"), explained(tmp_path):
        raise ValueError("other")


# -- locks ---------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from fedsynth.pipeline.artifacts import ArtifactStore
with ArtifactStore(Path(sys.argv[1])).lock(sys.argv[2], sys.argv[3]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_excludes_another_process_and_is_free_once_that_is_killed(store: ArtifactStore) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.root), "mix", KEY], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with store.lock("mix", OTHER):
            pass  # Another key is free.
        assert not is_free(store, KEY)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert is_free(store, KEY)
    finally:
        holder.kill()
        holder.wait()


def is_free(store: ArtifactStore, key: str) -> bool:
    import fcntl

    with store.folder("mix", key).with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_lock_is_free_after_an_error(store: ArtifactStore) -> None:
    with pytest.raises(ZeroDivisionError), store.lock("mix", KEY):
        raise ZeroDivisionError
    assert is_free(store, KEY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", None), ("side", 3), ("settings", []), ("inputs", None), ("simulated", "no"), ("metrics", {}),
        ("metrics", [{"arm": "a"}]), ("metrics", [3]), ("files", {}), ("files", []), ("files", {"a": 3}),
    ],
)  # fmt: skip
def test_a_malformed_manifest_is_set_aside(store: ArtifactStore, field: str, value: object) -> None:
    path = make(store).path
    manifest = json.loads((path / MANIFEST).read_text()) | {field: value}
    (path / MANIFEST).write_text(json.dumps(manifest))
    assert store.find("mix", KEY, verify=False) is None
    assert store.find("mix", KEY) is None
    assert list(path.parent.glob("*.corrupt-*"))


def test_an_artifact_without_files_is_found(store: ArtifactStore) -> None:
    store.fresh_output("mix", KEY)
    made = store.commit("mix", KEY, dict(MINIMAL))
    assert store.find("mix", KEY) == made
