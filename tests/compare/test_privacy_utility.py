"""Every point stands at the ε of the release it was made from."""

from __future__ import annotations

import math

import plotly.graph_objects as go
import pytest

from fedsynth.compare import collect_results, group_runs
from fedsynth.compare.privacy_utility import privacy_utility_figure, series_name, stage_epsilon

INF = math.inf


def chain(suffix, epsilon, arm):
    return {
        f"release{suffix}": {"stage": "release", "inputs": {"latents": "encode"}, "epsilon": epsilon},
        f"mix{suffix}": {"stage": "mix", "inputs": {"release": f"release{suffix}"}},
        f"tstr_mixture{suffix}": {
            "stage": "tstr_mlp",
            "inputs": {"train": f"mix{suffix}", "latents": "encode"},
            "arm": arm,
        },
    }


@pytest.fixture
def budgets():
    """Releases at ε = 1 and ∞ in the same run."""
    return {**chain("_eps1", 1.0, "dp_mixture_eps1"), **chain("_nonprivate", INF, "nonprivate_mixture")}


def figure(runs):
    grouping = group_runs(runs)
    return privacy_utility_figure(grouping, collect_results(grouping.groups))


def traces(picture):
    return {trace["name"]: trace for trace in picture.data}


def test_epsilon_is_found_by_walking_back_to_the_release(lab, budgets):
    run = lab.run(42, extra=budgets)
    found = {name: stage_epsilon(run, name) for name in run.stages}
    assert found["tstr_mixture"] == found["mix"] == found["release"] == 4.0
    assert found["tstr_mixture_eps1"] == 1.0
    assert found["tstr_mixture_nonprivate"] == INF
    assert found["tstr_real"] is None
    assert found["clients"] is None


def test_the_test_set_of_a_classifier_is_not_followed(lab):
    def swap(manifests):
        manifests["encode"]["ledger"] = [{"epsilon": 9.0}]

    run = lab.run(42, edit=swap)
    assert stage_epsilon(run, "tstr_real") == 9.0  # trained on them
    assert stage_epsilon(run, "tstr_mixture") == 13.0  # release and its input compose


def test_a_private_encoder_and_the_release_add_up(lab):
    def under_dp(manifests):
        manifests["fusion_encoder"]["ledger"] = [{"mechanism": "DP-SGD", "epsilon": 2.0, "delta": 1e-5}]

    run = lab.run(42, edit=under_dp)
    assert stage_epsilon(run, "tstr_mixture") == 6.0
    assert stage_epsilon(run, "tstr_real") == 2.0


def test_infinity_is_read_in_every_spelling(lab):
    def spell(manifests):
        manifests["release"]["settings"]["epsilon"] = "float:inf"

    assert stage_epsilon(lab.run(42, edit=spell), "tstr_mixture") == INF


def test_an_epsilon_that_is_no_number_is_none(lab):
    def spoil(manifests):
        manifests["release"]["settings"]["epsilon"] = "much"

    assert stage_epsilon(lab.run(42, edit=spoil), "tstr_mixture") is None


def test_one_line_over_all_budgets_of_a_run(lab, budgets):
    auroc = figure([lab.run(42, extra=budgets)]).choices[0]
    line = traces(auroc)["TSTR: mixture"]
    assert line["x"] == [1.0, 4.0, 12.0]
    assert line["y"] == pytest.approx([0.7, 0.7, 0.7])
    assert auroc.layout["xaxis"]["ticktext"] == ["1", "4", "∞"]
    assert traces(auroc)["TSTR: real (no release)"]["y"] == pytest.approx([0.9, 0.9])


def test_groups_of_a_sweep_over_epsilon_join_one_line_with_the_paper_beside(lab):
    runs = [lab.run(seed, epsilon=e, shift=e / 100) for e in (1.0, 4.0) for seed in (42, 43)]
    auroc = figure(runs).choices[0]
    line = traces(auroc)["TSTR: mixture"]
    assert line["x"] == [1.0, 4.0]
    assert line["y"] == pytest.approx([0.715, 0.745])
    assert line["error_y"]["visible"]
    paper = traces(auroc)["TSTR: mixture, paper"]
    assert (paper["x"], paper["y"]) == ([4.0], [0.625])


def test_groups_that_differ_in_something_else_have_their_own_lines(lab):
    runs = [
        lab.run(42, run_id=f"{n}-{e}", epsilon=e, settings={"model.normalization": n})
        for n in ("batch", "group")
        for e in (1.0, 4.0)
    ]
    names = traces(figure(runs).choices[0])
    assert "TSTR: mixture (normalization = batch)" in names
    assert "TSTR: mixture (normalization = group)" in names


def test_other_code_is_another_line(lab):
    runs = [lab.run(42), lab.run(42, run_id="x", code="code-2", created="2031-01-01T00:00:00Z")]
    assert {"TSTR: mixture", "TSTR: mixture (group B)"} <= set(traces(figure(runs).choices[0]))


def test_attack_without_privacy_stands_at_infinity(lab):
    attack = next(choice for choice in figure([lab.run(42)]).choices if choice.label == "attack AUROC")
    line = traces(attack)["audit: membership attack"]
    assert line["x"] == [4.0, 12.0]
    assert line["y"] == pytest.approx([0.55, 0.65])


def test_an_encoder_nobody_protected_is_not_drawn(lab):
    assert not any("encoder" in name for name in traces(figure([lab.run(42)]).choices[0]))


def test_budgets_of_a_private_encoder_are_the_places_of_its_own_line_only(lab):
    def under_dp(budget):
        def edit(manifests):
            manifests["fusion_encoder"]["ledger"] = [{"mechanism": "DP-SGD", "epsilon": budget}]

        return edit

    runs = [
        lab.run(42, run_id=f"e{e}", settings={"model.encoder_epsilon": e}, edit=under_dp(e))
        for e in (2.0, 8.0)
    ]
    names = traces(figure(runs).choices[0])
    assert names["encoder: X-ray and ECG"]["x"] == [2.0, 8.0]
    assert names["TSTR: mixture (encoder_epsilon = 2)"]["x"] == [6.0]
    assert names["TSTR: mixture (encoder_epsilon = 8)"]["x"] == [12.0]


def test_no_release_no_figure(lab):
    assert figure([lab.run(42, keep=("clients", "fusion_encoder", "encode", "tstr_real"))]) is None


def test_plotly_accepts_every_picture(lab, budgets):
    choices = figure([lab.run(42, extra=budgets)]).choices
    assert choices
    for choice in choices:  # plotly raises on a trace or a layout it does not know
        drawn = go.Figure({"data": choice.data, "layout": choice.layout})
        assert [trace.name for trace in drawn.data] == [trace["name"] for trace in choice.data]


@pytest.mark.parametrize(
    ("stage", "arm", "name"),
    [
        ("tstr_mixture", "dp_mixture", "TSTR: mixture"),
        ("tstr_nonprivate_mixture", "nonprivate_mixture", "TSTR: mixture"),
        ("tstr_diffusion_eps1", "dp_diffusion", "TSTR: diffusion"),
        ("tstr_diffusion_eps0.5_paid", "x", "TSTR: diffusion paid"),
        ("audit_eps2", "positive", "audit: positive class"),
        ("audit", "membership_nonprivate", "audit: membership attack"),
    ],
)
def test_series_names_drop_only_the_budget(stage, arm, name):
    assert series_name(stage, arm) == name
