"""Comparisons take systems of the same records, each by a name of its own."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from tiny_densenet import supplier

from fedsynth.errors import ConfigError
from fedsynth.pipeline.stage import find_stage
from fedsynth.stages.compared_systems import check_comparable, check_own_arms

ROLES = ("real", "synthetic", "synthetic_2")


def check(suppliers: dict[str, Any]) -> None:
    check_comparable(
        suppliers, "stages.gap", reference="real", noun="classifier", relation="tested on", shared="images"
    )


def compared(*arms: str, images: tuple[str, ...] = ("a", "a", "a")) -> dict[str, Any]:
    return {
        role: supplier(f"stage_{role}", arm, images=one)
        for role, arm, one in zip(ROLES, arms, images, strict=True)
    }


def test_the_second_of_an_arm_is_named_and_the_reference_is_always_the_first() -> None:
    check(compared("x", "y", "z"))
    for order in permutations(ROLES):
        suppliers = compared("x", "y", "x")
        with pytest.raises(
            ConfigError, match=r"got stage_synthetic_2, whose arm 'x' is also that of real"
        ) as caught:
            check({role: suppliers[role] for role in order})
        assert caught.value.key == "stages.gap.inputs.synthetic_2"


def test_systems_of_other_records_are_refused_before_their_arms_are_compared() -> None:
    with pytest.raises(
        ConfigError,
        match=r"synthetic must name a classifier tested on a, as that of 'real', got .* tested on b",
    ) as caught:
        check(compared("x", "x", "x", images=("a", "b", "a")))
    assert caught.value.key == "stages.gap.inputs.synthetic"


def test_arms_may_come_from_elsewhere_and_the_message_ends_with_the_remedy() -> None:
    suppliers = compared("x", "x", "x")
    check_own_arms(suppliers, "stages.cv", "set", arm_of=lambda one: one.name)
    with pytest.raises(ConfigError, match=r"also that of real\. Say so\.$"):
        check_own_arms(suppliers, "stages.cv", "set", remedy="Say so.")
    with pytest.raises(ConfigError, match=r"also that of real\.$"):
        check_own_arms(suppliers, "stages.cv", "set")


@pytest.mark.parametrize(
    ("kind", "reference", "other", "shared"),
    [("auroc_gap", "real", "synthetic", "images"), ("system_contrast", "candidate", "baseline", "clients")],
)
def test_both_kinds_of_comparison_ask_for_it(kind: str, reference: str, other: str, shared: str) -> None:
    stage = find_stage(kind, kind)
    first = supplier("one", "x", **{shared: "a"})
    stage.check_suppliers(None, {reference: first, other: supplier("two", "y", **{shared: "a"})}, "stages.c")
    for arm, records in (("x", "a"), ("y", "b")):
        with pytest.raises(ConfigError) as caught:
            stage.check_suppliers(
                None, {reference: first, other: supplier("two", arm, **{shared: records})}, "stages.c"
            )
        assert caught.value.key == f"stages.c.inputs.{other}"
