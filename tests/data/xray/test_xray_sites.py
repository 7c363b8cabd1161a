"""Sites share no patient, have the mixes asked for, and every class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_patients import made_images, made_patients

from fedsynth.data.xray.images import XrayImages, identical_groups
from fedsynth.data.xray.patients import patients_of
from fedsynth.data.xray.site_data import SiteRequest, divide
from fedsynth.data.xray.sites import assign_sites
from fedsynth.data.xray.splits import SPLITS
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator

SHARES = [[0.5, 0.2, 0.25], [0.3, 0.5, 0.25], [0.2, 0.3, 0.5]]
CLASSES = ("a", "b", "c")


def sites_of(classes: list[int], seed: int = 0, **changes: object) -> np.ndarray:
    request: dict = {"num_sites": 3, "shares": None, "alpha": 1.0, "min_patients": 1} | changes
    return assign_sites(
        made_patients([1] * len(classes), classes), CLASSES, generator=generator(seed, "x"), **request
    )


def table(site: np.ndarray, classes: list[int]) -> np.ndarray:
    counts = np.zeros((3, 3), dtype=int)
    np.add.at(counts, (site, classes), 1)
    return counts


def test_given_shares_are_the_shares_of_each_class() -> None:
    classes = [0] * 100 + [1] * 200 + [2] * 40
    counts = table(sites_of(classes, shares=SHARES), classes)
    assert counts.tolist() == [[50, 40, 10], [30, 100, 10], [20, 60, 20]]


def test_a_large_alpha_divides_evenly_and_a_small_one_does_not() -> None:
    classes = [0] * 300 + [1] * 300 + [2] * 300
    even = table(sites_of(classes, alpha=1e6), classes)
    uneven = table(sites_of(classes, alpha=0.3), classes)
    assert abs(even - 100).max() <= 2
    assert uneven.min() >= 1
    assert uneven.std() > 40


def test_draws_are_repeated_until_every_site_has_enough_of_every_class() -> None:
    classes = [0] * 60 + [1] * 60 + [2] * 60
    smallest = [
        table(sites_of(classes, seed, alpha=0.7, min_patients=6), classes).min() for seed in range(10)
    ]
    assert min(smallest) >= 6
    assert min(table(sites_of(classes, seed, alpha=0.7), classes).min() for seed in range(10)) < 6


def test_a_class_missing_at_a_site_is_named_with_its_count_and_remedy() -> None:
    shares = [[1.0, 0.5, 0.5], [0.0, 0.25, 0.25], [0.0, 0.25, 0.25]]
    with pytest.raises(
        DataError, match=r"site 1 has 0 of class a; site 2 has 0 of class a\. Change site_shares"
    ):
        sites_of([0] * 30 + [1] * 30 + [2] * 30, shares=shares)
    with pytest.raises(DataError, match=r"of class c.*Change dirichlet_alpha, use fewer sites"):
        sites_of([0] * 30 + [1] * 30 + [2] * 2)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (SHARES[:2], "3 rows"),
        ([row[:2] for row in SHARES], "3 columns"),
        ([[0.5, 0.5, 0.5]] * 3, "sum 1"),
        ([[1.5, 1, 1], [-0.5, 0, 0], [0, 0, 0]], "shares ≥ 0"),
    ],
)
def test_shares_that_divide_no_class_among_the_sites_are_refused(shares: list, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sites_of([0, 1, 2] * 10, shares=shares)


def test_sites_and_splits_divide_the_images_and_share_no_patient(many_images: XrayImages) -> None:
    key = many_images.patient_key
    parts = {
        (site, split): rows
        for site in range(3)
        for split, rows in divide(
            many_images, SiteRequest(site=site, num_sites=3, site_shares=SHARES)
        ).rows.items()
    }
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(many_images)))
    people = [set(key[rows]) for rows in parts.values()]
    assert sum(map(len, people)) == len(set(key))


@pytest.mark.parametrize("max_images", [None, [90, 20, 30]])
@pytest.mark.parametrize("shares", [SHARES, None])
def test_all_sites_together_keep_everybody_in_the_split_of_the_site(
    many_images: XrayImages, shares: list | None, max_images: list | None
) -> None:
    """So that what is trained on the training images of all sites has seen no test patient of any."""
    request = SiteRequest(num_sites=3, site_shares=shares, max_images=max_images)
    together = divide(many_images, request)
    parts = [divide(many_images, replace(request, site=site)) for site in range(3)]
    for split in SPLITS:
        rows = np.concatenate([part.rows[split] for part in parts])
        assert together.rows[split].tolist() == sorted(rows.tolist())
        assert together.report["splits"][split]["images"] == len(rows)
    key = many_images.patient_key
    trained_on = set(key[together.rows["train"]])
    assert not any(trained_on & set(key[part.rows[split]]) for part in parts for split in ("val", "test"))


def test_the_site_seed_moves_patients_between_sites_and_the_split_seed_within(
    many_images: XrayImages,
) -> None:
    def people(request: SiteRequest) -> dict[str, set[str]]:
        found = divide(many_images, request).rows
        return {split: set(many_images.patient_key[rows]) for split, rows in found.items()}

    site = {"site": 1, "num_sites": 3, "dirichlet_alpha": 2.0}
    first, other_split = people(SiteRequest(**site)), people(SiteRequest(**site, split_seed=1))
    assert set().union(*first.values()) == set().union(*other_split.values())
    assert first["train"] != other_split["train"]
    other_site = people(SiteRequest(**site, site_seed=1))
    assert set().union(*first.values()) != set().union(*other_site.values())


def test_the_report_counts_what_is_there(many_images: XrayImages) -> None:
    found = divide(many_images, SiteRequest(max_images=[200, 40, 60]))
    for split in SPLITS:
        rows, report = found.rows[split], found.report["splits"][split]
        _, sizes = np.unique(many_images.patient_key[rows], return_counts=True)
        assert report["images"] == len(rows) <= {"train": 200, "val": 40, "test": 60}[split]
        assert report["patients"] == len(sizes)
        assert report["patients_with_several_images"] == (sizes > 1).sum()
        assert report["largest_patient"] == sizes.max()
        assert list(report["classes"].values()) == many_images.target[rows].sum(0).tolist()


def test_identical_images_of_several_patients_are_counted(many_images: XrayImages) -> None:
    assert identical_groups(many_images) == []
    first, key = many_images.image, many_images.patient_key
    stranger = int(np.flatnonzero(key != key[0])[0])
    first[stranger] = first[0]
    report = divide(many_images, SiteRequest()).report
    assert (report["identical_groups"], report["identical_groups_of_several_patients"]) == (1, 1)


def test_a_patient_on_both_sides_of_the_publishers_split_is_refused(many_images: XrayImages) -> None:
    _, first, sizes = np.unique(many_images.patient_key, return_index=True, return_counts=True)
    official = np.zeros(len(many_images), dtype=bool)
    official[first[sizes > 1][:2]] = True
    images = XrayImages(
        many_images.image, many_images.target, CLASSES, "multiclass", many_images.patient_key, official
    )
    with pytest.raises(
        DataError, match=r"2 patients have images both in .* such as p\d{4}, p\d{4}\. .*split=patient"
    ):
        divide(images, SiteRequest(split="official"))
    assert len(divide(images, SiteRequest()).rows["test"])  # divided anew nothing is wrong


def test_without_a_list_there_is_no_official_split(many_images: XrayImages) -> None:
    with pytest.raises(ConfigError, match="split=patient"):
        divide(many_images, SiteRequest(split="official"))


def test_a_site_that_does_not_exist_is_refused(many_images: XrayImages) -> None:
    with pytest.raises(ConfigError, match="0 … 2, got 3"):
        divide(many_images, SiteRequest(site=3, num_sites=3))


def test_a_class_that_cannot_be_in_every_split_is_named_with_all_counts(many_images: XrayImages) -> None:
    keys = np.unique(many_images.patient_key[many_images.target[:, 2] == 1])[:2]
    rows = (many_images.target[:, 2] == 0) | np.isin(many_images.patient_key, keys)
    with pytest.raises(DataError, match=r"lacks c in (val|test|train) \(images: a \d+, b \d+, c 0\)"):
        divide(many_images.rows(rows), SiteRequest())


def test_dirichlet_sites_are_a_function_of_their_generator() -> None:
    patients = patients_of(made_images([1, 2] * 30, [0, 1, 2] * 20))
    first, again, other = (
        assign_sites(
            patients,
            CLASSES,
            num_sites=2,
            shares=None,
            alpha=1.0,
            min_patients=2,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
