"""A licensed corpus through the stage ``xray_images``, from its config to images, and what is refused before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import run_stage, stage_context

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "cxr_sites"))

from written_sites import write_chestxray14, write_image

from fedsynth.composition import compose_config, resolved
from fedsynth.data.cxr_sites.source import locate_site
from fedsynth.data.cxr_sites.table import LABELS
from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.stage import Sensitivity
from fedsynth.run_settings import check_run_settings
from fedsynth.run_sources import obtain_sources, planner_sources, source_records, sources_on_disk
from fedsynth.stages.image_set import read_image_set

BASE = (
    "+data=cxr_sites", "+stage@stages.images=xray_images", "experiment_name=tiny", "data.image_size=16",
    "data.split_fractions=[0.5,0.25,0.25]",
)  # fmt: skip


def config_of(log_dir: Path, *overrides: str) -> dict[str, Any]:
    config = resolved(compose_config([*BASE, f"paths.log_dir={log_dir}", *overrides]))
    check_run_settings(config)
    return config


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """240 images of 120 patients; image i has the label i mod 8."""
    called = ["Effusion" if label == "Pleural Effusion" else label for label in LABELS]
    write_chestxray14(tmp_path / "site", [(number // 2, called[number % 8], "PA") for number in range(240)])
    return tmp_path / "site"


def test_corpus_goes_from_its_config_to_image_sets(tmp_path: Path, site: Path) -> None:
    config = config_of(tmp_path / "logs", f"data.roots.chestxray14={site}")
    sources = obtain_sources(config)
    (planned,) = plan_stages(config["stages"], {}, planner_sources(sources))
    assert planned.sensitivity is Sensitivity.PRIVATE
    assert [record["file"] for record in source_records(sources["xray"])] == [
        "Data_Entry_2017.csv",
        "names of 240 images",
    ]
    made = run_stage("xray_images", planned.settings, {}, stage_context(tmp_path / "images", sources=sources))
    people = []
    for split in ("train", "val", "test"):
        images = read_image_set(made, split)
        assert images.patient is not None
        assert (images.task, images.classes, images.image.shape[1:]) == ("multilabel", LABELS, (1, 16, 16))
        # Image i is grey level i mod 200 all over.
        grey = images.image[:, 0, 0, 0].long()
        assert torch.equal(images.label.argmax(1), grey % 8)
        people.append(set(images.patient.tolist()))
    assert len(people[0] | people[1] | people[2]) == sum(map(len, people)) == 120
    assert made.manifest["notes"]["splits"]["train"]["patients"] == len(people[0]) == 60


def test_plan_knows_the_same_key_and_writes_nothing(tmp_path: Path, site: Path) -> None:
    config = config_of(tmp_path / "logs", f"data.roots.chestxray14={site}")
    found, remarks = sources_on_disk(config)
    assert not remarks
    assert not (tmp_path / "logs").exists()
    assert found["xray"].digest == obtain_sources(config)["xray"].digest
    with (site / "Data_Entry_2017.csv").open("a") as file:
        file.write("00000999_000.png,Edema,0,999,058Y,M,PA,1,1,0.1,0.1\n")
    write_image(site / "images" / "00000999_000.png", 7)
    assert sources_on_disk(config)[0]["xray"].digest != found["xray"].digest


def test_missing_images_stop_a_run_are_a_remark_of_a_plan_and_are_counted_if_allowed(
    tmp_path: Path, site: Path
) -> None:
    words = (tmp_path / "logs", f"data.roots.chestxray14={site}")
    whole = obtain_sources(config_of(*words))["xray"].digest
    for number in (8, 9):
        (site / "images" / f"{number // 2:08d}_{number:03d}.png").unlink()
    found, remarks = sources_on_disk(config_of(*words))
    assert not found
    assert "lacks 2 of the 240" in remarks[0]
    with pytest.raises(DataError, match=r"lacks 2 of the 240 .*data\.allow_missing_files=true"):
        obtain_sources(config_of(*words))
    config = config_of(*words, "data.allow_missing_files=true")
    sources = obtain_sources(config)
    assert sources["xray"].digest != whole
    assert sources_on_disk(config)[0]["xray"].digest == sources["xray"].digest
    (planned,) = plan_stages(config["stages"], {}, planner_sources(sources))
    made = run_stage("xray_images", planned.settings, {}, stage_context(tmp_path / "images", sources=sources))
    notes = made.manifest["notes"]
    assert notes["dropped"]["no file"] == 2
    assert sum(split["images"] for split in notes["splits"].values()) == 238


def test_absent_corpus_stops_a_run_and_is_a_remark_of_a_plan(tmp_path: Path) -> None:
    config = config_of(tmp_path / "logs", "data.roots.chestxray14=null")
    with pytest.raises(DataError, match=r"chestxray14 not found: data\.roots\.chestxray14 is not set"):
        obtain_sources(config)
    found, remarks = sources_on_disk(config)
    assert not found
    assert "data.roots.chestxray14 is not set" in remarks[0]


def test_folder_without_the_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks mimic-cxr-2\.0\.0-chexpert\.csv"):
        locate_site("mimic", tmp_path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.labels=abnormal", r"labels must be eight for dataset=chestxray14, got 'abnormal'"),
        ("stages.images.num_sites=3", r"num_sites must be 1"),
        ("data.single_label_only=true", r"single_label_only must be False"),
        ("data.split_fractions=[0.5,0.5]", r"split_fractions must be three shares"),
    ],
)
def test_settings_that_these_data_do_not_have_are_refused(tmp_path: Path, override: str, said: str) -> None:
    config = config_of(tmp_path / "logs", override)
    with pytest.raises(ConfigError, match=said):
        plan_stages(config["stages"], {}, planner_sources({}))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.roots.mimic={}", r"data\.roots\.mimic must be a folder or null, got {}"),
        ("data.roots.mimic=[]", r"data\.roots\.mimic must be a folder or null, got \[\]"),
        ("data.roots.mimic=7", r"data\.roots\.mimic must be a folder or null, got 7"),
        ("data.source=simulated", r"data\.source must be one of real, got 'simulated'.*Nothing stands in"),
        ("data.dataset=padchest", r"data\.dataset must be one of mimic, chexpert, chestxray14"),
        ("data.download=true", r"data\.download must be one of False"),
        ("data.allow_missing_files=off", r"data\.allow_missing_files must be true or false, got 'off'"),
        ("data.allow_missing_files=2", r"data\.allow_missing_files"),
    ],
)
def test_data_config_is_checked(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(tmp_path / "logs", override)
