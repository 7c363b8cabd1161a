"""Every public function takes any sound pair of inputs, and refuses every unsound one by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import fedsynth.evaluation as evaluation
from fedsynth.attacks import neighbor_disclosure
from fedsynth.attacks.auroc_interval import membership_auroc_intervals
from fedsynth.evaluation import EvaluationError
from fedsynth.evaluation.checks import check_class_index, check_number, check_same_space

Points = Callable[[torch.Tensor, torch.Tensor], object]


def _radius(points: object) -> torch.Tensor:
    return torch.full((1 if points is None else len(points),), 1.5)


#: name -> function of (real, synthetic). Each needs at most 6 points a set.
POINT_FUNCTIONS: dict[str, Points] = {
    "prdc": lambda real, synthetic: evaluation.prdc(real=real, synthetic=synthetic, nearest_k=3),
    "frechet_distance": lambda real, synthetic: evaluation.frechet_distance(real=real, synthetic=synthetic),
    "rbf_mmd": lambda real, synthetic: evaluation.rbf_mmd(real=real, synthetic=synthetic),
    "latent_summary": lambda real, synthetic: evaluation.latent_summary(real=real, synthetic=synthetic),
    "nearest_neighbors": lambda real, synthetic: evaluation.nearest_neighbors(real, synthetic),
    "ball_membership": lambda real, synthetic: evaluation.ball_membership(
        real, synthetic, _radius(synthetic)
    ),
    "mutual_ball_membership": lambda real, synthetic: evaluation.mutual_ball_membership(
        real, _radius(real), synthetic, _radius(synthetic)
    ),
    "neighbor_disclosure": lambda real, synthetic: neighbor_disclosure(
        synthetic=synthetic, train=real, held_out=synthetic
    ),
    "image_retrieval_score": lambda real, synthetic: evaluation.image_retrieval_score(synthetic, real),
    "relative_retrieval_score": lambda real, synthetic: evaluation.relative_retrieval_score(
        synthetic, synthetic, real, generator=_generator()
    ),
}

ONE_SET = {"median_bandwidth": evaluation.median_bandwidth}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


#: name -> function of (probability, target).
SCORE_FUNCTIONS: dict[str, Callable] = {
    "auroc": evaluation.auroc,
    "average_precision": evaluation.average_precision,
    "classification_metrics": lambda p, y: evaluation.classification_metrics(p, y, 0.5),
    "balanced_accuracy_threshold": evaluation.balanced_accuracy_threshold,
    "f1_threshold": evaluation.f1_threshold,
    "expected_calibration_error": evaluation.expected_calibration_error,
    "brier_score": evaluation.brier_score,
    "reliability_diagram": evaluation.reliability_diagram,
    "bootstrap_intervals": lambda p, y: evaluation.bootstrap_intervals(
        p, y, 0.5, generator=_generator(), num_replicates=5
    ),
    "bootstrap_contrasts": lambda p, y: evaluation.bootstrap_contrasts(
        {"a": p, "b": p},
        y,
        thresholds={"a": 0.5, "b": 0.4},
        contrasts=[("a", "b")],
        generator=_generator(),
        num_replicates=5,
    ),
    "paired_bootstrap": lambda p, y: evaluation.paired_bootstrap(
        p, p, y, first_threshold=0.5, second_threshold=0.4, generator=_generator(), num_replicates=5
    ),
}

#: Tested for bad input in the file of their module: other kinds of arguments.
ELSEWHERE = {
    "fit_temperature",
    "scale_logits",
    "gaussian_frechet_distance",
    "holm_adjust",
    "predict_positive",
    "distinct_distribution",
    "distinct_moments",
    "reachable_bounds",
    "reachable_records",
    "can_reject",
    "critical_difference",
    "friedman_test",
    "signed_rank_p",
    "smallest_wilcoxon_p",
    "decision_metrics",
    "normalized_privacy_score",
    "privacy_performance_score",
    "participant_means",
    "replicate_differences",
    "replicate_intervals",
    "system_replicates",
}


def _values(result: object) -> list[float]:
    """All numbers of a result, in order."""
    if isinstance(result, torch.Tensor):
        return result.double().flatten().tolist()
    if isinstance(result, dict):
        return [number for value in result.values() for number in _values(value)]
    if isinstance(result, tuple | list):
        return [number for value in result for number in _values(value)]
    if hasattr(result, "__dataclass_fields__"):
        return [number for name in result.__dataclass_fields__ for number in _values(getattr(result, name))]
    return [float(result)]


def _same(first: object, second: object) -> bool:
    a, b = _values(first), _values(second)
    return len(a) == len(b) and all(
        x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True)
    )


def _sets(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(n, 3, generator=generator).to(dtype) for n in (12, 10))


def _scores(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(20, generator=generator).to(dtype), torch.arange(20) % 3 % 2


def _read_only(tensor: torch.Tensor) -> np.ndarray:
    array = tensor.numpy().copy()
    array.flags.writeable = False
    return array


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), -7.0)
    wide[..., ::2] = tensor
    return wide[..., ::2]


SOUND_FORMS: dict[str, Callable] = {
    "requires grad": lambda t: t.clone().requires_grad_(),
    "parameter": lambda t: torch.nn.Parameter(t.clone()),
    "not contiguous": _strided,
    "numpy": lambda t: t.numpy(),
    "read-only numpy": _read_only,
    "reversed numpy": lambda t: t.flip(0).numpy()[::-1],
    "other byte order": lambda t: t.numpy().astype(">f8"),
    "long double": lambda t: t.numpy().astype(np.longdouble),
}


def test_every_function_of_the_package_is_covered_here():
    functions = {
        name
        for name in evaluation.__all__
        if inspect.isfunction(function := getattr(evaluation, name))
        and function.__module__.split(".")[-1] not in {"failure", "variance"}
    }
    assert functions <= {*POINT_FUNCTIONS, *ONE_SET, *SCORE_FUNCTIONS, *ELSEWHERE}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", POINT_FUNCTIONS)
def test_any_floating_dtype_gives_the_float64_value(name, dtype):
    real, synthetic = _sets(dtype)
    expected = POINT_FUNCTIONS[name](real.double(), synthetic.double())
    assert _same(POINT_FUNCTIONS[name](real, synthetic), expected)
    assert _same(POINT_FUNCTIONS[name](real, synthetic.double()), expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", SOUND_FORMS)
@pytest.mark.parametrize("name", POINT_FUNCTIONS)
def test_any_sound_form_of_points_gives_the_same_value_and_is_left_alone(name, form):
    real, synthetic = _sets()
    given = SOUND_FORMS[form](real)
    before, state = real.numpy().copy(), torch.get_rng_state()
    assert _same(POINT_FUNCTIONS[name](given, synthetic), POINT_FUNCTIONS[name](real, synthetic))
    after = given.detach().numpy() if isinstance(given, torch.Tensor) else given
    assert np.array_equal(before, after)
    assert torch.equal(state, torch.get_rng_state())


BAD_POINTS = {
    "NaN": (lambda t: t.index_fill(0, torch.tensor([1]), math.nan), "NaN or infinite"),
    "infinite": (lambda t: t.index_fill(0, torch.tensor([1]), math.inf), "NaN or infinite"),
    "overflowing": (lambda t: t * 1e200, "overflow"),
    "integers": (lambda t: t.long(), "floating point"),
    "booleans": (lambda t: t > 0, "floating point"),
    "complex": (lambda t: t.to(torch.complex128), "real numbers"),
    "8 bits": (lambda t: t.to(torch.float8_e4m3fn), "floating point"),
    "sparse": (lambda t: t.to_sparse(), "dense"),
    "another device": (lambda t: t.to("meta"), "meta"),
    "a list": (lambda t: t.tolist(), "tensor or a numpy array, got list"),
    "text": (lambda t: t.numpy().astype(str), "must be numeric"),
    "objects": (lambda t: t.numpy().astype(object), "must be numeric"),
    "nothing": (lambda t: None, "got NoneType"),
    "a vector": (lambda t: t[:, 0], "shape"),
    "images": (lambda t: t[:, None], "shape"),
    "no features": (lambda t: t[:, :0], "shape"),
    "no points": (lambda t: t[:0], "at least"),
    "other features": (lambda t: t[:, :2], "same number of features"),
}


UNSOUND = [
    (name, fault, side)
    for name in POINT_FUNCTIONS
    for fault in BAD_POINTS
    for side in (0, 1)
    if (name, fault, side) != ("nearest_neighbors", "nothing", 1)  # asks for neighbors within the set
]


@pytest.mark.parametrize(("name", "fault", "side"), UNSOUND)
def test_unsound_points_are_refused(name, fault, side):
    spoil, message = BAD_POINTS[fault]
    sets = list(_sets())
    sound = POINT_FUNCTIONS[name](*sets)
    sets[side] = spoil(sets[side])
    with pytest.raises(EvaluationError, match=message):
        POINT_FUNCTIONS[name](*sets)
    assert _same(POINT_FUNCTIONS[name](*_sets()), sound)


@pytest.mark.parametrize("fault", sorted(set(BAD_POINTS) - {"other features"}))
def test_an_unsound_set_has_no_bandwidth(fault):
    spoil, message = BAD_POINTS[fault]
    with pytest.raises(EvaluationError, match=message):
        evaluation.median_bandwidth(spoil(_sets()[0]))


@pytest.mark.parametrize("name", [n for n in POINT_FUNCTIONS if n != "rbf_mmd"])
def test_constant_features_and_duplicates_have_finite_values_or_documented_nan(name):
    constant = torch.ones(8, 3)
    values = _values(POINT_FUNCTIONS[name](constant, constant.clone()))
    # neighbor_disclosure documents a NaN ratio of two zero means, its only undefined value.
    assert sum(map(math.isnan, values)) == (name == "neighbor_disclosure")
    assert not any(map(math.isinf, values))


def test_swapped_sets_are_told_apart_by_keywords_only():
    for function in (
        evaluation.prdc,
        evaluation.frechet_distance,
        evaluation.rbf_mmd,
        evaluation.latent_summary,
    ):
        with pytest.raises(TypeError):
            function(*_sets())


def test_sets_on_two_devices_are_refused():
    with pytest.raises(EvaluationError, match=r"one device, got cpu and meta"):
        check_same_space(torch.empty(2, 2), torch.empty(2, 2, device="meta"), ("real", "synthetic"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SCORE_FUNCTIONS)
def test_any_floating_dtype_of_scores_gives_the_float64_value(name, dtype):
    probability, target = _scores(dtype)
    expected = SCORE_FUNCTIONS[name](probability.double(), target)
    for labels in (target, target.bool(), target.to(torch.uint8), target.float(), target.numpy()):
        assert _same(SCORE_FUNCTIONS[name](probability, labels), expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", SOUND_FORMS)
@pytest.mark.parametrize("name", SCORE_FUNCTIONS)
def test_any_sound_form_of_scores_gives_the_same_value(name, form):
    probability, target = _scores()
    given = SOUND_FORMS[form](probability)
    assert _same(SCORE_FUNCTIONS[name](given, target), SCORE_FUNCTIONS[name](probability, target))


BAD_SCORES = {
    "NaN": (lambda p, y: (p.index_fill(0, torch.tensor([1]), math.nan), y), "NaN or infinite"),
    "infinite": (lambda p, y: (p.index_fill(0, torch.tensor([1]), math.inf), y), "NaN or infinite"),
    "complex": (lambda p, y: (p.to(torch.complex128), y), "real numbers"),
    "sparse": (lambda p, y: (p.to_sparse(), y), "dense"),
    "another device": (lambda p, y: (p.to("meta"), y), "meta"),
    "lists": (lambda p, y: (p.tolist(), y), "tensor or a numpy array"),
    "two columns": (lambda p, y: (torch.stack([1 - p, p], dim=1), y), "positive-class column"),
    "fewer scores": (lambda p, y: (p[:-1], y), "same shape"),
    "no records": (lambda p, y: (p[:0], y[:0]), "at least one record"),
    "a scalar target": (lambda p, y: (p, y[0]), r"shape \[records\]"),
    "a third class": (lambda p, y: (p, y * 2), "only 0 and 1"),
    "a NaN target": (lambda p, y: (p, y.double() * math.nan), "only 0 and 1"),
    "a text target": (lambda p, y: (p, y.numpy().astype(str)), "must be numeric"),
}


@pytest.mark.parametrize("fault", BAD_SCORES)
@pytest.mark.parametrize("name", SCORE_FUNCTIONS)
def test_unsound_scores_are_refused(name, fault):
    spoil, message = BAD_SCORES[fault]
    with pytest.raises(EvaluationError, match=message):
        SCORE_FUNCTIONS[name](*spoil(*_scores()))


@pytest.mark.parametrize("name", sorted(set(SCORE_FUNCTIONS) - {"auroc", "average_precision"}))
def test_logits_are_no_probabilities(name):
    probability, target = _scores()
    with pytest.raises(EvaluationError, match=r"lie in \[0, 1\]"):
        SCORE_FUNCTIONS[name](probability * 4 - 2, target)


@pytest.mark.parametrize("threshold", [math.nan, "0.5", None, True])
def test_a_threshold_that_is_no_number_is_refused(threshold):
    probability, target = _scores()
    for call in (
        lambda: evaluation.predict_positive(probability, threshold),
        lambda: evaluation.classification_metrics(probability, target, threshold),
        lambda: evaluation.bootstrap_intervals(probability, target, threshold, generator=_generator()),
    ):
        with pytest.raises(EvaluationError, match="threshold must be a number"):
            call()


def test_undefined_probabilities_are_not_silently_negative():
    with pytest.raises(EvaluationError, match="NaN"):
        evaluation.predict_positive(torch.tensor([0.5, math.nan]), 0.5)


@pytest.mark.parametrize("value", [math.nan, 0.0, 1.0, "0.5", None, True, 1j])
def test_numbers_outside_an_open_interval_are_refused(value):
    with pytest.raises(EvaluationError, match=r"share must be a number in \(0, 1\), got .*Usually 0.5\."):
        check_number(value, "share", low=0.0, high=1.0, is_open=True, remedy="Usually 0.5.")
    assert check_number(np.float32(0.5), "share", low=0.5, high=1.0) == 0.5


@pytest.mark.parametrize("labels", [[0.5, 1.0], [math.nan, 0.0], [-1.0, 0.0], [0.0, 3.0], [math.inf, 0.0]])
def test_labels_that_are_no_class_are_refused(labels):
    with pytest.raises(EvaluationError, match=r"lie in \[0, 2\]"):
        check_class_index(torch.tensor(labels), 3, 2, "label")


@pytest.mark.parametrize("generator", [None, 3, np.random.default_rng(0)])
def test_nothing_is_drawn_from_global_state(generator):
    probability, target = _scores()
    state = torch.get_rng_state()
    for draw in (
        lambda: evaluation.bootstrap_intervals(probability, target, 0.5, generator=generator),
        lambda: membership_auroc_intervals({"a": probability}, {"a": probability}, generator=generator),
    ):
        with pytest.raises(EvaluationError, match=r"generator must be a torch\.Generator"):
            draw()
    assert torch.equal(state, torch.get_rng_state())
