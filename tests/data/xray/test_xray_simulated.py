"""Simulated stand-ins: marked, read by the readers of the real files, with people one can recognize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedsynth.data import phantoms
from fedsynth.data.simulated import write_simulated
from fedsynth.data.sources import locate
from fedsynth.data.xray.images import XrayImages
from fedsynth.data.xray.kermany import read_kermany
from fedsynth.data.xray.read import read_dataset
from fedsynth.data.xray.site_data import SiteRequest, divide
from fedsynth.data.xray.source import DATASETS
from fedsynth.errors import ConfigError


@pytest.fixture(scope="module")
def simulated_sets(simulated_xray: dict[str, Path]) -> dict[str, XrayImages]:
    return {
        name: read_dataset(
            name,
            locate(dataset.source, simulated_xray[dataset.source], download=False),
            labels=dataset.labels[0],
        )
        for name, dataset in DATASETS.items()
        if dataset.source in simulated_xray
    }


def test_files_are_found_where_the_real_ones_would_be_and_are_marked(simulated_xray: dict[str, Path]) -> None:
    for name, folder in simulated_xray.items():
        source = locate(name, folder, download=False)
        assert source.simulated
        assert "simulated" in source.licence


@pytest.mark.parametrize(("name", "size"), [("kermany", 64), ("nih1000", 64), ("pneumoniamnist", 28)])
def test_sizes_and_numbers_are_those_of_a_quick_experiment(
    simulated_sets: dict[str, XrayImages], name: str, size: int
) -> None:
    images = simulated_sets[name]
    assert images.image.shape[1:] == (size, size)
    assert 900 < len(images) < 1700
    _, sizes = np.unique(images.patient_key, return_counts=True)
    assert (sizes > 1).sum() > 200
    split = "official" if DATASETS[name].has_official_test else "patient"
    report = divide(images, SiteRequest(split=split)).report
    assert all(part["patients_with_several_images"] > 10 for part in report["splits"].values())


def test_nih_stand_in_has_all_eight_labels(simulated_sets: dict[str, XrayImages]) -> None:
    images = simulated_sets["nih1000"]
    assert len(images.classes) == 8
    assert images.target.sum(0).min() > 40


def test_images_of_a_person_are_more_alike_than_those_of_others_but_not_the_same(
    simulated_sets: dict[str, XrayImages],
) -> None:
    images = simulated_sets["kermany"]
    flat = images.image[:600].reshape(600, -1).astype(np.float64)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    first, second = np.triu_indices(600, 1)
    same_class = images.label()[first] == images.label()[second]
    similarity = (flat @ flat.T)[first, second][same_class]
    same_person = (images.patient_key[first] == images.patient_key[second])[same_class]
    assert 0.65 < roc_auc_score(same_person, similarity) < 0.97
    assert similarity.max() < 0.999


def test_classes_can_be_learned_but_not_perfectly(simulated_sets: dict[str, XrayImages]) -> None:
    from sklearn.linear_model import LogisticRegression

    images = simulated_sets["kermany"]
    flat, label, test = (
        images.image[:, ::4, ::4].reshape(len(images), -1) / 255,
        images.label(),
        images.official_test,
    )
    assert test is not None
    model = LogisticRegression(C=0.1, max_iter=200).fit(flat[~test], label[~test])
    assert 0.75 < roc_auc_score(label[test], model.predict_proba(flat[test]), multi_class="ovr") < 0.99


def test_an_anatomy_is_a_person_in_every_image() -> None:
    def mean_image(anatomy: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return np.mean([phantoms.child_image(anatomy, rng, 32, "normal") for _ in range(100)], axis=0)

    again, other = mean_image(1, 1) - mean_image(1, 2), mean_image(1, 1) - mean_image(2, 2)
    assert np.abs(again - again.mean()).mean() < 0.5 * np.abs(other - other.mean()).mean()


def test_content_is_a_function_of_the_seed_and_not_of_the_size_asked_for(
    tmp_path: Path, simulated_xray: dict[str, Path]
) -> None:
    def pixels(folder: Path) -> np.ndarray:
        return read_kermany(folder / "chest" / "kermany_pediatric_64.npz").image

    first = pixels(simulated_xray["kermany"])
    np.testing.assert_array_equal(first, pixels(write_simulated("kermany", tmp_path, seed=0, size=64)))
    other = pixels(write_simulated("kermany", tmp_path, seed=1, size=28))
    assert first.shape != other.shape or (first != other).any()


def test_an_unknown_stand_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kermany"):
        write_simulated("mimic", tmp_path, seed=0, size=28)
