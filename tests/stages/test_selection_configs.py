"""Every sampler and every selection policy composes and is planned; the boundary holds for what is not released."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import cache
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from tiny_stages import TRAINER

from fedsynth.composition import CONFIG_DIR, compose_config, resolved
from fedsynth.errors import ConfigError, PrivateInputError
from fedsynth.pipeline.planner import PlannedStage, plan_stages
from fedsynth.pipeline.stage import Sensitivity, Side
from fedsynth.run_sources import planner_sources

STAGES = (
    "images", "image_codec", "pseudo_features", "diadm", "c_real", "reidentifier", "synthesize_images", "select_images",
)  # fmt: skip
GROUPS = (
    "data=kermany", "+codec=unshuffle", "+image_network=cpu", "+image_encoder=efficientnet_lite0",
    "+image_classifier=slim_densenet", "+reidentification=small", "+stage@stages.images=xray_images",
    "+stage@stages.image_codec=image_codec", "+stage@stages.pseudo_features=pseudo_features",
    "+stage@stages.diadm=diadm", "+stage@stages.c_real=tstr_densenet",
    "stages.c_real.inputs={train:images,images:images}", "stages.c_real.arm=real",
    "+stage@stages.reidentifier=reidentifier", "+stage@stages.synthesize_images=synthesize_images",
    "+stage@stages.select_images=select_images", "stages.select_images.inputs.classifier=c_real",
    "stages.select_images.arm=made",
)  # fmt: skip


@cache
def composed() -> DictConfig:
    """Composing takes most of the time: once for all tests."""
    return compose_config(["experiment=feddp_pald", *GROUPS])


def planned(
    *words: str, sampler: str = "cpu", selection: str = "default", **more: Any
) -> dict[str, PlannedStage]:
    """The image stages with these options of both groups, ``words`` laid over them."""
    config = copy.deepcopy(composed())
    OmegaConf.set_struct(config, False)
    config.stages = {name: config.stages[name] for name in STAGES}
    for group, option in (("image_sampler", sampler), ("selection", selection)):
        config[group] = OmegaConf.load(CONFIG_DIR / group / f"{option}.yaml")
    config.merge_with_dotlist(list(words))
    stages = resolved(config)["stages"] | more
    return {one.name: one for one in plan_stages(stages, TRAINER, planner_sources({}))}


@pytest.mark.parametrize("selection", ["default", "soft_labels", "paper", "released_code", "none"])
@pytest.mark.parametrize("sampler", ["cpu", "paper"])
def test_every_policy_composes_with_every_sampler(sampler: str, selection: str) -> None:
    stage = planned(sampler=sampler, selection=selection)["select_images"]
    is_released = selection in ("default", "soft_labels", "paper")
    assert stage.side is Side.CLIENT
    assert stage.sensitivity is (Sensitivity.RELEASED if is_released else Sensitivity.PRIVATE)
    assert stage.price == ((math.inf, 0.0) if is_released else None)


def test_the_paper_samples_32_candidates_by_32_heun_steps_and_lowers_the_weight_by_a_tenth() -> None:
    stages = planned(sampler="paper", selection="paper")
    sampler, policy = stages["synthesize_images"].settings, stages["select_images"].settings
    assert (sampler.num_candidates, sampler.solver, sampler.num_steps) == (32, "heun", 32)
    assert (sampler.sigma_min, sampler.sigma_max, sampler.rho) == (0.002, 80.0, 7.0)
    assert (sampler.guidance, sampler.guidance_weight, sampler.num_sources) == ("unconditional", 1.2, None)
    assert policy.schedule(sampler.guidance_weight)[:4] == (1.2, 1.1, 1.0, 0.9)
    assert (policy.threshold_rule, policy.threshold_value) == ("fixed", 0.5)


def test_batch_sizes_do_not_change_the_key_and_all_else_does() -> None:
    keys = {
        words: planned(*words)["synthesize_images"].key_parts["settings"]
        for words in ((), ("image_sampler.batch_size=7",), ("image_sampler.num_steps=9",))
    }
    first, batches, steps = keys.values()
    assert first == batches != steps


def test_a_denoiser_without_dropped_conditions_needs_a_guide_before_anything_runs() -> None:
    rounds = "selection.guidance_weights=[1.0, 0.7]"
    with pytest.raises(ConfigError, match=r"inputs\.guide is missing"):
        planned("image_network.condition_dropout=0.0", rounds)
    with pytest.raises(ConfigError, match=r"guidance_weights"):
        planned("image_sampler.guidance=none", rounds)
    planned("image_sampler.guidance=none", "selection.guidance_weights=[]")


def test_what_is_not_released_cannot_be_shared_between_sites() -> None:
    sharing = {
        "stage": "data_sharing",
        "inputs": {"first": "select_images", "second": "images"},
    }
    with pytest.raises(PrivateInputError, match="select_images"):
        planned(selection="none", data_sharing=sharing)


def test_an_identity_network_of_another_split_is_refused_before_anything_runs() -> None:
    settings = dataclasses.asdict(planned()["images"].settings)
    words = "stages.reidentifier.inputs.images=elsewhere"
    same = planned(words, elsewhere={"stage": "xray_images", **settings})
    assert same["select_images"].suppliers["reidentifier"].suppliers["images"].name == "elsewhere"
    other = {"stage": "xray_images", **settings, "split_seed": settings["split_seed"] + 1}
    with pytest.raises(
        ConfigError, match=r"trained on elsewhere, which divides the patients of kermany .*split_seed"
    ):
        planned(words, elsewhere=other)


def test_a_set_without_filter_cannot_be_called_filtered() -> None:
    with pytest.raises(ConfigError, match="every table would call this set filtered"):
        planned("stages.select_images.arm=diadm_filtered", selection="none")
    planned("stages.select_images.arm=diadm_unfiltered", selection="none")
