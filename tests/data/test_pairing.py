from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsynth.data.medmnist import MedMNISTData, read_medmnist
from fedsynth.data.mitbih import Beats, normalize_beats, read_beats
from fedsynth.data.paired import PairedClients
from fedsynth.data.pairing import build_pairs
from fedsynth.errors import ConfigError, DataError

SETTINGS: dict[str, Any] = {
    "num_clients": 3,
    "dirichlet_alpha": 0.5,
    "min_records": 2,
    "fractions": (0.7, 0.15, 0.15),
    "split_seed": 1,
    "partition_seed": 2,
    "pairing_seed": 3,
}


@pytest.fixture
def pairs(images: MedMNISTData, beats: Beats) -> PairedClients:
    return build_pairs(images, beats, **SETTINGS)


def test_every_image_is_paired_once_with_a_beat_of_its_class(
    pairs: PairedClients, images: MedMNISTData, beats: Beats
) -> None:
    for name in ("train", "val", "test"):
        split = getattr(pairs, name)
        assert split.image_id.tolist() == list(range(len(images.labels[name])))
        np.testing.assert_array_equal(split.label, images.labels[name][:, 0])
        np.testing.assert_array_equal(beats.label[split.beat_id], split.label)
        np.testing.assert_array_equal(beats.record[split.beat_id], split.record_id)


def test_ecg_records_stay_in_one_split_and_one_client(pairs: PairedClients) -> None:
    records = [set(getattr(pairs, name).record_id.tolist()) for name in ("train", "val", "test")]
    assert sum(map(len, records)) == len(set.union(*records))
    owner: dict[int, int] = {}
    for client, record in zip(pairs.train.client.tolist(), pairs.train.record_id.tolist(), strict=True):
        assert owner.setdefault(record, client) == client


def test_validation_and_test_are_global(pairs: PairedClients) -> None:
    assert set(pairs.val.client.tolist()) == set(pairs.test.client.tolist()) == {-1}
    assert set(pairs.train.client.tolist()) == {0, 1, 2}


def test_training_inputs_are_standardized(images: MedMNISTData, beats: Beats) -> None:
    """Eq. (6): zero mean, unit variance over training images; both equations by direct computation."""
    # Without flat beats μ_E = 0 and σ_E = 1 for any set of beats, and the choice of the set would not show.
    beats.window[np.isin(beats.record, [100, 101, 102, 103, 104, 105])] = 1.0
    pairs = build_pairs(images, beats, **SETTINGS)
    assert float(pairs.statistics.ecg_std) < 0.95
    assert abs(pairs.train.image.double().mean()) < 1e-6
    assert abs(pairs.train.image.double().std(correction=0) - 1) < 1e-5
    pixels = images.images["train"] / 255.0
    expected = (images.images["test"][:, None] / 255.0 - pixels.mean()) / pixels.std()
    np.testing.assert_allclose(pairs.test.image, expected, atol=1e-5)
    train = np.isin(beats.record, pairs.report["splits"]["train"]["records"])
    normalized = normalize_beats(beats.window).astype(np.float64)
    expected = (normalized - normalized[train].mean()) / normalized[train].std()
    np.testing.assert_allclose(pairs.val.ecg[:, 0], expected[pairs.val.beat_id], atol=1e-5)


def test_beats_are_used_equally_often_up_to_one(pairs: PairedClients, beats: Beats) -> None:
    """π_c cycles through a permutation, so uses of one (client, class) pool differ by at most one."""
    owner = {record: c for c, held in enumerate(pairs.report["clients"]) for record in held["records"]}
    beat_client = np.array([owner.get(record, -1) for record in beats.record.tolist()])
    for client in range(3):
        for label in (0, 1):
            used = pairs.train.beat_id[(pairs.train.client == client) & (pairs.train.label == label)]
            pool = np.flatnonzero((beat_client == client) & (beats.label == label))
            uses = np.bincount(used, minlength=len(beats.record))[pool]
            assert uses.sum() == len(used)
            assert uses.max() - uses.min() <= 1


def test_seeds_act_on_their_own_step_only(pairs: PairedClients, images: MedMNISTData, beats: Beats) -> None:
    again = build_pairs(images, beats, **SETTINGS)
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.to_tensors().values(), pairs.to_tensors().values(), strict=True)
    )
    repaired = build_pairs(images, beats, **(SETTINGS | {"pairing_seed": 9}))
    assert torch.equal(repaired.train.client, pairs.train.client)
    assert repaired.report["clients"] == pairs.report["clients"]
    assert not torch.equal(repaired.train.beat_id, pairs.train.beat_id)
    moved = build_pairs(images, beats, **(SETTINGS | {"partition_seed": 9}))
    assert moved.report["splits"]["train"]["records"] == pairs.report["splits"]["train"]["records"]
    assert torch.equal(moved.val.beat_id, pairs.val.beat_id)


