"""PSO-secure sharing at the paper's size, and what its experiments share: composed, checked and planned, nothing run."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
from image_runs import CPU_GROUPS, H100_GROUPS

from fedsynth.composition import compose_config, resolved
from fedsynth.diffusion.training_schedule import iterations_of
from fedsynth.errors import ConfigError
from fedsynth.pipeline.planner import PlannedStage, Source, plan_stages
from fedsynth.pipeline.stage import Sensitivity, Side, find_stage
from fedsynth.report.paper import applicable_values, read_paper_values
from fedsynth.run import Run

PAPER, POLICIES = "pso_secure/paper", "pso_secure/policies"
#: As if the X-rays were there.
SOURCES = {name: Source(name, private=True) for name in find_stage("xray_images", "xray_images").data}
GPUS = 4
#: A policy of ``pso_secure/policies`` and the settings that it is named after; all others are the default's.
DIFFERENCES = {
    "drop": {"when_all_flagged": "drop", "max_per_source": 1},
    "two_rounds": {"guidance_weights": [1.0, 0.7]},
    "three_rounds": {"guidance_weights": [1.0, 0.7, 0.4]},
    "true_mix": {"when_all_flagged": "true_mix"},
    "class_threshold": {"threshold_rule": "fpr", "threshold_value": 0.1, "threshold_by": "class"},
    "fpr": {"threshold_rule": "fpr", "threshold_value": 0.1},
}


@cache
def config_of(experiment: str, *words: str) -> dict[str, Any]:
    return resolved(compose_config([f"experiment={experiment}", *words]))


@cache
def planned(experiment: str, *words: str) -> dict[str, PlannedStage]:
    config = config_of(experiment, *words)
    plan = plan_stages(copy.deepcopy(config["stages"]), config["trainer"], SOURCES)
    return {stage.name: stage for stage in plan}


def checked(*words: str) -> dict[str, Any]:
    run = Run(compose_config(list(words)))
    run.check()
    return run.config


# -- the paper's size ----------------------------------------------------------------------------------------


def test_the_iterations_and_the_global_batch_are_the_papers() -> None:
    stages = planned(PAPER, "trainer=h100")
    networks = {name: one for name, one in stages.items() if one.stage.kind == "diadm"}
    iterations = {
        name: iterations_of(one.settings.kimg, one.settings.batch_size) for name, one in networks.items()
    }
    assert iterations == {
        "diadm": 40_960, "diadm_class": 40_960, "diadm_labels": 40_960, "diadm_none": 49_152,
    }  # fmt: skip
    for name, one in networks.items():
        accumulated = one.trainer["accumulate_grad_batches"]
        assert one.settings.batch_size == 2048 == 256 * GPUS * accumulated, name
        assert one.trainer["precision"] == "32-true", "the paper trains without half precision"
        # A tenth of the conditional training, for all of them.
        assert int(one.settings.kimg * one.settings.earlier_fraction) == 8388, name


def test_eight_gpus_accumulate_nothing() -> None:
    stages = planned(PAPER, "trainer=h100", "image_network.accumulate_grad_batches=1")
    assert (
        stages["diadm"].settings.batch_size
        == 256 * 2 * GPUS * stages["diadm"].trainer["accumulate_grad_batches"]
    )


def test_the_paper_s_settings_are_those_of_the_released_code() -> None:
    stages = planned(PAPER)
    network, sampler = stages["diadm"].settings, stages["synthesize_images"].settings
    assert (network.style, network.channels, network.multipliers) == (
        "magnitude_preserving",
        128,
        [1, 2, 3, 4],
    )
    assert (network.noise_mean, network.noise_std, network.adam_betas) == (-0.4, 1.0, [0.9, 0.99])
    assert network.decay_kimg * 1000 == 17_000 * 2048
    assert all(one.settings.condition_dropout == 0 for one in stages.values() if one.stage.kind == "diadm")
    assert (sampler.solver, sampler.num_steps, sampler.num_candidates) == ("heun", 32, 32)
    assert (sampler.guidance, sampler.guidance_weight, sampler.num_sources) == ("unconditional", 1.2, None)
    assert stages["synthesize_images"].inputs["guide"] == "diadm_none"
    assert stages["diadm_none"].settings.condition == "none"
    assert stages["synthesize_edm2_ag"].settings.guidance == "earlier"
    assert stages["synthesize_diadm"].settings.guidance_weight == 1.0
    assert stages["pseudo_features"].settings.encoder == "swav"
    assert stages["pseudo_features_diadm"].settings.encoder == "inception"
    assert stages["image_codec"].settings.codec["name"] == "sd_vae"
    assert stages["diadm_features_filtered"].settings.schedule(1.2)[:3] == (1.2, 1.1, 1.0)
    assert stages["tstr_real"].settings.network == "densenet121"
    assert stages["reidentifier"].settings.backbone == "timm:resnet50"


@pytest.mark.parametrize("dataset", ["chestxray14", "mimic", "chexpert"])
def test_it_is_checked_and_planned_for_every_corpus(
    dataset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run = Run(compose_config([f"experiment={PAPER}", "trainer=h100", "plan=true", f"data.dataset={dataset}"]))
    run.check()
    run.print_plan()
    printed = capsys.readouterr().out
    assert f"{dataset} not found" in printed, "what is missing is said"
    assert printed.count("│ missing │") == len(run.config["stages"])


def test_every_published_value_of_table_1_has_its_stage() -> None:
    config = config_of(PAPER, "trainer=h100")
    counted = applicable_values([config])
    table = [value for value in read_paper_values(config) if value.place == "Table 1"]
    # The Fréchet distances are Inception's; features here are SwAV's.
    assert {value.name for value in table if value.name not in counted} == {
        (f"audit_{arm}_unfiltered", arm, "frechet/unstated")
        for arm in ("edm2", "edm2_ag", "diadm", "diadm_features")
    }
    assert ("tstr_diadm_features_filtered", "diadm_features_filtered", "test/auroc") in counted
    for stage, arm, _ in counted:
        own = config["stages"][stage].get("arm")
        assert own in (None, arm), f"{stage} states its numbers under {own}, the paper's are under {arm}"
    gaps = {config["stages"][name]["arm"] for name in config["stages"]["auroc_gap"]["inputs"].values()}
    assert {arm for stage, arm, _ in counted if stage == "auroc_gap"} <= gaps


@pytest.mark.parametrize("word", ["image_network.kimg=1000", "data.image_size=256", "codec=unshuffle",
                                  "+trainer.limit_train_batches=3"])  # fmt: skip
def test_no_published_value_stands_beside_a_smaller_run(word: str) -> None:
    assert applicable_values([config_of(PAPER, word)]) == {}


def test_published_values_of_table_2_do_not_stand_beside_other_data() -> None:
    assert applicable_values([config_of("pso_secure/table2")]) == {}


# -- the same configs at both sizes --------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["cpu", "h100"])
@pytest.mark.parametrize("experiment", ["pso_secure", "pso_secure/table1", POLICIES])
def test_experiments_for_small_images_scale_by_their_groups(experiment: str, trainer: str) -> None:
    words = [f"experiment={experiment}", f"trainer={trainer}", "image_encoder.allow_download=true"]
    config = checked(*words, *H100_GROUPS)
    assert set(config["stages"]) == set(config_of(experiment)["stages"]), "no stage comes or goes"
    stages = config["stages"]
    assert iterations_of(stages["diadm"]["kimg"], stages["diadm"]["batch_size"]) == 40_960


def test_the_paper_s_experiment_shrinks_by_the_same_groups() -> None:
    words = [f"experiment={PAPER}", *CPU_GROUPS, "stages.pseudo_features_diadm.allow_download=true"]
    assert checked(*words, "stages.diadm_none.kimg=192")["stages"]["diadm"]["channels"] == 32


def test_networks_are_changed_alone_too() -> None:
    config = checked("experiment=pso_secure", "data=cxr_sites", "codec=sd_vae", "image_network=edm2_xs")
    assert config["stages"]["diadm"]["style"] == "magnitude_preserving"
    assert config["stages"]["image_codec"]["codec"]["name"] == "sd_vae"


def test_without_leave_the_published_encoder_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWAV_WEIGHTS", raising=False)
    with pytest.raises(ConfigError, match=r"image_encoder\.weights.*image_encoder\.allow_download=true"):
        checked("experiment=pso_secure", *H100_GROUPS)


# -- what is computed once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["pso_secure/table1", POLICIES])
def test_what_the_experiments_share_is_computed_once(other: str) -> None:
    one, two = planned("pso_secure"), planned(other)
    # Contrasts hold other arms, and Table 1 audits beside one more control.
    shared = {
        name for name in set(one) & set(two) if one[name].stage.kind not in ("auroc_gap", "audit_images")
    }
    assert {
        "diadm",
        "synthesize_images",
        "diadm_features_filtered",
        "tstr_diadm_features_unfiltered",
    } <= shared
    assert {name: one[name].key for name in shared} == {name: two[name].key for name in shared}
    assert all(stage.key for stage in two.values())


# -- policies ------------------------------------------------------------------------------------------------


def test_policies_choose_among_the_same_candidates() -> None:
    stages = planned(POLICIES)
    chosen = [stage for stage in stages.values() if stage.stage.kind == "select_images"]
    assert len(chosen) == 12
    for stage in chosen:
        assert stage.inputs["candidates"] == "synthesize_images"
        assert stage.inputs["classifier"] == "tstr_real"
        trained = [one for one in stages.values() if one.inputs.get("train") == stage.name]
        assert [one.settings.arm for one in trained] == [stage.settings.arm]
    compared = set(stages["auroc_gap"].inputs.values())
    assert compared == {stage.name for stage in stages.values() if stage.stage.kind == "tstr_densenet"}


@pytest.mark.parametrize("policy", DIFFERENCES)
def test_a_policy_differs_from_the_default_in_what_it_is_named_after(policy: str) -> None:
    stages = planned(POLICIES)
    default, own = vars(stages["diadm_features_filtered"].settings), vars(stages[f"select_{policy}"].settings)
    differing = {name: own[name] for name in own if own[name] != default[name]}
    assert differing == {"arm": f"diadm_features_{policy}", **DIFFERENCES[policy]}


def test_soft_labels_differ_from_the_default_in_labels_and_number() -> None:
    stages = planned(POLICIES)
    default, one, more = (
        vars(stages[name].settings)
        for name in ("diadm_features_filtered", "select_soft_single", "diadm_features_soft")
    )
    assert {name for name in one if one[name] != default[name]} == {"arm", "labels"}
    assert {name for name in more if more[name] != one[name]} == {
        "arm",
        "images_per_source",
        "max_per_source",
    }


@pytest.mark.parametrize("option", ["paper", "released_code"])
def test_a_policy_named_after_an_option_is_that_option(option: str) -> None:
    policy = vars(planned(POLICIES)[f"select_{option}"].settings)
    alone = vars(planned("pso_secure", f"selection={option}")["diadm_features_filtered"].settings)
    assert {name for name in policy if policy[name] != alone[name]} == {"arm"}


def test_the_choice_of_one_policy_leaves_the_others_alone() -> None:
    default, changed = planned(POLICIES), planned(POLICIES, "selection=paper")
    kept = [f"select_{name}" for name in (*DIFFERENCES, "paper", "released_code")]
    assert [default[name].key for name in kept] == [changed[name].key for name in kept]
    assert default["diadm_features_filtered"].key != changed["diadm_features_filtered"].key


def test_sets_that_may_hold_flagged_images_never_leave_the_client() -> None:
    for stage in planned(POLICIES).values():
        if stage.stage.kind == "select_images":
            is_masked = stage.settings.filter == "mask"
            assert stage.side is Side.CLIENT
            assert stage.sensitivity is (Sensitivity.RELEASED if is_masked else Sensitivity.PRIVATE), (
                stage.name
            )
