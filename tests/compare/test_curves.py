"""Learning curves and per-client spread are read from history.json."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

from fedsynth.compare import collect_results, group_runs
from fedsynth.compare.curves import client_figure, learning_figure, read_history
from fedsynth.errors import ArtifactError


def test_history_counts_from_one_and_leaves_out_what_is_undefined(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(
        '[{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": NaN, "note": "x"}, {"epoch": 2, "loss": 1}]'
    )
    assert read_history(path) == {"loss": ([1.0, 3.0], [2.0, 1.0])}


@pytest.mark.parametrize(
    ("text", "message"), [("[{", "no valid JSON"), ("{}", "list of objects"), ("[1]", "list of")]
)
def test_damaged_histories_are_explained(tmp_path, text, message):
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=message):
        read_history(path)


def test_a_line_is_the_mean_over_runs_with_a_band_of_one_sd(lab):
    figure, remarks = learning_figure(group_runs([lab.run(seed) for seed in (42, 43, 44)]).groups)
    assert remarks == []
    auroc = next(choice for choice in figure.choices if choice.label == "federated encoder: val/auroc")
    band, line = auroc.data
    assert line["x"] == [1, 3, 4]  # round 2 has no AUROC
    assert line["y"] == pytest.approx([0.51, 0.71, 0.81])
    sd = np.std([0.0, 0.01, 0.02], ddof=1)
    assert band["y"][0] == pytest.approx(0.51 + sd)
    assert band["y"][-1] == pytest.approx(0.51 - sd)


def test_one_run_has_no_band(lab):
    figure, _ = learning_figure(group_runs([lab.run(42)]).groups)
    assert all(len(choice.data) == 1 for choice in figure.choices)


def test_validation_of_the_federated_encoder_is_shown_first(lab):
    figure, _ = learning_figure(group_runs([lab.run(42)]).groups)
    assert figure.choices[0].label == "federated encoder: val/auroc"


def test_a_damaged_history_costs_one_curve_and_gets_a_remark(lab):
    good, bad = lab.run(42), lab.run(43)
    (bad.stages["fusion_encoder"].path / "history.json").write_text("[{")
    figure, (remark,) = learning_figure(group_runs([good, bad]).groups)
    assert "run-43-4" in remark
    assert len(figure.choices[0].data) == 1


def test_without_histories_there_is_no_figure(lab):
    run = lab.run(42, keep=("clients",))
    assert learning_figure(group_runs([run]).groups) == (None, [])


def test_clients_have_a_line_each_and_points_for_metrics_of_their_own(lab):
    grouping = group_runs([lab.run(seed) for seed in (42, 43)])
    figure = client_figure(grouping.groups, collect_results(grouping.groups))
    points, curves = figure.choices
    assert points.data[0]["x"] == [0, 1, 2]
    assert points.data[0]["y"] == pytest.approx([0.5, 0.6, 0.7])
    lines = [trace for trace in curves.data if trace.get("name")]
    assert [trace["name"] for trace in lines] == ["client 0", "client 1", "client 2"]
    assert lines[2]["y"] == pytest.approx([2.5, 2.4, 2.3, 2.2])
    for choice in figure.choices:
        go.Figure({"data": choice.data, "layout": choice.layout})


def test_groups_that_share_an_artifact_share_a_line(lab):
    first = lab.run(42, epsilon=1.0)
    second = lab.run(42, epsilon=4.0)
    path = second.path / "run.json"
    info = json.loads(path.read_text())
    info["stages"]["fusion_encoder"] = json.loads((first.path / "run.json").read_text())["stages"][
        "fusion_encoder"
    ]
    path.write_text(json.dumps(info))
    from fedsynth.report.runs import load_run

    grouping = group_runs([first, load_run(second.path, log_dir=lab.log_dir)])
    figure, _ = learning_figure(grouping.groups)
    assert [trace["name"] for trace in figure.choices[0].data] == ["A, B (the same)"]


def test_no_clients_no_figure(lab):
    grouping = group_runs([lab.run(42, keep=("clients", "encode", "release"))])
    assert client_figure(grouping.groups, collect_results(grouping.groups)) is None