def test_client_without_a_class_borrows_from_the_largest_donor(
    images: MedMNISTData, beats: Beats, caplog: pytest.LogCaptureFixture
) -> None:
    # Abnormal beats by record: two of the four records train, so one client of three has none.
    held = {100: 1, 101: 5, 102: 3, 103: 7}
    label = np.zeros_like(beats.label)
    for record, num in held.items():
        label[np.flatnonzero(beats.record == record)[:num]] = 1
    with caplog.at_level(logging.WARNING):
        pairs = build_pairs(images, dataclasses.replace(beats, label=label), **SETTINGS)
    borrowed = [entry for entry in pairs.report["borrowed_beats"] if entry["label"] == 1]
    assert borrowed
    counts = [client["beats_by_class"]["1"] for client in pairs.report["clients"]]
    for entry in borrowed:
        assert counts[entry["client"]] == 0
        assert counts[entry["donor"]] == max(counts)
        mine = (pairs.train.client == entry["client"]) & (pairs.train.label == 1)
        assert int(mine.sum()) == entry["pairs"]
        donor_records = pairs.report["clients"][entry["donor"]]["records"]
        assert set(pairs.train.record_id[mine].tolist()) <= set(donor_records)
    assert "borrow" in caplog.text


def test_clients_without_any_record_take_the_holders_in_turn_those_with_most_beats_first(
    images: MedMNISTData, beats: Beats
) -> None:
    pairs = build_pairs(images, beats, **(SETTINGS | {"num_clients": 12, "min_records": 1}))
    clients = pairs.report["clients"]
    assert any(not client["records"] for client in clients)  # more clients than training records
    for label in ("0", "1"):
        counts = {k: client["beats_by_class"][label] for k, client in enumerate(clients)}
        donors = sorted((k for k in counts if counts[k]), key=lambda k: -counts[k])
        found = [entry["donor"] for entry in pairs.report["borrowed_beats"] if entry["label"] == int(label)]
        assert found == [donors[place % len(donors)] for place in range(len(found))]
        assert len(found) > 1


def test_report_is_json_and_adds_up(pairs: PairedClients, beats: Beats) -> None:
    report = json.loads(json.dumps(pairs.report))
    assert sum(report["beats_by_symbol"].values()) == len(beats.record)
    for label in ("0", "1"):
        assert sum(client["images_by_class"][label] for client in report["clients"]) == int(
            (pairs.train.label == int(label)).sum()
        )
        assert (
            sum(client["beats_by_class"][label] for client in report["clients"])
            == report["splits"]["train"]["beats_by_class"][label]
        )
    uses = np.bincount(pairs.train.beat_id)
    assert report["splits"]["train"]["beat_uses"] == {"max": uses.max(), "mean": uses[uses > 0].mean()}
    assert report["dropped_beats"] == {"not a beat": 3}


def test_records_201_and_202_share_a_split_and_client(images: MedMNISTData, beats: Beats) -> None:
    for seed in range(8):
        pairs = build_pairs(images, beats, **(SETTINGS | {"split_seed": seed, "partition_seed": seed}))
        groups = [split["records"] for split in pairs.report["splits"].values()]
        groups += [client["records"] for client in pairs.report["clients"]]
        assert all((201 in group) == (202 in group) for group in groups)


@pytest.mark.parametrize(
    "change",
    [{"num_clients": 0}, {"dirichlet_alpha": 0.0}, {"min_records": 9999}, {"fractions": (1.0, 0.0, 0.0)}],
)
def test_impossible_settings_are_config_errors(
    images: MedMNISTData, beats: Beats, change: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        build_pairs(images, beats, **(SETTINGS | change))


def test_multi_label_images_and_one_class_beats_are_data_errors(images: MedMNISTData, beats: Beats) -> None:
    labels = {split: np.repeat(label, 14, axis=1) for split, label in images.labels.items()}
    with pytest.raises(DataError, match="14 labels"):
        build_pairs(dataclasses.replace(images, labels=labels), beats, **SETTINGS)
    with pytest.raises(DataError, match="both classes"):
        build_pairs(images, dataclasses.replace(beats, label=np.ones_like(beats.label)), **SETTINGS)


def test_constant_images_are_a_config_error(images: MedMNISTData, beats: Beats) -> None:
    black = {split: np.zeros_like(pixels) for split, pixels in images.images.items()}
    with pytest.raises(ConfigError, match="standardize"):
        build_pairs(dataclasses.replace(images, images=black), beats, **SETTINGS)


def test_flat_beats_are_a_data_error(images: MedMNISTData, beats: Beats) -> None:
    flat = dataclasses.replace(beats, window=np.zeros_like(beats.window))
    with pytest.raises(DataError, match=r"beat is flat.*\.dat"):
        build_pairs(images, flat, **SETTINGS)


@pytest.mark.real_data
def test_real_federation_has_the_papers_counts(real_dir: Path) -> None:
    images = read_medmnist(real_dir / "medmnist" / "pneumoniamnist.npz")
    pairs = build_pairs(
        images, read_beats(real_dir / "mitdb"), **(SETTINGS | {"num_clients": 5, "min_records": 8})
    )
    assert (len(pairs.train), len(pairs.val), len(pairs.test)) == (4708, 524, 624)
    assert [len(split["records"]) for split in pairs.report["splits"].values()] == [34, 7, 7]
    assert abs(float(pairs.statistics.ecg_mean)) < 1e-6
    assert abs(float(pairs.statistics.ecg_std) - 1) < 1e-4
    assert pairs.train.image.isfinite().all()
    assert pairs.train.ecg.isfinite().all()
