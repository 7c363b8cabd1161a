"""Bad data and folders on the command line: exit status 1 and one message that names the file, no traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import EXPERIMENT, TINY, Finished, environment
from tiny_data import image_arrays, write_data, write_medmnist, write_mitdb


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_nan(root: Path) -> None:
    images = image_arrays()["train_images"].astype(np.float32)
    images[0, 0, 0] = np.nan
    write_medmnist(root, train_images=images)


def one_class(root: Path) -> None:
    write_medmnist(root, val_labels=np.ones((24, 1), dtype=np.uint8))


# What is done to good data, words beside TINY, and what the message must name.
CASES: dict[str, tuple[Callable[[Path], Any], list[str], list[str]]] = {
    "images missing": (
        lambda root: (root / "medmnist" / "pneumoniamnist.npz").unlink(), [],
        ["pneumoniamnist not found. Looked at:", "medmnist/pneumoniamnist.npz", "DATA_DIR"],
    ),
    "ECG missing": (lambda root: shutil.rmtree(root / "mitdb"), [], ["mitdb", "not found. Looked at:", "DATA_DIR"]),
    "images cut short": (
        lambda root: cut(root / "medmnist" / "pneumoniamnist.npz"), [],
        ["medmnist/pneumoniamnist.npz is truncated or damaged"],
    ),
    "pixels NaN": (with_nan, [], ["pneumoniamnist.npz, key train_images: dtype float32 with NaN pixels"]),
    "label 7": (
        lambda root: write_medmnist(root, val_labels=np.full((24, 1), 7)), [],
        ["pneumoniamnist.npz, key val_labels: label 7"],
    ),
    "one class": (one_class, [], ["pneumoniamnist.npz, key val_labels: only class 1 occurs"]),
    "signal cut short": (lambda root: cut(root / "mitdb" / "103.dat"), [], ["mitdb", "103"]),
    "annotations missing": (lambda root: (root / "mitdb" / "105.atr").unlink(), [], ["105.atr"]),
    "normal beats only": (
        lambda root: write_mitdb(root, "N" * 10), [],
        ["both classes are needed", "stages.clients", "label_rule=n_vs_rest"],
    ),
    "more clients than images": (
        lambda root: None, ["data.num_clients=60"],
        ["cannot give 60 clients", "stages.clients", "num_clients=60, min_records_per_client=4"],
    ),
    "LOG_DIR is a file": (lambda root: (root / "logs").write_text("x"), [], ["LOG_DIR", "logs"]),
}  # fmt: skip

# One process for all cases: torch is imported once.
DRIVER = """
import contextlib, io, json, os, sys
from fedsynth.train import main
results = {}
for name, (words, log_dir, data_dir) in json.loads(sys.argv[1]).items():
    os.environ.update(LOG_DIR=log_dir, DATA_DIR=data_dir)
    sys.argv = ["train", *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    results[name] = (code, out.getvalue(), err.getvalue())
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    root = tmp_path_factory.mktemp("bad-input")
    good = write_data(root / "good")
    runs = {}
    for name, (spoil, words, _) in CASES.items():
        folder = shutil.copytree(good, root / name)
        spoil(folder)
        only = [EXPERIMENT, *TINY, *words, "only=[clients]"]
        runs[name] = (only, str(folder / "logs"), str(folder))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(runs)],
        env=environment(root), cwd=root, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: Finished(*result) for name, result in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_ends_with_one_message(name: str, outcomes: dict[str, Finished]) -> None:
    done = outcomes[name]
    assert done.code == 1
    assert done.err.count("─ fedsynth ─") == 1, done.err
    for part in CASES[name][2]:
        assert part in done.message
    assert "Traceback" not in done.err + done.out
    assert "Error executing job" not in done.err
