"""Names of image systems, and from which images a stage comes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsynth.report.glossary import arm_title, row_title
from fedsynth.report.pso_names import SYSTEMS, base_of, image_rank, image_title, paper_arm
from fedsynth.report.pso_systems import ImageSystem, Origin, origin_of
from fedsynth.report.sections.pso_sites import _matrix


@pytest.mark.parametrize(
    ("arm", "base", "title"),
    [
        ("real", "real", "real images"),
        ("edm2_ag", "edm2_ag", "EDM-2, autoguidance"),
        ("edm2_drop", "edm2", "EDM-2, drop"),
        ("diadm_features_class_balanced", "diadm_features", "DiADM + features, class balanced"),
        ("real_site_0", "real", "real images, site 0"),
        ("diadm_features_filtered_site_12", "diadm_features", "DiADM + features, filtered, site 12"),
        ("diadm_features_filtered_soft", "diadm_features", "DiADM + features, filtered, soft labels"),
        ("diadm_features_soft_site_0", "diadm_features", "DiADM + features, soft labels, site 0"),
        ("diadm_features_soft_single", "diadm_features", "DiADM + features, soft labels, single"),
        ("diadm_softplus", "diadm", "DiADM, softplus"),
        ("data_sharing_soft", "data_sharing", "shared sets of all sites, soft labels"),
        ("realistic", None, None),
        ("fedmpa", None, None),
    ],
)
def test_an_arm_is_named_after_the_longest_system_it_starts_with(arm, base, title):
    assert base_of(arm) == base
    assert image_title(arm) == title


def test_arms_stand_in_the_papers_order_and_unknown_ones_last():
    wanted = [*SYSTEMS, "zzz"]
    shuffled = wanted[3:] + wanted[:3]
    assert sorted(shuffled, key=image_rank) == wanted


def test_filtered_sets_stand_beside_the_papers_filtered_row():
    assert paper_arm("diadm_features_x", is_filtered=True) == "diadm_features_filtered"
    assert paper_arm("diadm_features", is_filtered=False) == "diadm_features"
    assert paper_arm("data_sharing", is_filtered=True) == "data_sharing"


def test_sets_with_soft_labels_stand_beside_no_row_of_the_paper():
    for arm in ("diadm_features", "diadm_features_filtered_soft", "data_sharing", "data_sharing_soft"):
        found = paper_arm(arm, is_filtered=True, has_soft_labels=True)
        assert found not in SYSTEMS
        assert found != "diadm_features_filtered"


def test_tables_of_numbers_know_image_systems():
    assert arm_title("diadm_features_filtered") == "DiADM + features, filtered"
    assert row_title("gap", "edm2") == "gap: EDM-2"
    assert row_title("reidentifier", "reidentifier") == "re-identification: pairs of unseen patients"


STAGES = {
    "images": {"stage": "xray_images"},
    "other": {"stage": "xray_images"},
    "features": {"stage": "pseudo_features", "inputs": {"images": "images"}, "encoder": "swav"},
    "net": {"stage": "diadm", "inputs": {"images": "images", "features": "features"}, "condition": "feature"},
    "drawn": {
        "stage": "synthesize_images",
        "inputs": {"denoiser": "net", "images": "images"},
        "guidance": "earlier",
    },
    "open": {
        "stage": "select_images",
        "inputs": {"candidates": "drawn", "images": "images", "reidentifier": None},
        "filter": "none",
    },
    "safe": {
        "stage": "select_images",
        "inputs": {"candidates": "drawn", "images": "other", "reidentifier": "reid"},
        "filter": "mask",
    },
    "copies": {"stage": "vae_reconstruction", "inputs": {"images": "other"}},
    "union": {"stage": "data_sharing", "inputs": {"first": "open", "second": "safe"}},
    "unions": {"stage": "data_sharing", "inputs": {"first": "safe", "second": "safe"}},
    "cycle": {"stage": "vae_reconstruction", "inputs": {"images": "cycle"}},
    "lost": {"stage": "vae_reconstruction", "inputs": {}},
}


def test_origins_are_found_by_walking_the_inputs():
    found = {name: origin_of({"stages": STAGES}, name) for name in STAGES}
    assert found["images"].sites == ("images",)
    assert found["open"].title == "diffusion on features (swav), autoguidance, unfiltered"
    assert (found["open"].sites, found["open"].is_filtered) == (("images",), False)
    assert (found["safe"].sites, found["safe"].is_filtered) == (("other",), True)
    assert found["copies"].title == "autoencoder reconstruction"
    assert (found["union"].sites, found["union"].is_filtered) == (("images", "other"), False)
    assert (found["unions"].sites, found["unions"].is_filtered) == (("other",), True)


@pytest.mark.parametrize("name", ["cycle", "lost", "net", "nowhere"])
def test_what_leads_to_no_real_images_has_no_origin(name):
    assert origin_of({"stages": STAGES}, name) is None


def test_a_union_with_soft_labels_of_one_site_has_soft_labels():
    stages = {
        "images": {"stage": "xray_images"},
        "hard": {"stage": "select_images", "labels": "hard", "inputs": {"images": "images"}},
        "soft": {"stage": "select_images", "labels": "soft", "inputs": {"images": "images"}},
        "both": {"stage": "data_sharing", "inputs": {"first": "hard", "second": "soft"}},
        "neither": {"stage": "data_sharing", "inputs": {"first": "hard", "second": "hard"}},
    }
    found = {name for name in stages if origin_of({"stages": stages}, name).has_soft_labels}
    assert found == {"soft", "both"}
    # Titles are the rows of the matrix of sites: unlike sets must not share one.
    titles = {name: origin_of({"stages": stages}, name).title for name in stages}
    assert len(set(titles.values())) == len(titles)


def test_the_matrix_of_sites_hides_no_set_behind_another_of_the_same_origin():
    values = {"shared_a": 0.81, "shared_b": 0.92}
    material = SimpleNamespace(get=lambda stage, arm, metric: SimpleNamespace(mean=values[stage], std=None))
    origin = Origin("shared sets of 2 sites", ("a", "b"))
    systems = [ImageSystem(name, name, "made", "a", origin, name) for name in values]
    material.runs = [SimpleNamespace(config={"stages": {"a": {"site": 0}}})]
    text = _matrix(material, systems, ["a"])
    assert "81.00" in text
    assert "92.00" in text
