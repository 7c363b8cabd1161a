"""The stage ``xray_images``: what it stores, what its settings refuse, and how the data configs fill them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_stages import run_stage, stage_context
from tiny_xray import STORED, write_kermany, xray_settings, xray_source

from fedsynth.composition import compose_config, resolved
from fedsynth.data.xray.kermany import ETIOLOGIES, read_kermany
from fedsynth.data.xray.resize import resize_images
from fedsynth.data.xray.source import XRAY, combine
from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.stage import Sensitivity
from fedsynth.run_settings import check_run_settings
from fedsynth.run_sources import planner_sources
from fedsynth.stages.image_set import ImageSet, read_image_set

SPLITS = ("train", "val", "test")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return xray_source(write_kermany(tmp_path_factory.mktemp("xray")))


def stored(folder: Path, sources: dict[str, Any], settings: Any) -> Artifact:
    return run_stage("xray_images", settings, {}, stage_context(folder, sources=sources))


def test_every_image_is_stored_once_resized_with_its_class(tmp_path: Path, sources: dict[str, Any]) -> None:
    made = stored(tmp_path / "images", sources, xray_settings())
    wanted = read_kermany(sources[XRAY].files[0].path)
    pixels = resize_images(wanted.image, 8)
    found = [read_image_set(made, split) for split in SPLITS]
    rows = sorted(
        (image.numpy().tobytes(), int(label))
        for images in found
        for image, label in zip(images.image, images.label, strict=True)
    )
    assert rows == sorted(
        (image.tobytes(), int(label)) for image, label in zip(pixels, wanted.label(), strict=True)
    )
    assert found[0].classes == ETIOLOGIES
    assert made.manifest["notes"]["stored_size"] == STORED
    assert made.manifest["notes"]["image_shape"] == [1, 8, 8]


def test_no_patient_is_in_two_splits_or_sites_and_numbers_hold_everywhere(
    tmp_path: Path, sources: dict[str, Any]
) -> None:
    def people(images: ImageSet) -> set[int]:
        assert images.patient is not None
        return set(images.patient.tolist())

    shares = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]
    parts = {}
    for site in range(3):
        made = stored(
            tmp_path / f"site{site}", sources, xray_settings(num_sites=3, site=site, site_shares=shares)
        )
        assert made.manifest["notes"]["site"] == site
        parts |= {(site, split): read_image_set(made, split) for split in SPLITS}
    assert sum(len(people(images)) for images in parts.values()) == 120
    assert len(set().union(*map(people, parts.values()))) == 120
    whole = stored(tmp_path / "all", sources, xray_settings())
    number = {}
    for split in SPLITS:
        images = read_image_set(whole, split)
        assert images.patient is not None
        number |= {
            image.numpy().tobytes(): int(person)
            for image, person in zip(images.image, images.patient, strict=True)
        }
    for images in parts.values():
        assert images.patient is not None
        assert [number[image.numpy().tobytes()] for image in images.image] == images.patient.tolist()


def test_leaving_classes_out_renumbers_nobody(tmp_path: Path, sources: dict[str, Any]) -> None:
    whole = stored(tmp_path / "a", sources, xray_settings())
    some = stored(tmp_path / "b", sources, xray_settings(classes=["virus", "normal"]))
    number: dict[bytes, int] = {}
    for split in SPLITS:
        images = read_image_set(whole, split)
        number |= dict(zip([i.numpy().tobytes() for i in images.image], images.patient.tolist(), strict=True))  # type: ignore[union-attr]
    train = read_image_set(some, "train")
    assert train.classes == ("virus", "normal")
    assert train.patient is not None
    assert [number[image.numpy().tobytes()] for image in train.image] == train.patient.tolist()


def test_two_data_sets_share_no_patient_number(tmp_path: Path, sources: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    labels = np.zeros((90, 2), np.uint8)
    labels[:30, 0], labels[30:60, 1] = 1, 1
    (tmp_path / "chest").mkdir()
    np.savez(
        tmp_path / "chest" / "nih_chestxray14_1000_64.npz",
        images=rng.integers(0, 256, (90, STORED, STORED), dtype=np.uint8),
        labels=labels,
        label_names=np.array(["Effusion", "Edema"]),
        patient_id=np.arange(90) // 2,
    )
    from fedsynth.data.sources import locate

    both = {XRAY: combine({**sources[XRAY].datasets, "nih1000": locate("nih1000", tmp_path, download=False)})}
    first = read_image_set(stored(tmp_path / "a", both, xray_settings()), "train")
    made = stored(tmp_path / "b", both, xray_settings("nih1000"))
    second = read_image_set(made, "train")
    assert second.task == "multilabel"
    assert second.label.dtype == torch.uint8
    assert first.patient is not None
    assert second.patient is not None
    assert not set(first.patient.tolist()) & set(second.patient.tolist())
    assert made.manifest["notes"]["dataset"] == "nih1000"


def test_the_split_seed_alone_decides_who_is_tested(tmp_path: Path, sources: dict[str, Any]) -> None:
    first, again, other = (
        read_image_set(stored(tmp_path / name, sources, xray_settings(split_seed=seed)), "test")
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert torch.equal(first.image, again.image)
    assert first.patient is not None
    assert other.patient is not None
    assert set(first.patient.tolist()) != set(other.patient.tolist())


def test_a_limit_holds_for_each_split(tmp_path: Path, sources: dict[str, Any]) -> None:
    made = stored(tmp_path / "a", sources, xray_settings(max_images=[30, 9, 12]))
    assert [
        len(read_image_set(made, split)) <= most for split, most in zip(SPLITS, (30, 9, 12), strict=True)
    ] == [True] * 3
    assert min(read_image_set(made, "train").counts().values()) >= 8


def test_faults_name_the_stage_and_the_settings(tmp_path: Path, sources: dict[str, Any]) -> None:
    colored = xray_source(write_kermany(tmp_path / "colored", 4, color=True))
    with pytest.raises(DataError, match=r"(?s)color or 3-D images.*From stages\.a, where dataset=kermany"):
        stored(tmp_path / "a", colored, xray_settings())
    with pytest.raises(ConfigError, match=r"image_size=32 exceeds the stored size of 16"):
        stored(tmp_path / "b", sources, xray_settings(image_size=32))
    with pytest.raises(ConfigError, match=r"classes must name two or more different ones of normal"):
        stored(tmp_path / "c", sources, xray_settings(classes=["normal", "fungus"]))
    with pytest.raises(ConfigError, match=r"2 rows \(one a site\) and 3 columns"):
        stored(tmp_path / "d", sources, xray_settings(num_sites=2, site=0, site_shares=[[0.5, 0.5]] * 2))
    with pytest.raises(DataError, match=r"at least 60 patients of every class, but site \d has \d+ of class"):
        stored(tmp_path / "e", sources, xray_settings(num_sites=2, site=0, min_patients=60))


def test_one_image_a_patient_is_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_kermany(tmp_path / "data")
    path = folder / "chest" / "kermany_pediatric_64.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    _, first = np.unique(arrays["patient_key"], return_index=True)
    np.savez(path, **{name: values[first] for name, values in arrays.items()})
    with caplog.at_level(logging.WARNING):
        stored(tmp_path / "a", xray_source(folder), xray_settings())
    assert "has one image only; no identity network" in caplog.text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.labels=eight", r"labels must be one of etiology, binary, abnormal"),
        ("data.split_fractions=[0.5,0.5]", r"split_fractions must be three shares"),
        ("data.max_images=[10,10]", r"max_images must be three numbers"),
        ("stages.images.site=1", r"site must be below num_sites=1"),
        ("data.site_shares=[[0.5,0.5]]", r"every column must sum to 1"),
        ("data.dataset=mnist", r"dataset must be one of kermany"),
        ("data.image_size=4", r"image_size must be ≥ 8"),
        ("data.classes=[normal]", r"classes must name at least two"),
    ],
)
def test_settings_are_refused_before_anything_is_read(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        xray_settings("kermany", override)


def test_a_set_without_a_list_has_no_official_split() -> None:
    with pytest.raises(ConfigError, match=r"nih1000 comes without the publisher's test list"):
        xray_settings("nih1000", "data.split=official")


@pytest.mark.parametrize("data", ["kermany", "nih1000", "pneumoniamnist", "xray_sites"])
def test_every_data_config_plans_a_private_client_stage(data: str) -> None:
    overrides = [
        f"+data={data}",
        "+stage@stages.images=xray_images",
        "experiment_name=tiny",
        "data.image_size=32",
    ]
    config = resolved(compose_config(overrides))
    check_run_settings(config)
    (planned,) = plan_stages(config["stages"], {}, planner_sources({}))
    assert planned.sensitivity is Sensitivity.PRIVATE
    assert planned.settings.num_sites == (3 if data == "xray_sites" else 1)


def test_downloading_what_has_no_address_is_refused_and_other_data_keep_their_sizes() -> None:
    base = ["+stage@stages.images=xray_images", "experiment_name=tiny"]
    with pytest.raises(
        ConfigError, match=r"data\.download must be one of False, got True\. No public address"
    ):
        check_run_settings(resolved(compose_config(["+data=kermany", "data.download=true", *base])))
    with pytest.raises(ConfigError, match=r"data\.image_size must be one of 28, 64, 128, 224, got 32"):
        check_run_settings(resolved(compose_config(["experiment=feddp_pald", "data.image_size=32"])))
