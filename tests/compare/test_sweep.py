"""One picture over the one setting in which the groups differ."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from fedsynth.compare import collect_results, compare_runs, group_runs
from fedsynth.compare.sweep import sweep_figure, sweep_picture


def sweep(lab, key, values, **more):
    return [
        lab.run(seed, run_id=f"{value}-{seed}", settings={key: value}, shift=place / 10, **more)
        for place, value in enumerate(values)
        for seed in (42, 43)
    ]


def both(runs):
    grouping = group_runs(runs)
    return grouping, collect_results(grouping.groups)


def test_numbers_stand_at_their_value_in_order(lab):
    grouping, results = both(sweep(lab, "data.dirichlet_alpha", (5.0, 0.1, 0.5)))
    figure = sweep_figure(grouping, results)
    assert figure.title == "Sweep over data.dirichlet_alpha"
    auroc = figure.choices[0]
    line = next(trace for trace in auroc.data if trace["name"] == "encoder: X-ray and ECG")
    assert line["x"] == [0.1, 0.5, 5.0]
    assert line["y"] == pytest.approx([0.605, 0.705, 0.505])
    assert auroc.layout["xaxis"]["type"] == "log"
    for choice in figure.choices:
        go.Figure({"data": choice.data, "layout": choice.layout})


def test_the_caption_says_what_else_changes(lab):
    grouping, results = both(sweep(lab, "data.num_clients", (5, 20)))
    assert "the only setting" in sweep_figure(grouping, results).caption
    runs = [
        lab.run(42, run_id=f"x{n}", settings={"data.num_clients": n, "data.split_seed": n + 1})
        for n in (5, 20)
    ]
    assert "with it change data.split_seed" in sweep_figure(*both(runs)).caption


def test_words_stand_side_by_side(lab):
    grouping, results = both(sweep(lab, "model.normalization", ("batch", "group")))
    axis = sweep_figure(grouping, results).choices[0].layout["xaxis"]
    assert axis["ticktext"] == ["batch", "group"]


def test_the_picture_has_a_panel_per_quantity_and_the_mark_of_simulated_data(lab):
    grouping, results = both(sweep(lab, "data.num_clients", (5, 20, 100), simulated=True))
    picture = sweep_picture(grouping, results)
    assert [axes.get_title() for axes in picture.axes] == [
        "AUROC on real test records",
        "Coverage of real latents",
        "Attack AUROC",
    ]
    texts = [text.get_text() for text in picture.findobj() if hasattr(text, "get_text")]
    assert "SIMULATED" in texts
    assert picture.axes[0].get_xscale() == "log"


def test_the_picture_is_written_beside_the_page_and_goes_when_there_is_no_sweep(lab, tmp_path):
    page = tmp_path / "out" / "page.html"
    files = compare_runs(sweep(lab, "data.num_clients", (5, 20)), page)
    assert files.picture == tmp_path / "out" / "page.sweep.png"
    assert files.picture.read_bytes().startswith(b"\x89PNG")
    assert compare_runs([lab.run(44)], page).picture is None
    assert not (tmp_path / "out" / "page.sweep.png").exists()


def test_groups_of_different_code_are_cautioned_about(lab):
    runs = [lab.run(42, run_id="a", epsilon=1.0), lab.run(42, run_id="b", epsilon=4.0, code="code-2")]
    assert "Caution" in sweep_figure(*both(runs)).caption
    assert "Caution" not in sweep_figure(*both(sweep(lab, "data.num_clients", (5, 20)))).caption


def test_one_group_is_no_sweep(lab):
    grouping, results = both([lab.run(42)])
    assert sweep_figure(grouping, results) is None
    assert sweep_picture(grouping, results) is None
