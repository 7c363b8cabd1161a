"""The classes give the functions' values, bit for bit, however they are fed."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsynth.attacks import neighbor_disclosure
from fedsynth.attacks.streaming import StreamingNeighborDisclosure
from fedsynth.evaluation import (
    EvaluationError,
    brier_score,
    classification_metrics,
    expected_calibration_error,
    frechet_distance,
    prdc,
    rbf_mmd,
)
from fedsynth.evaluation.streaming import (
    StreamingCalibration,
    StreamingClassification,
    StreamingFrechetDistance,
    StreamingMMD,
    StreamingPRDC,
)


def _points(n: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _scores(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.arange(n) % 2
    return torch.sigmoid(torch.randn(n, generator=generator) + target), target


POINT_METRICS = {
    "frechet": (StreamingFrechetDistance, lambda r, s: {"frechet": frechet_distance(real=r, synthetic=s)}),
    "mmd": (StreamingMMD, lambda r, s: {"mmd": rbf_mmd(real=r, synthetic=s)}),
    "prdc": (StreamingPRDC, lambda r, s: prdc(real=r, synthetic=s)._asdict()),
}

METRICS = {
    **{name: made for name, (made, _) in POINT_METRICS.items()},
    "classification": lambda: StreamingClassification(threshold=0.4),
    "calibration": StreamingCalibration,
    "disclosure": StreamingNeighborDisclosure,
}


def _feed(name: str, metric, cuts: list[int]):
    """Everything a metric needs, in batches that end at `cuts`."""
    edges = [0, *sorted(cuts), 30]
    probability, target = _scores(30, 0)
    for start, stop in itertools.pairwise(edges):
        rows = slice(start, stop)
        if name in POINT_METRICS:
            metric.update(real=_points(30, 1)[rows])
            metric.update(synthetic=_points(30, 2)[rows])
        elif name == "disclosure":
            metric.update(
                synthetic=_points(30, 1)[rows], train=_points(30, 2)[rows], held_out=_points(30, 3)[rows]
            )
        else:
            metric.update(probability=probability[rows], target=target[rows])
    return metric


def _expected(name: str) -> dict[str, float]:
    probability, target = _scores(30, 0)
    if name in POINT_METRICS:
        return POINT_METRICS[name][1](_points(30, 1), _points(30, 2))
    if name == "disclosure":
        found = neighbor_disclosure(synthetic=_points(30, 1), train=_points(30, 2), held_out=_points(30, 3))
        return {key: value for key, value in vars(found).items() if isinstance(value, float)}
    if name == "classification":
        return classification_metrics(probability, target, 0.4)
    return {
        "brier": brier_score(probability, target),
        "ece_15": expected_calibration_error(probability, target, 15),
        "ece_10": expected_calibration_error(probability, target, 10),
    }


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 30), max_size=6))
def test_batches_of_any_size_give_the_function_value_bit_for_bit(name, cuts):
    values = _feed(name, METRICS[name](), cuts).compute()
    assert {key: float(value) for key, value in values.items()} == _expected(name)
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in values.values())


@pytest.mark.parametrize("name", METRICS)
def test_reset_forgets_and_pickling_remembers(name):
    metric = _feed(name, METRICS[name](), [7])
    metric.reset()
    _feed(name, metric, [11])
    copy = pickle.loads(pickle.dumps(metric))
    assert {key: float(value) for key, value in copy.compute().items()} == _expected(name)


@pytest.mark.parametrize("name", METRICS)
def test_a_state_dict_restores_what_was_gathered(name):
    metric = METRICS[name]()
    metric.persistent(True)
    _feed(name, metric, [5, 20])
    restored = METRICS[name]()
    restored.persistent(True)
    restored.load_state_dict(metric.state_dict())
    restored._update_count = 1  # torchmetrics does not store it; without it compute() warns
    assert {key: float(value) for key, value in restored.compute().items()} == _expected(name)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
@pytest.mark.parametrize("name", METRICS)
def test_nothing_to_compute_from_is_said(name):
    with pytest.raises(EvaluationError, match=r"no \w+ was given yet"):
        METRICS[name]().compute()


@pytest.mark.parametrize("name", POINT_METRICS)
def test_classes_are_compared_apart(name):
    made, function = POINT_METRICS[name]
    real, synthetic = _points(40, 4), _points(40, 5)
    real_label, synthetic_label = torch.arange(40) % 2, torch.arange(40) // 15 % 2
    metric = made(num_classes=2)
    for rows in (slice(0, 9), slice(9, 40)):
        metric.update(real=real[rows], real_label=real_label[rows])
    metric.update(synthetic=synthetic, synthetic_label=synthetic_label)
    expected = {
        f"{key}/{c}": value
        for c in range(2)
        for key, value in function(real[real_label == c], synthetic[synthetic_label == c]).items()
    }
    assert {key: float(value) for key, value in metric.compute().items()} == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_points_keep_their_dtype_even_in_a_cast_module(dtype):
    metric = StreamingPRDC(nearest_k=2).half()
    metric.update(real=_points(20, 6, dtype), synthetic=_points(20, 7, dtype))
    expected = prdc(real=_points(20, 6, dtype), synthetic=_points(20, 7, dtype), nearest_k=2)
    assert tuple(map(float, metric.compute().values())) == expected


def test_later_changes_of_a_batch_are_not_seen():
    real, synthetic = _points(20, 8), _points(20, 9)
    expected = frechet_distance(real=real, synthetic=synthetic)
    metric = StreamingFrechetDistance()
    metric.update(real=real, synthetic=synthetic)
    real.zero_()
    assert float(metric.compute()["frechet"]) == expected


@pytest.mark.parametrize(
    ("options", "batch", "message"),
    [
        ({}, {"real": torch.zeros(2, 5)}, "real must have 4 features as in earlier batches, got 5"),
        ({}, {"real": torch.full((2, 4), torch.nan)}, "NaN"),
        ({}, {"real": torch.zeros(2, 4), "real_label": torch.zeros(2)}, "exactly when num_classes is set"),
        ({"num_classes": 2}, {"real": torch.zeros(2, 4)}, "exactly when num_classes is set"),
        ({"num_classes": 2}, {"real_label": torch.zeros(2)}, "exactly when num_classes is set"),
        ({"num_classes": 2}, {"real": torch.zeros(2, 4), "real_label": torch.tensor([0, 2])}, "class index"),
        ({}, {"real": torch.zeros(2, 4, device="meta")}, "meta"),
    ],
)
def test_unsound_batches_are_refused_and_leave_the_state_alone(options, batch, message):
    metric = StreamingPRDC(nearest_k=2, **options)
    label = {"real_label": torch.zeros(9), "synthetic_label": torch.ones(9)} if options else {}
    metric.update(real=_points(9, 10), synthetic=_points(9, 11), **label)
    with pytest.raises(EvaluationError, match=message):
        metric.update(**batch)
    assert [len(part) for part in metric.real] == [9]


@pytest.mark.parametrize(
    "make",
    [
        lambda: StreamingPRDC(nearest_k=0),
        lambda: StreamingPRDC(num_classes=0),
        lambda: StreamingClassification(threshold=float("nan")),
        lambda: StreamingClassification(threshold=0.5, num_bins=0),
        lambda: StreamingCalibration(num_bins=(15, 0)),
    ],
)
def test_impossible_settings_are_refused_before_any_batch(make):
    with pytest.raises(EvaluationError):
        make()


def _rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    rows = slice(0, 13) if rank == 0 else slice(13, 30)  # unequal shares
    metrics = {"prdc": StreamingPRDC(), "frechet": StreamingFrechetDistance(), "mmd": StreamingMMD()}
    values = {}
    for metric in metrics.values():
        metric.update(real=_points(30, 1)[rows], synthetic=_points(30, 2)[rows])
        values.update({key: float(value) for key, value in metric.compute().items()})
    scores = StreamingClassification(threshold=0.4)
    probability, target = _scores(30, 0)
    scores.update(probability=probability[rows], target=target[rows])
    values.update({f"score/{key}": float(value) for key, value in scores.compute().items()})
    torch.save(values, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ddp
def test_two_processes_with_unequal_shares_give_the_value_of_one(tmp_path):
    mp.spawn(_rank_main, args=(str(tmp_path),), nprocs=2)
    expected = {**_expected("prdc"), **_expected("frechet"), **_expected("mmd")}
    expected.update({f"score/{key}": value for key, value in _expected("classification").items()})
    assert torch.load(tmp_path / "0.pt") == torch.load(tmp_path / "1.pt") == expected
