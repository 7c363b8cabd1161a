"""From which release and generator latents come."""

from __future__ import annotations

import math

import pytest

from fedsynth.composition import compose_config, resolved
from fedsynth.report.branches import Branch, branch_of, compares_branches, is_variant


@pytest.fixture(scope="module")
def paper():
    return resolved(compose_config(["experiment=feddp_pald/paper"]))


@pytest.mark.parametrize(
    ("stage", "branch"),
    [
        ("tstr_real", Branch("real")),
        ("tstr_mixture", Branch("mixture", 4.0, "release")),
        ("tstr_diffusion", Branch("diffusion", 4.0, "release")),
        ("tstr_diffusion_eps1", Branch("diffusion", 1.0, "release_eps1")),
        ("tstr_diffusion_primary", Branch("diffusion", 4.0, "release", is_selected=True)),
        ("tstr_nonprivate_mixture", Branch("mixture", math.inf, "release_nonprivate")),
        ("audit_eps8", Branch("diffusion", 8.0, "release_eps8")),
        ("tstr_diffusion_paid_eps1", Branch("diffusion", 1.0, "release_paid_eps1", is_paid=True)),
        ("audit_paid", Branch("diffusion", 4.0, "release_paid", is_paid=True)),
        ("fusion_encoder", None),
        ("nothing", None),
    ],
)
def test_the_inputs_lead_to_generator_budget_and_release(paper, stage, branch):
    assert branch_of(paper, stage) == branch


def test_the_variant_of_the_release_tells_whether_all_is_paid_for_not_its_name():
    config = resolved(compose_config(["experiment=feddp_pald/paid"]))
    assert branch_of(config, "tstr_diffusion") == Branch("diffusion", 4.0, "release", is_paid=True)


def test_a_cycle_or_a_stage_without_inputs_has_no_branch():
    stages = {
        "a": {"stage": "tstr_mlp", "inputs": {"train": "b"}},
        "b": {"stage": "mix", "inputs": {"release": "b"}},
    }
    assert branch_of({"stages": stages}, "a") is None
    assert branch_of({"stages": {"a": {"stage": "tstr_mlp"}}}, "a") is None
    assert branch_of({}, "a") is None


def test_titles_name_generator_budget_and_protocol():
    title = Branch("diffusion", 4.0, "release", is_selected=True).title.replace("\N{NO-BREAK SPACE}", " ")
    assert title == "DP diffusion, ε = 4 (selected snapshot)"
    title = Branch("mixture", math.inf, "release_paid", is_paid=True).title.replace("\N{NO-BREAK SPACE}", " ")
    assert title == "non-private mixture, ε = ∞ (all paid)"
    assert Branch("real").title == "real latents"


def test_variants_are_told_by_their_names():
    assert all(map(is_variant, ("mix_eps1", "audit_nonprivate", "tstr_diffusion_primary", "release_paid")))
    assert not any(map(is_variant, ("mix", "tstr_nonprivate_mixture", "tstr_real")))
    assert compares_branches(["mix", "mix_eps1"])
    assert not compares_branches(["mix", "mix_nonprivate"])
