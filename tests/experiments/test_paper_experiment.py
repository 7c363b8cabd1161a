"""``feddp_pald/paper`` in one run: all systems and budgets, shared artifacts, the privacy boundary."""

from __future__ import annotations

import math
from functools import cache

import pytest

from fedsynth.composition import compose_config, resolved
from fedsynth.errors import PrivateInputError
from fedsynth.pipeline.planner import PlannedStage, Source, plan_stages
from fedsynth.pipeline.stage import Sensitivity, Side, find_stage
from fedsynth.report.branches import branch_of
from fedsynth.run_sources import planner_sources

#: As if all files were there.
SOURCES = {name: Source(name, private=False) for name in planner_sources({})} | {
    name: Source(name, private=True) for name in find_stage("clients", "clients").data
}


@cache
def planned(experiment: str) -> dict[str, PlannedStage]:
    config = resolved(compose_config([f"experiment={experiment}"]))
    plan = plan_stages(config["stages"], config["trainer"], SOURCES)
    return {stage.name: stage for stage in plan}


@pytest.mark.parametrize("other", ["feddp_pald", "feddp_pald/variance"])
def test_what_the_experiments_share_is_computed_once(other: str) -> None:
    paper, alone = planned("feddp_pald/paper"), planned(other)
    assert set(alone) <= set(paper)
    assert {name: stage.key for name, stage in alone.items()} == {name: paper[name].key for name in alone}
    assert all(stage.key for stage in paper.values())


def test_every_budget_of_the_paper_has_all_stages_from_release_to_audit() -> None:
    config = resolved(compose_config(["experiment=feddp_pald/paper"]))
    found: dict[str, set[float]] = {}
    for name, stage in config["stages"].items():
        branch = branch_of(config, name)
        if branch and branch.epsilon is not None and not branch.is_selected:
            found.setdefault(f"{stage['stage']} {branch.generator}", set()).add(branch.epsilon)
    budgets = {1.0, 2.0, 4.0, 8.0, math.inf}
    for kind in ("tstr_mlp mixture", "tstr_mlp diffusion", "audit diffusion", "synthesize diffusion"):
        assert found[kind] == budgets, kind


def test_systems_differ_from_the_federated_one_in_what_they_are_named_after() -> None:
    paper = planned("feddp_pald/paper")

    def differences(name: str) -> set[str]:
        one, other = (vars(paper[stage].settings) for stage in (name, "fusion_encoder"))
        changed = {key for key in one if one[key] != other[key]}
        return changed | {role for role in ("xray_encoder",) if role not in paper[name].inputs}

    assert differences("fusion_random_init") == {"xray_encoder"}
    assert differences("fusion_centralized") == {"training"}
    assert differences("fusion_centralized_mean") == {"training", "fusion"}
    assert differences("fusion_image_only") == {"modalities"}
    assert differences("fusion_ecg_only") == {"modalities", "xray_encoder"}


def test_only_releases_reach_the_server_and_the_selection_stays_with_the_auditor() -> None:
    paper = planned("feddp_pald/paper")
    for stage in paper.values():
        if stage.side is Side.SERVER:
            assert all(paper[name].sensitivity is not Sensitivity.PRIVATE for name in stage.inputs.values())
    selected = paper["synthesize_primary"]
    assert (selected.side, selected.sensitivity) == (Side.AUDITOR, Sensitivity.PRIVATE)
    nonprivate = paper["synthesize_nonprivate"]
    assert (nonprivate.side, nonprivate.sensitivity) == (Side.AUDITOR, Sensitivity.PRIVATE)


def test_selection_on_the_server_is_refused() -> None:
    config = resolved(compose_config(["experiment=feddp_pald/paper"]))
    config["stages"]["synthesize_primary"].pop("as_auditor")
    with pytest.raises(PrivateInputError, match="input 'validation' comes from 'encode', which is private"):
        plan_stages(config["stages"], config["trainer"], SOURCES)
