"""Only repetitions are averaged: the same settings, data and code, other seeds."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from fedsynth.compare import collect_results, group_runs
from fedsynth.compare.groups import deleted_artifacts, unfinished
from fedsynth.errors import ConfigError


def members(grouping):
    return [[run.run_id for run in group.runs] for group in grouping.groups]


def row_of(results, stage, arm, metric):
    (row,) = [row for row in results.rows if (row.stage, row.arm, row.metric) == (stage, arm, metric)]
    return row


def test_seeds_are_repetitions_and_other_settings_are_not(lab):
    runs = [lab.run(seed, epsilon=epsilon) for epsilon in (4.0, 1.0) for seed in (43, 42)]
    grouping = group_runs(runs)
    assert members(grouping) == [["run-42-1", "run-43-1"], ["run-42-4", "run-43-4"]]  # along the sweep
    assert [group.label for group in grouping.groups] == ["epsilon = 1", "epsilon = 4"]
    assert [group.tag for group in grouping.groups] == ["A", "B"]
    assert all(group.marks == () for group in grouping.groups)


def test_order_of_the_runs_does_not_matter(lab):
    runs = [lab.run(seed, epsilon=epsilon) for epsilon in (4.0, 1.0) for seed in (43, 42)]
    assert members(group_runs(runs)) == members(group_runs(runs[::-1]))


def test_mean_sd_and_interval_are_over_runs(lab):
    from scipy import stats

    results = collect_results(group_runs([lab.run(seed) for seed in (42, 43, 45)]).groups)
    (cell,) = row_of(results, "fusion_encoder", "both", "test/auroc").cells
    values = np.array([0.50, 0.51, 0.53])
    assert cell.mean == pytest.approx(values.mean())
    assert cell.std == pytest.approx(values.std(ddof=1))
    low, high = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
    assert (cell.ci_low, cell.ci_high) == (pytest.approx(low), pytest.approx(high))
    assert cell.paper == 0.75


def test_other_code_is_another_group_and_marked(lab):
    grouping = group_runs([lab.run(42), lab.run(43, code="code-2")])
    assert members(grouping) == [["run-42-4"], ["run-43-4"]]
    assert grouping.groups[0].marks == ()
    (mark,) = grouping.groups[1].marks
    assert mark.startswith("different code than A: ")
    assert "fusion_encoder" in mark


def test_other_data_is_another_group_and_marked(lab):
    grouping = group_runs([lab.run(42), lab.run(43, digest="cd" * 32)])
    assert grouping.groups[1].marks == ("different data than A: fake_images fake.npz",)


def test_simulated_runs_never_join_real_ones(lab):
    grouping = group_runs([lab.run(42), lab.run(43, simulated=True)])
    assert [group.is_simulated for group in grouping.groups] == [False, True]
    assert grouping.is_simulated
    assert "SIMULATED data" in grouping.groups[1].marks
    assert grouping.groups[1].name.startswith("SIMULATED B:")


def test_experiments_are_named_where_they_differ(lab):
    grouping = group_runs([lab.run(42), lab.run(42, experiment="other/one", created="2031-01-01T00:00:00Z")])
    assert [group.label for group in grouping.groups] == ["fake", "other/one"]


def test_settings_are_named_within_an_experiment_only(lab):
    runs = [
        lab.run(42, epsilon=1.0),
        lab.run(42, epsilon=4.0),
        lab.run(42, experiment="other", settings={"data.num_clients": 9}, created="2031-01-01T00:00:00Z"),
    ]
    labels = [group.label for group in group_runs(runs).groups]
    assert labels == ["fake, epsilon = 1", "fake, epsilon = 4", "other"]


def test_of_two_runs_with_one_seed_the_finished_then_the_newer_counts(lab):
    old = lab.run(42, run_id="old", created="2030-01-01T00:00:00Z")
    new = lab.run(42, run_id="new", created="2030-01-02T00:00:00Z")
    killed = lab.run(42, run_id="killed", created="2030-01-03T00:00:00Z", finished=False, keep=("clients",))
    grouping = group_runs([old, new, killed])
    assert members(grouping) == [["new"]]
    assert len(grouping.remarks) == 2
    assert all("new has the same seed" in remark for remark in grouping.remarks)


def test_an_unfinished_run_is_marked_with_what_it_lacks(lab):
    run = lab.run(42, finished=False, keep=("clients", "fusion_encoder"))
    assert unfinished(run) == ["encode", "tstr_real", "release", "mix", "tstr_mixture", "audit"]
    (mark,) = group_runs([run]).groups[0].marks
    assert mark.startswith("unfinished: run-42-4 (seed 42), missing: encode, tstr_real")


def test_an_unfinished_run_joins_its_group_with_the_stages_it_has(lab):
    grouping = group_runs([lab.run(42), lab.run(43, finished=False, keep=("clients", "fusion_encoder"))])
    assert members(grouping) == [["run-42-4", "run-43-4"]]
    results = collect_results(grouping.groups)
    assert row_of(results, "fusion_encoder", "both", "test/auroc").cells[0].seeds == 2
    assert "classifier seeds" in row_of(results, "tstr_real", "real", "test/auroc").cells[0].interval


def test_a_limited_but_finished_run_is_not_called_unfinished(lab):
    run = lab.run(42, keep=("clients",))
    assert unfinished(run) == []
    assert group_runs([run]).groups[0].marks == ()


def test_deleted_artifacts_are_marked_and_cost_only_their_numbers(lab):
    shutil.rmtree(lab.run(42).stages["tstr_real"].path)
    from fedsynth.report.runs import load_run

    run = load_run(lab.log_dir / "runs/fake/run-42-4", log_dir=lab.log_dir)
    assert deleted_artifacts(run) == ["tstr_real"]
    grouping = group_runs([run])
    assert grouping.groups[0].marks == ("artifacts deleted: run-42-4 (seed 42), tstr_real",)
    assert {row.stage for row in collect_results(grouping.groups).rows} == {
        "fusion_encoder",
        "tstr_mixture",
        "audit",
    }


def test_a_number_only_one_group_has_is_empty_in_the_others(lab):
    grouping = group_runs([lab.run(42, epsilon=1.0), lab.run(42, keep=("clients", "fusion_encoder"))])
    row = row_of(collect_results(grouping.groups), "tstr_real", "real", "test/auroc")
    assert [cell is None for cell in row.cells] == [False, True]


def test_a_published_value_for_one_group_says_for_which(lab):
    grouping = group_runs([lab.run(42, epsilon=1.0), lab.run(42, epsilon=4.0)])
    results = collect_results(grouping.groups)
    row = row_of(results, "tstr_mixture", "dp_mixture", "test/auroc")
    assert (row.paper.paper, row.paper_scope("AB")) == (0.625, "B")
    everywhere = row_of(results, "fusion_encoder", "both", "test/auroc")
    assert (everywhere.paper.paper, everywhere.paper_scope("AB")) == (0.75, "")


def test_headline_rows_come_metric_by_metric(lab):
    headline = collect_results(group_runs([lab.run(42)]).groups).headline
    metrics = [row.metric for row in headline]
    assert metrics[0] == "test/auroc"
    assert metrics == sorted(metrics, key=["test/auroc", "test/f1", "coverage", "attack_auroc"].index)


def test_rows_of_other_budgets_name_their_stage_and_clients_are_no_headline(lab):
    extra = {
        name: {"stage": "tstr_mlp", "inputs": {"train": "mix"}, "arm": "dp_mixture"}
        for name in ("tstr_mixture_eps1", "tstr_mixture_primary")
    }
    headline = collect_results(group_runs([lab.run(42, extra=extra)]).groups).headline
    titles = [row.title for row in headline if row.metric == "test/auroc"]
    assert "TSTR: DP mixture" in titles
    assert "TSTR: DP mixture (tstr_mixture_eps1)" in titles
    assert "TSTR: DP mixture (tstr_mixture_primary)" in titles
    assert len(set(titles)) == len(titles)
    assert not any(row.arm.startswith("client") for row in headline)


def test_no_runs_are_refused():
    with pytest.raises(ConfigError, match="at least one run"):
        group_runs([])


def test_tags_go_on_after_z(lab):
    runs = [lab.run(42, epsilon=float(value)) for value in range(1, 29)]
    tags = [group.tag for group in group_runs(runs).groups]
    assert (tags[25], tags[26], tags[27]) == ("Z", "AA", "AB")
    assert len(set(tags)) == 28
