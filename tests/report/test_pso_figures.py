"""Figures of PSO-secure sharing show what they are given, read back from the drawn artists."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedsynth.report.pso_figures import IsolationLines, isolation_curves, rank_diagram
from fedsynth.report.pso_pictures import ALLOWED, CHOSEN, FLAGGED, Verdicts, image_pairs, verdict_grid

RANKS = {"a": 1.2, "b": 2.0, "c": 2.8, "d": 4.0}


def verdicts(**changes) -> Verdicts:
    values = {
        "label": "normal",
        "source": np.full((4, 4), 7, dtype=np.uint8),
        "candidates": np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((3, 4, 4), dtype=np.uint8),
        "probability": np.array([0.9, 0.2, 0.1]),
        "flagged": np.array([True, False, False]),
        "chosen": np.array([False, False, True]),
    }
    return Verdicts(**{**values, **changes})


def frame(axis) -> str:
    return to_hex(axis.spines["left"].get_edgecolor())


def lines(**changes) -> IsolationLines:
    names = ("radius", "isolating", "low", "high", "baseline", "ceiling", "negative", "positive")
    values = {name: np.linspace(0.1, 0.4, 5) + 0.01 * index for index, name in enumerate(names)}
    return IsolationLines(**{**values, **changes})


def test_frames_tell_the_verdict_and_p_stands_below():
    source, *candidates = verdict_grid([verdicts()]).axes
    assert [frame(axis) for axis in candidates] == [FLAGGED, ALLOWED, CHOSEN]
    assert [axis.get_xlabel() for axis in candidates] == ["P = 0.90", "P = 0.20", "P = 0.10"]
    assert source.get_ylabel() == "normal"
    assert source.images[0].get_array().tolist() == np.full((4, 4), 7).tolist()
    assert candidates[2].images[0].get_array().max() == 2


def test_gray_levels_are_drawn_as_they_are():
    axis = verdict_grid([verdicts()]).axes[1]
    assert axis.images[0].get_clim() == (0, 255)
    assert axis.images[0].get_interpolation() == "nearest"


def test_rows_with_fewer_candidates_leave_the_rest_empty():
    short = verdicts(
        candidates=np.zeros((1, 4, 4)), probability=None, flagged=np.zeros(1, bool), chosen=np.ones(1, bool)
    )
    figure = verdict_grid([verdicts(), short])
    assert [axis.get_visible() for axis in figure.axes[4:]] == [True, True, False, False]
    assert figure.axes[5].get_xlabel() == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"source": np.zeros((1, 4, 4))},
        {"candidates": np.zeros((3, 4, 5))},
        {"candidates": np.zeros((0, 4, 4))},
        {"flagged": np.zeros(2, bool)},
        {"probability": np.zeros((3, 1))},
        {"chosen": np.zeros(4, bool)},
    ],
)
def test_verdicts_that_do_not_fit_are_refused(changes):
    with pytest.raises(ValueError, match="must be of shape"):
        verdict_grid([verdicts(**changes)])


def test_real_images_stand_above_made_ones_of_their_class():
    panels = {name: (np.full((2, 3, 3), i), np.full((1, 3, 3), 10 + i)) for i, name in enumerate(("x", "y"))}
    grid = np.array(image_pairs(panels, made="released", title="t").axes).reshape(4, 2)
    assert [axis.get_ylabel() for axis in grid[:, 0]] == ["x\nreal", "x\nreleased", "y\nreal", "y\nreleased"]
    assert [axis.images[0].get_array()[0, 0] for axis in grid[:, 0]] == [0, 10, 1, 11]
    assert [axis.get_visible() for axis in grid[1]] == [True, False]


def test_isolation_shows_every_curve_and_a_panel_for_each_set():
    figure = isolation_curves({"first": lines(), "second": lines(), "third": lines()})
    drawn = [axis for axis in figure.axes if axis.lines]
    assert [axis.get_title() for axis in drawn] == ["first", "second", "third"]
    shown = [line.get_ydata().tolist() for line in drawn[0].lines]
    wanted = lines()
    assert shown == [
        getattr(wanted, name).tolist()
        for name in ("isolating", "baseline", "ceiling", "negative", "positive")
    ]
    assert drawn[0].get_xscale() == "log"


def test_a_radius_of_zero_is_drawn_on_a_plain_axis():
    (axis,) = isolation_curves({"p": lines(radius=np.array([0.0, 0.1, 0.2, 0.3, 0.4]))}).axes
    assert axis.get_xscale() == "linear"


def test_isolation_curves_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="ceiling must be of shape"):
        isolation_curves({"p": lines(ceiling=np.zeros(4))})


def test_every_method_stands_at_its_rank():
    (axis,) = rank_diagram(RANKS, [], title="t").axes
    texts = [text.get_text().strip() for text in axis.texts]
    assert texts == ["1", "2", "3", "4", "a  (1.20)", "b  (2.00)", "c  (2.80)", "d  (4.00)"]
    starts = [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 3]
    assert starts == list(RANKS.values())


def test_a_bar_is_dotted_where_it_passes_a_method_that_is_no_member():
    (axis,) = rank_diagram(RANKS, [("a", "c", "d")], title="t").axes
    bars = [
        (line.get_xdata().tolist(), line.get_linestyle())
        for line in map(as_arrays, axis.lines)
        if is_bar(line)
    ]
    assert bars == [([1.2, 2.8], ":"), ([2.8, 4.0], "-")]
    (dots,) = axis.collections
    assert np.asarray(dots.get_offsets())[:, 0].tolist() == [1.2, 2.8, 4.0]


def as_arrays(line):
    line.set_data(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
    return line


def is_bar(line) -> bool:
    y = line.get_ydata()
    return len(y) == 2 and y[0] == y[1] != 0


def test_bars_of_two_cliques_do_not_lie_on_each_other():
    (axis,) = rank_diagram(RANKS, [("a", "b"), ("b", "c")], title="t").axes
    assert len({float(line.get_ydata()[0]) for line in map(as_arrays, axis.lines) if is_bar(line)}) == 2


@pytest.mark.parametrize(("ranks", "cliques"), [({"a": 1.0}, []), (RANKS, [("a", "unknown")])])
def test_a_diagram_of_one_method_or_with_an_unknown_member_is_refused(ranks, cliques):
    with pytest.raises(ValueError, match="at least two methods"):
        rank_diagram(ranks, cliques, title="t")


@pytest.mark.parametrize(
    "draw",
    [
        lambda: verdict_grid([]),
        lambda: image_pairs({}, made="m", title="t"),
        lambda: isolation_curves({}),
    ],
    ids=["verdicts", "images", "isolation"],
)
def test_a_figure_of_nothing_is_refused(draw):
    with pytest.raises(ValueError, match="leave the figure out"):
        draw()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: verdict_grid([verdicts()], simulated=True),
        lambda: image_pairs(
            {"x": (np.zeros((1, 3, 3)), np.zeros((1, 3, 3)))}, made="m", title="t", simulated=True
        ),
        lambda: isolation_curves({"p": lines()}, simulated=True),
        lambda: rank_diagram(RANKS, [], title="t", simulated=True),
    ],
    ids=["verdicts", "images", "isolation", "ranks"],
)
def test_simulated_is_written_across_image_figures(draw):
    assert "SIMULATED" in [text.get_text() for text in draw().texts]
