"""Figures show the arrays they are given: numbers are read back from the drawn artists."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from fedsynth.report import figures
from fedsynth.report.drawing import save_png

LABEL = np.arange(200) % 4 != 0


def scores(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 1 / (1 + np.exp(-(1.5 * LABEL + rng.normal(size=len(LABEL)))))


def test_partition_bars_stack_to_the_totals():
    counts = np.array([[3, 4], [10, 0], [0, 5]])
    figure = figures.partition_bars({"images": counts}, clients=["0", "1", "2"])
    tops = [patch.get_y() + patch.get_height() for patch in figure.axes[0].patches[3:]]
    assert tops == counts.sum(1).tolist()


def test_partition_bars_refuse_another_shape():
    with pytest.raises(ValueError, match="client, class"):
        figures.partition_bars({"images": np.ones(3)}, clients=["0", "1", "2"])


def test_mean_precision_of_the_drawn_curve_is_average_precision():
    units = [[(LABEL, scores(0))]]
    line = figures.pr_curves({"arm": units}).axes[0].lines[0]
    # A step function on 401 points: off by at most a few grid cells at the steps.
    assert np.mean(line.get_ydata()) == pytest.approx(average_precision_score(LABEL, scores(0)), abs=0.01)


def test_area_under_the_drawn_curve_is_auroc():
    line = figures.roc_curves({"arm": [[(LABEL, scores(0))]]}).axes[0].lines[1]
    area = np.trapezoid(line.get_ydata(), line.get_xdata())
    assert area == pytest.approx(roc_auc_score(LABEL, scores(0)), abs=0.01)


def test_band_is_over_units_not_over_the_seeds_within_them():
    unit = [(LABEL, scores(0)), (LABEL, scores(1))]
    one, two = figures.roc_curves({"a": [unit]}), figures.roc_curves({"a": [unit, unit]})
    assert not one.axes[0].collections  # one unit: no band
    vertices = two.axes[0].collections[0].get_paths()[0].vertices
    # Equal units: the band has no width, so it encloses no area.
    x, y = vertices[:, 0], vertices[:, 1]
    assert abs(np.sum(x * np.roll(y, 1) - y * np.roll(x, 1))) / 2 < 1e-9
    areas = np.mean([roc_auc_score(LABEL, scores(0)), roc_auc_score(LABEL, scores(1))])
    assert f"{areas:.3f} ± 0.000" in two.axes[0].get_legend().get_texts()[1].get_text()


def test_pca_axes_are_those_of_the_first_source():
    rng = np.random.default_rng(0)
    real = rng.normal(size=(300, 5)) * [9, 3, 1, 1, 1] + 7
    figure = figures.latent_pca(
        {"real": (real, np.zeros(300)), "shifted": (real + np.array([9, 0, 0, 0, 0]), np.ones(300))}
    )
    drawn = [np.asarray(axis.collections[0].get_offsets()) for axis in figure.axes]
    assert np.abs(drawn[0].mean(0)).max() < 1e-9
    assert np.abs(drawn[1].mean(0)[0]) == pytest.approx(9, rel=0.02)
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


def test_distance_histogram_marks_both_medians():
    rng = np.random.default_rng(0)
    train, held_out = rng.gamma(9, size=500), rng.gamma(10, size=500)
    axis = figures.distance_histogram(train, held_out).axes[0]
    marked = [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 2]
    assert marked == pytest.approx([np.median(train), np.median(held_out)])


def test_reliability_points_of_calibrated_scores_lie_on_the_diagonal():
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=60_000)
    label = rng.uniform(size=60_000) < probability
    axis = figures.reliability_diagram({"a": (label, probability)}).axes[0]
    x, y = np.asarray(axis.collections[1].get_offsets()).T
    # 4,000 records a bin: SD of the observed share is at most .008.
    assert np.abs(x - y).max() < 0.032


def test_reliability_diagram_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="labels"):
        figures.reliability_diagram({"a": (np.ones(3), np.ones(4))})


def test_learning_curves_draw_every_line():
    x = np.arange(3.0)
    panels = {"Loss": {"train": (x, x), "val": (x, x * 2)}, "Score": {"auroc": (x, x)}}
    figure = figures.learning_curves(panels, title="t", x_label="round")
    assert [len(axis.lines) for axis in figure.axes] == [2, 1]
    with pytest.raises(ValueError, match="at least one panel"):
        figures.learning_curves({}, title="t", x_label="round")


def test_simulated_is_written_across_the_figure():
    counts = {"images": np.ones((2, 2), int)}
    marked = figures.partition_bars(counts, clients=["0", "1"], simulated=True)
    plain = figures.partition_bars(counts, clients=["0", "1"])
    assert "SIMULATED" in [text.get_text() for text in marked.texts]
    assert marked.get_suptitle().startswith("SIMULATED")
    assert not any("SIMULATED" in text.get_text() for text in plain.texts)


def test_drawing_changes_no_global_setting_and_is_repeatable():
    before = dict(matplotlib.rcParams)
    images = []
    for _ in range(2):
        buffer = io.BytesIO()
        save_png(figures.partition_bars({"images": np.ones((2, 2), int)}, clients=["0", "1"]), buffer)
        images.append(buffer.getvalue())
    assert images[0] == images[1]
    assert images[0].startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before
