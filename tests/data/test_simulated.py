from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import wfdb

from fedsynth.data import simulated
from fedsynth.data.medmnist import read_medmnist
from fedsynth.data.mitbih import read_beats
from fedsynth.data.simulated import write_simulated
from fedsynth.errors import ConfigError, DataError


def test_pneumonia_phantoms_are_learnable_but_not_trivially(simulated_dir: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    data = read_medmnist(simulated_dir / "medmnist" / "pneumoniamnist.npz")
    flat = {split: pixels.reshape(len(pixels), -1) / 255 for split, pixels in data.images.items()}
    model = LogisticRegression(C=0.01, max_iter=200).fit(flat["train"], data.labels["train"][:, 0])
    auroc = roc_auc_score(data.labels["test"][:, 0], model.predict_proba(flat["test"])[:, 1])
    assert 0.75 < auroc < 0.99


def test_pneumonia_class_ratio_is_about_one_to_three(simulated_dir: Path) -> None:
    labels = read_medmnist(simulated_dir / "medmnist" / "pneumoniamnist.npz").labels["train"]
    assert labels.shape == (1200, 1)
    assert abs(labels.mean() - 0.742) < 4 * (0.742 * 0.258 / 1200) ** 0.5


def test_every_chest_label_occurs_in_every_split(
    simulated_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        data = read_medmnist(simulated_dir / "medmnist" / "chestmnist.npz")
    assert [data.labels[split].shape for split in data.labels] == [(600, 14), (100, 14), (200, 14)]
    assert all((labels.sum(axis=0) > 0).all() for labels in data.labels.values())
    assert caplog.text == ""


def test_simulated_records_hold_all_beat_kinds_and_are_marked(simulated_dir: Path) -> None:
    beats = read_beats(simulated_dir / "mitdb")
    assert len(beats.channel) == 20
    assert sorted(set(beats.symbol.tolist())) == ["A", "L", "N", "R", "V"]
    assert set(beats.channel.values()) == {"MLII", "V5"}
    assert 0.2 < beats.label.mean() < 0.6
    assert min(np.bincount(beats.record)[100:120]) > 40  # no record lost its beats
    header = wfdb.rdheader(str(simulated_dir / "mitdb" / "100"))
    assert "SIMULATED" in header.comments[0]
    assert 60 * 360 <= header.sig_len <= 90 * 360


def test_existing_data_is_reused_and_nothing_temporary_stays(
    simulated_root: Path, simulated_dir: Path
) -> None:
    before = (simulated_dir / "mitdb" / "100.dat").stat().st_mtime_ns
    assert write_simulated("mitdb", simulated_root, seed=0, size=28) == simulated_dir / "mitdb"
    assert (simulated_dir / "mitdb" / "100.dat").stat().st_mtime_ns == before
    assert {path.name for path in simulated_dir.iterdir() if path.suffix != ".lock"} == {"medmnist", "mitdb"}


def test_content_is_a_function_of_the_seed(tmp_path: Path, simulated_dir: Path) -> None:
    first = read_medmnist(simulated_dir / "medmnist" / "chestmnist.npz").images["train"]
    again = read_medmnist(write_simulated("chestmnist", tmp_path, seed=0, size=28)).images["train"]
    other = read_medmnist(write_simulated("chestmnist", tmp_path, seed=1, size=28)).images["train"]
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_size_goes_into_name_and_shape(tmp_path: Path) -> None:
    path = write_simulated("chestmnist", tmp_path, seed=0, size=64)
    assert path.name == "chestmnist_64.npz"
    assert read_medmnist(path).images["val"].shape == (100, 64, 64)


def test_interrupted_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulated.np, "savez_compressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_simulated("chestmnist", tmp_path, seed=0, size=28)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert list(tmp_path.rglob(".*")) == []  # the temporary directory


@pytest.mark.parametrize("change", [{"name": "mnist"}, {"seed": -1}, {"size": 8}])
def test_impossible_request_is_a_config_error(tmp_path: Path, change: dict) -> None:
    request = {"name": "mitdb", "seed": 0, "size": 28} | change
    with pytest.raises(ConfigError):
        write_simulated(request.pop("name"), tmp_path, **request)


def test_unwritable_place_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="Cannot write"):
        write_simulated("mitdb", tmp_path / "file", seed=0, size=28)
