"""Tables about image sets say of how many images, and singling out says what a space had to do with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pso_run_folder import SCORES, ImageFolder, finish_image_run
from test_pso_sections import cells_of, material

from fedsynth.report.sections.pso_quality import image_quality_section
from fedsynth.report.sections.pso_singling_out import singling_out_section
from fedsynth.report.sections.pso_utility import image_utility_section
from run_folders import metric


def run_of(folder: Path) -> ImageFolder:
    run = ImageFolder(folder, 42, simulated=False)
    run.add_images()
    run.add_networks()
    return run


def add_classifier(run: ImageFolder, arm: str, train: str, size: int) -> None:
    rows = [metric(arm, "test/auroc", SCORES[arm], 0)]
    run.add(
        f"tstr_{arm}", "tstr_densenet", {"train": train, "images": "images"}, metrics=rows,
        notes={"num_training": size}, arm=arm,
    )  # fmt: skip


@pytest.mark.parametrize(("size", "is_told"), [(1000, True), (4089, False)])
def test_utility_says_of_how_many_images_and_that_a_smaller_set_costs(
    tmp_path: Path, size: int, is_told: bool
) -> None:
    run = run_of(tmp_path)
    run.add_selection("edm2")
    add_classifier(run, "real", "images", 4089)
    add_classifier(run, "edm2", "edm2", size)
    text = image_utility_section(material(finish_image_run(run, {}), log_dir=tmp_path)).text
    assert cells_of(text, "real images")[1] == "4,089"
    assert cells_of(text, "EDM-2")[1] == f"{size:,}"
    assert ("4,089 real training images against 1,000 in other sets" in text) == is_told


def add_audit(run: ImageFolder, arm: str, n: int, use: str) -> None:
    run.add(
        f"audit_{arm}", "audit_images", {"released": arm, "images": "images", "features": "features"}, arm=arm,
        metrics=[metric(arm, "frechet/train", 1.0, 0), metric(arm, "irs/alpha", 0.4, 0)],
        notes={
            "spaces": {"lite": {"is_primary": True, "irs": [
                {"set": "released", "n": n, "N": 4089}, {"set": "test", "n": 624, "N": 4089}]}},
            "uses": {"lite": use, "pixel_pca64": "not used"},
            "table": [{"test": "T1", "space": "lite", "quantity": "of released images", "value": 0.1, "low": 0.0,
                       "high": 0.2, "chance_or_control": 0.01, "note": ""}],
        },
    )  # fmt: skip


def test_quality_says_n_of_irs_and_singling_out_what_spaces_were_used_for(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    for arm, n, use in (("edm2", 1000, "not used"), ("diadm", 800, "the condition")):
        run.add_selection(arm)
        add_audit(run, arm, n, use)
    found = material(finish_image_run(run, {}), log_dir=tmp_path)
    text = image_quality_section(found).text
    assert "IRS: n of training images" in text
    assert cells_of(text, "EDM-2")[2] == "1,000 of 4,089"
    assert cells_of(text, "DiADM")[2] == "800 of 4,089"
    assert "compare sets of equal n only" in text
    told = singling_out_section(found).text
    assert "- **lite**: not used (EDM-2, unfiltered)" in told or "- **lite**: not used (EDM-2)" in told
    assert "- **lite**: the condition (DiADM" in told
    assert "- **pixel_pca64**: not used\n" in told
