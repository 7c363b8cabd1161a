"""Splits share no patient, keep the shares, and depend on their seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_patients import made_patients

from fedsynth.data.xray.images import MULTILABEL, XrayImages
from fedsynth.data.xray.patients import MIN_STRATUM, patients_of
from fedsynth.data.xray.splits import LEFT_OUT, limit_images, split_patients
from fedsynth.errors import ConfigError
from fedsynth.seeding import generator

FRACTIONS = (0.7, 0.1, 0.2)


def everyone(num: int) -> np.ndarray:
    return np.ones(num, dtype=bool)


patients_and_classes = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=3, max_size=80)


@given(patients_and_classes, st.integers(0, 99))
def test_in_each_stratum_no_split_exceeds_its_share_by_a_patient(
    drawn: list[tuple[int, int]], seed: int
) -> None:
    patients = made_patients(*zip(*drawn, strict=True))
    split = split_patients(
        patients, everyone(len(patients)), fractions=FRACTIONS, official=False, generator=generator(seed, "s")
    )
    assert set(split.tolist()) <= {0, 1, 2}
    stratum = patients.stratum(everyone(len(patients)))
    for value in np.unique(stratum):
        inside = stratum == value
        sizes = patients.num_images[inside]
        held = np.bincount(split[inside], weights=sizes, minlength=3)
        # A patient goes where the lag is positive, so a split is ahead by less than that patient.
        assert (held - np.array(FRACTIONS) * sizes.sum() < sizes.max() + 1e-9).all()
        if inside.sum() >= 3:
            assert (held > 0).all()


def test_splits_have_the_classes_in_the_same_shares(many_images: XrayImages) -> None:
    patients = patients_of(many_images)
    split = split_patients(
        patients, everyone(len(patients)), fractions=FRACTIONS, official=False, generator=generator(0, "s")
    )
    whole = many_images.target.mean(0)
    for number, fraction in enumerate(FRACTIONS):
        rows = split[patients.row_patient] == number
        # Six strata, each off by less than two largest patients (5 images).
        assert abs(rows.sum() - fraction * len(rows)) < 6 * 10
        assert abs(many_images.target[rows].mean(0) - whole).max() < 0.05
        # The shares of patients with several images agree too: large patients are not all in train.
        several = patients.num_images[split == number] > 1
        assert abs(several.mean() - (patients.num_images > 1).mean()) < 0.08


def test_a_split_is_a_function_of_the_stream(many_images: XrayImages) -> None:
    patients = patients_of(many_images)
    first, again, other = (
        split_patients(
            patients,
            everyone(len(patients)),
            fractions=FRACTIONS,
            official=False,
            generator=generator(seed, "s"),
        )
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_publishers_test_patients_stay_and_the_rest_keeps_the_ratio() -> None:
    official = [index % 5 == 0 for index in range(200)]
    patients = made_patients([1] * 200, [0] * 200, official)
    split = split_patients(
        patients, everyone(200), fractions=(0.6, 0.2, 0.2), official=True, generator=generator(0, "s")
    )
    np.testing.assert_array_equal(split == 2, official)
    assert np.bincount(split).tolist() == [120, 40, 40]  # 160 others at 3 : 1


def test_those_not_chosen_are_in_no_split() -> None:
    patients, chosen = made_patients([1] * 30, [0] * 30), np.arange(30) < 10
    split = split_patients(patients, chosen, fractions=FRACTIONS, official=False, generator=generator(0, "s"))
    np.testing.assert_array_equal(split == LEFT_OUT, ~chosen)


@pytest.mark.parametrize("fractions", [(0.7, 0.3), (0.8, 0.2, 0.0), (0.5, 0.2, 0.2)])
def test_impossible_fractions_are_refused(fractions: tuple[float, ...]) -> None:
    patients = made_patients([1] * 4, [0] * 4)
    with pytest.raises(ConfigError, match="three positive shares"):
        split_patients(
            patients, everyone(4), fractions=fractions, official=False, generator=torch.Generator()
        )


@given(patients_and_classes, st.integers(1, 60), st.integers(0, 99))
def test_a_limit_keeps_whole_patients_and_all_that_fit(
    drawn: list[tuple[int, int]], most: int, seed: int
) -> None:
    patients = made_patients(*zip(*drawn, strict=True))
    members = np.arange(len(patients)) % 3 > 0
    kept = limit_images(patients, members, most, generator(seed, "l"))
    total = patients.num_images[kept].sum()
    assert not (kept & ~members).any()
    assert total <= most
    left = members & ~kept
    assert not left.any() or total + patients.num_images[left].min() > most


def test_a_limit_takes_the_classes_in_their_shares() -> None:
    classes = [0] * 600 + [1] * 300 + [2] * 100
    kept = limit_images(made_patients([1] * 1000, classes), everyone(1000), 100, generator(0, "l"))
    assert np.bincount(np.array(classes)[kept]).tolist() == [60, 30, 10]


def test_a_limit_below_one_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        limit_images(made_patients([1], [0]), everyone(1), 0, torch.Generator())


def test_a_patient_counts_for_the_rarest_of_its_labels() -> None:
    target = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1]], dtype=np.uint8)
    images = XrayImages(
        np.zeros((5, 2, 2), np.uint8),
        target,
        ("common", "rare", "middle"),
        MULTILABEL,
        np.array([7, 7, 3, 5, 5]),
    )
    patients = patients_of(images)  # keys in order: 3, 5, 7
    assert patients.main_class.tolist() == [0, 2, 1]
    assert patients.num_images.tolist() == [1, 2, 2]
    assert patients.row_patient.tolist() == [2, 2, 0, 1, 1]


def test_patients_with_several_images_are_dealt_apart_only_where_there_are_enough() -> None:
    enough, few = MIN_STRATUM, MIN_STRATUM - 1
    patients = made_patients(
        [1] * 20 + [2] * enough + [1] * 20 + [2] * few, [0] * (20 + enough) + [1] * (20 + few)
    )
    stratum = patients.stratum(everyone(len(patients)))
    assert [len(np.unique(stratum[patients.main_class == label])) for label in (0, 1)] == [2, 1]
    several = patients.num_images > 1
    first_nine = (patients.main_class == 0) & (~several | (np.cumsum(several) < enough))
    assert len(np.unique(patients.stratum(first_nine)[first_nine])) == 1


@given(st.lists(st.integers(1, 5), min_size=3, max_size=40), st.integers(0, 99))
def test_three_patients_of_a_class_are_enough_for_three_splits(sizes: list[int], seed: int) -> None:
    patients = made_patients(sizes + [1] * 50 + [3] * 50, [1] * len(sizes) + [0] * 100)
    chosen = np.arange(len(patients)) % 2 == 0
    chosen[:3] = True
    split = split_patients(
        patients, chosen, fractions=FRACTIONS, official=False, generator=generator(seed, "s")
    )
    assert set(split[(patients.main_class == 1) & chosen].tolist()) == {0, 1, 2}
