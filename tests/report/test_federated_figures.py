"""Figures of federated systems show the numbers they are given, read back from the drawn artists."""

from __future__ import annotations

import numpy as np
import pytest

from fedsynth.report import federated_figures as figures
from fedsynth.report.drawing import CYCLE
from fedsynth.report.result_figures import Estimate

POINT = (Estimate(0.9, 0.8, 1.1), Estimate(0.75, 0.7, 0.8))


def offsets(axis) -> list[list[float]]:
    return [
        np.asarray(item.get_offsets())[0].tolist()
        for item in axis.collections
        if len(item.get_offsets()) == 1
    ]


def test_plane_shows_points_and_intervals_cut_off_at_one():
    axis = figures.privacy_plane({"ours": {"a": POINT}}).axes[0]
    assert [0.9, 0.75] in offsets(axis)
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]
    assert ([0.8, 1.0], [0.75, 0.75]) in lines
    assert ([0.9, 0.9], [0.7, 0.8]) in lines
    assert axis.get_xlim()[1] > 1.0


def test_contours_of_the_plane_are_harmonic_means():
    axis = figures.privacy_plane({"ours": {"a": POINT}}).axes[0]
    (contours,) = [item for item in axis.collections if hasattr(item, "levels")]
    checked = 0
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        for x, y in path.vertices:
            # Linear interpolation between 120 grid lines: the curvature of PPS over one cell.
            assert 2 * x * y / (x + y) == pytest.approx(level, abs=1e-3)
            checked += 1
    assert checked > 100


def test_a_system_looks_the_same_in_both_panels_of_the_plane():
    first, second = figures.privacy_plane({"ours": {"a": POINT, "b": POINT}, "paper": {"b": POINT}}).axes
    colors = [
        tuple(first.collections[-1].get_edgecolor()[0]),
        tuple(second.collections[-1].get_edgecolor()[0]),
    ]
    assert colors[0] == colors[1]
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim() == second.get_ylim()


def test_line_styles_do_not_repeat_when_colors_do():
    count = 3 * len(CYCLE)
    assert len({str(figures.line_style(index)) for index in range(count)}) == count


def test_every_round_of_every_system_is_drawn():
    x, y = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.6, 0.7])
    figure = figures.score_by_round(
        {"p": {"a": (x, y), "b": (x, y + 0.1)}, "q": {"c": (x, y)}}, y_label="UAR"
    )
    assert [len(axis.lines) for axis in figure.axes] == [2, 1]
    assert figure.axes[0].lines[1].get_ydata().tolist() == (y + 0.1).tolist()
    assert figure.axes[0].get_ylabel() == "UAR"


def test_clients_stand_on_a_logarithmic_axis_with_their_numbers():
    lines = {"a": {64: Estimate(0.6, 0.5, 0.7), 4: Estimate(0.8)}, "b": {4: Estimate(0.7)}}
    axis = figures.client_scaling({"UAR": lines}).axes[0]
    assert axis.get_xscale() == "log"
    assert [label.get_text() for label in axis.get_xticklabels()] == ["4", "64"]
    first = axis.lines[0]
    assert first.get_ydata().tolist() == [0.8, 0.6]
    # Systems stand a few percent apart.
    assert first.get_xdata() == pytest.approx([4, 64], rel=0.05)


def test_bars_have_heights_intervals_and_the_line_of_guessing():
    panels = {"attack": {"a": {"x": Estimate(0.6, 0.5, 0.7), "y": Estimate(0.7)}, "b": {"y": Estimate(0.3)}}}
    axis = figures.leakage_bars(panels, references={"attack": {"y": 0.25, "z": 0.9}}, title="t").axes[0]
    assert [bar.get_height() for bar in axis.patches] == [0.6, 0.7, 0.3]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["x", "y"]
    heights = [sorted(set(line.get_ydata())) for line in axis.lines]
    assert heights == [[0.5, 0.7], [0.25]]  # no line for a group that is not drawn


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.privacy_plane({}),
        lambda: figures.score_by_round({}, y_label="y"),
        lambda: figures.client_scaling({}),
        lambda: figures.leakage_bars({}, title="t"),
    ],
    ids=["plane", "rounds", "clients", "bars"],
)
def test_a_figure_without_a_panel_is_refused(draw):
    with pytest.raises(ValueError, match="at least one panel"):
        draw()


@pytest.mark.parametrize(
    "figure",
    [
        figures.privacy_plane({"ours": {"a": POINT}}, simulated=True),
        figures.client_scaling({"UAR": {"a": {4: Estimate(0.5)}}}, simulated=True),
        figures.leakage_bars({"p": {"a": {"x": Estimate(0.5)}}}, title="t", simulated=True),
        figures.score_by_round({"p": {"a": (np.ones(1), np.ones(1))}}, y_label="y", simulated=True),
    ],
    ids=["plane", "clients", "bars", "rounds"],
)
def test_simulated_is_written_across(figure):
    assert "SIMULATED" in [text.get_text() for text in figure.texts]
