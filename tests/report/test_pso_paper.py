"""The published values of PSO-secure sharing: they fit each other, and count only under the paper's settings."""

from __future__ import annotations

import copy
from functools import cache

import pytest
from pso_run_folder import paper_config

from fedsynth.report.paper import applicable_values, read_paper_values

SITES = ("chestxray14", "mimic", "chexpert")
METHODS = ("real", "vae_reconstruction", "edm2", "edm2_ag", "diadm", "diadm_features_filtered")


@cache
def printed(place: str) -> dict[tuple[str, str], float]:
    values = read_paper_values({"paper": paper_config()})
    return {(value.arm, value.metric): value.mean for value in values if value.place == place}


def cell(arm: str, tested: str, trained: str) -> float:
    return printed("Table 2")[arm, f"test/auroc/{tested}/{trained}"]


def test_gaps_follow_from_the_printed_auroc_but_for_the_papers_own_slip():
    table = printed("Table 1")
    gaps = {
        arm: table["real", "test/auroc"] - value
        for (arm, metric), value in table.items()
        if metric == "test/auroc"
    }
    for arm in ("edm2_ag", "diadm", "diadm_features"):
        assert table[arm, "gap"] == pytest.approx(gaps[arm], abs=1e-9)
    assert table["edm2", "gap"] == pytest.approx(0.0449)
    assert gaps["edm2"] == pytest.approx(0.0455)


def test_within_one_point_holds_without_the_filter_only():
    assert printed("Table 1")["diadm_features", "gap"] < 0.01
    filtered = cell("real", SITES[0], SITES[0]) - cell("diadm_features_filtered", SITES[0], SITES[0])
    assert filtered == pytest.approx(0.0176)
    assert printed("Table 2")["diadm_features_filtered", "gap"] == pytest.approx(filtered)


def test_every_cell_of_the_matrix_is_there_and_the_own_site_is_best_for_real_images():
    for arm in METHODS:
        assert all(0.6 < cell(arm, tested, trained) < 0.9 for tested in SITES for trained in SITES)
    for tested in SITES:
        assert max(SITES, key=lambda trained: cell("real", tested, trained)) == tested


def test_all_nine_filtered_cells_lie_below_real_images():
    assert all(
        cell("diadm_features_filtered", tested, trained) < cell("real", tested, trained)
        for tested in SITES
        for trained in SITES
    )


def test_the_diagonal_that_is_repeated_for_one_site_agrees_with_the_matrix():
    table = printed("Table 2")
    assert table["vae_reconstruction", "test/auroc"] == cell("vae_reconstruction", SITES[0], SITES[0])
    assert table["diadm_features_filtered", "test/auroc"] == cell(
        "diadm_features_filtered", SITES[0], SITES[0]
    )
    assert table["data_sharing", "test/auroc"] == table["data_sharing", f"test/auroc/{SITES[0]}/all"]


def test_no_image_number_stands_twice():
    names = [value.name for value in read_paper_values({"paper": paper_config()})]
    assert len(set(names)) == len(names)


@pytest.fixture
def paper_run() -> dict:
    """A config that meets every condition, written from the conditions themselves."""
    config: dict = {"paper": paper_config(), "stages": {}}
    for path, wanted in config["paper"]["when"].items():
        if path.startswith("stages."):
            *folder, name = path.split(".")
            section = config
            for part in folder:
                section = section.setdefault(part, {})
            section[name] = wanted
    config["stages"] |= {
        "tstr_diadm_unfiltered": {},
        "tstr_diadm_features_unfiltered": {},
        "audit_diadm_unfiltered": {},
        "pseudo_features": {"encoder": "swav"},
    }
    return config


def test_under_the_papers_settings_the_values_of_the_runs_stages_count(paper_run):
    found = applicable_values([paper_run])
    assert ("tstr_real", "real", "test/auroc") in found
    assert ("audit_diadm_unfiltered", "diadm", "irs/inf_a") in found
    assert ("audit_diadm_unfiltered", "diadm", "frechet/unstated") not in found  # its encoder is Inception
    assert not any(stage == "table2" for stage, _, _ in found)


@pytest.mark.parametrize(
    ("stage", "key", "value"),
    [
        ("images", "dataset", "kermany"),
        ("images", "image_size", 28),
        ("image_codec", "codec", {"name": "unshuffle"}),
        ("tstr_real", "network", "slim_densenet"),
        ("diadm", "batch_size", 128),
        ("synthesize_images", "num_candidates", 8),
    ],
)
def test_other_data_or_networks_withhold_everything(paper_run, stage, key, value):
    changed = copy.deepcopy(paper_run)
    changed["stages"][stage][key] = value
    assert applicable_values([changed]) == {}
