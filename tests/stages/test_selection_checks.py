"""What a selection refuses before anything runs, and that whatever it accepts can be run."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_candidates import (
    sampler_settings,
    selection_settings,
)
from tiny_selection import selection_inputs, told
from tiny_stages import run_stage, stage_context

from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import build_settings
from fedsynth.stages.select_images.spec import STAGE, SelectImagesSettings


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return selection_inputs(tmp_path_factory.mktemp("inputs"))


def split_of(**changes: Any) -> SimpleNamespace:
    """The settings of real images that decide who is in training."""
    fixed = {
        "dataset": "kermany", "split": "patient", "split_fractions": [0.8, 0.1, 0.1], "split_seed": 0, "num_sites": 1,
        "site_seed": 0, "site": None,
    }  # fmt: skip
    return SimpleNamespace(**{**fixed, **changes})


def identity_of(**changes: Any) -> SimpleNamespace:
    """An identity network trained on other images."""
    elsewhere = SimpleNamespace(name="elsewhere", settings=split_of(**changes))
    return changed("reidentifier", inputs={"images": "elsewhere"}, suppliers={"images": elsewhere})


def planned_suppliers(**changes: Any) -> dict[str, Any]:
    def one(name: str, settings: Any = None, **inputs: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, settings=settings, inputs=inputs, suppliers={})

    own = {"codec": "codec", "images": "images", "features": "features"}
    suppliers = {
        "images": one("images", split_of()),
        "codec": one("codec", images="images"),
        "features": one("features", images="images"),
        "denoiser": one("diadm", SimpleNamespace(condition="feature", condition_dropout=0.15), **own),
        "candidates": one("candidates", sampler_settings(), denoiser="diadm", **own),
        "reidentifier": one("reidentifier", images="images"),
        "classifier": one("c_real", train="images", images="images"),
    }
    return {role: given for role, given in (suppliers | changes).items() if given is not None}


OWN = {"denoiser": "diadm", "codec": "codec", "images": "images", "features": "features"}


def changed(role: str, **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**vars(planned_suppliers()[role]) | changes)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("release", {"filter": "released_code"}),
        ("batch_norm", {"batch_norm": "train"}),
        ("threshold_value", {"threshold_rule": "youden"}),
        ("threshold_value", {"threshold_rule": "fpr", "threshold_value": None}),
        ("threshold_value", {"threshold_value": 1.0}),
        ("guidance_weights", {"guidance_weights": [0.5, 1.0]}),
        ("guidance_weights", {"guidance_weights": None}),
        ("guidance_weights", {"guidance_step": 0.1, "guidance_floor": 0.5}),
        ("arm", {"arm": "a/b"}),
        ("max_per_source", {"max_per_source": 0}),
        ("max_per_source", {"max_per_source": 1, "images_per_source": 2, "when_all_flagged": "true_mix"}),
        ("images_per_source", {"images_per_source": 2}),
        ("scope", {"filter": "released_code", "release": False, "batch_norm": "train", "scope": "train"}),
        ("arm", {"filter": "none", "arm": "diadm_filtered"}),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        build_settings(
            SelectImagesSettings, dataclasses.asdict(selection_settings()) | changes, "stages.select"
        )
    assert raised.value.key == f"stages.select.{key}"


@pytest.mark.parametrize(
    ("key", "settings", "changes"),
    [
        ("inputs.reidentifier", {}, {"reidentifier": None}),
        ("inputs.classifier", {}, {"classifier": None}),
        ("inputs.classifier", {"ranking": "first", "labels": "soft"}, {"classifier": None}),
        ("inputs.denoiser", {}, {"denoiser": changed("denoiser", name="other")}),
        ("inputs.guide", {}, {"candidates": changed("candidates", inputs=OWN | {"guide": "unconditional"})}),
        ("inputs.codec", {}, {"codec": changed("codec", inputs={"images": "images_b"})}),
        (
            "inputs.classifier",
            {},
            {"classifier": changed("classifier", inputs={"train": "made", "images": "images"})},
        ),
        (
            "inputs.classifier",
            {},
            {"classifier": changed("classifier", inputs={"train": "b", "images": "b"})},
        ),
        (
            "inputs.classifier",
            {"filter": "none"},
            {"classifier": changed("classifier", inputs={"train": "b"})},
        ),
        ("inputs.reidentifier", {}, {"reidentifier": identity_of(split_seed=1)}),
        ("inputs.reidentifier", {}, {"reidentifier": identity_of(num_sites=3)}),
        (
            "guidance_weights",
            {"guidance_weights": [0.7]},
            {"candidates": changed("candidates", settings=sampler_settings(guidance="none"))},
        ),
        (
            "inputs.guide",
            {},
            {
                "denoiser": changed(
                    "denoiser", settings=SimpleNamespace(condition="feature", condition_dropout=0.0)
                )
            },
        ),
    ],
)
def test_suppliers_that_do_not_fit_are_refused_before_anything_runs(
    key: str, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as raised:
        STAGE.check_suppliers(selection_settings(**settings), planned_suppliers(**changes), "stages.select")
    assert raised.value.key == f"stages.select.{key}"


def test_what_a_policy_does_not_need_may_be_left_out() -> None:
    STAGE.check_suppliers(selection_settings(), planned_suppliers(), "stages.select")
    # One network for all sites, cut as they are, or one of another data set, whose patients are others.
    for identity in (identity_of(), identity_of(dataset="nih1000", split_seed=1)):
        STAGE.check_suppliers(selection_settings(), planned_suppliers(reidentifier=identity), "stages.select")
    unused = planned_suppliers(reidentifier=identity_of(split_seed=1))
    STAGE.check_suppliers(selection_settings(filter="none"), unused, "stages.select")
    bare = planned_suppliers(reidentifier=None, classifier=None)
    STAGE.check_suppliers(selection_settings(filter="none", ranking="first"), bare, "stages.select")
    # One round at the weight of the candidates needs no guide.
    unguided = changed("candidates", settings=sampler_settings(guidance="none"))
    STAGE.check_suppliers(
        selection_settings(guidance_weights=[]), planned_suppliers(candidates=unguided), "stages.select"
    )


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {
            "filter": st.sampled_from(["mask", "released_code", "none"]),
            "ranking": st.sampled_from(["predicates", "first"]),
            "scope": st.sampled_from(["source", "train"]),
            "rule": st.sampled_from([("fixed", 0.5), ("fpr", 0.3), ("fnr", 0.3), ("youden", None)]),
            "threshold_by": st.sampled_from(["all", "class"]),
            "batch_norm": st.sampled_from(["eval", "train"]),
            "when_all_flagged": st.sampled_from(["drop", "class_balanced", "true_mix"]),
        }
    )
)
def test_what_passes_the_check_runs(
    tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Artifact], policy: dict[str, Any]
) -> None:
    """Whatever the combination: refused before anything is trained, or done."""
    (rule, value), changes = policy["rule"], {key: one for key, one in policy.items() if key != "rule"}
    chosen = selection_settings(
        **changes,
        threshold_rule=rule,
        threshold_value=value,
        release=policy["filter"] == "mask",
        guidance_weights=[0.5],
    )
    try:
        chosen.check("stages.select")
    except ConfigError:
        assert policy["batch_norm"] == "train"
        return
    try:
        made = run_stage("select_images", chosen, inputs, stage_context(tmp_path_factory.mktemp("any")))
    except DataError as error:
        assert "leaves no image" in str(error) or "nothing to emit" in str(error)  # noqa: PT017
        return
    assert told(made)["weights_allowed"] == ([1.0, 0.5] if policy["filter"] != "none" else [1.0])
    assert told(made)["weights"] == told(made)["weights_allowed"][: len(told(made)["weights"])]
