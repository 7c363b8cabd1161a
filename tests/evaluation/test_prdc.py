"""Precision, recall, density, coverage: laws of the measures, and the reference package."""

from __future__ import annotations

import numpy as np
import prdc as reference_package
import pytest
import torch

from fedsynth.evaluation import EvaluationError, prdc


def _points(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference_package_without_ties(k, dtype, capsys):
    real, synthetic = _points(234, 6, 0).to(dtype), (_points(300, 6, 1) * 1.2 + 0.3).to(dtype)
    ours = prdc(real=real, synthetic=synthetic, nearest_k=k)
    theirs = reference_package.compute_prdc(real.double().numpy(), synthetic.double().numpy(), nearest_k=k)
    assert ours._asdict() == pytest.approx(theirs, abs=1e-12)


def test_identical_sets_are_perfect_and_density_counts_the_point_itself():
    points = _points(200, 8, 2)
    result = prdc(real=points, synthetic=points.clone(), nearest_k=5)
    assert (result.precision, result.recall, result.coverage) == (1.0, 1.0, 1.0)
    assert result.density == pytest.approx(6 / 5, abs=1e-12)


def test_duplicated_points_keep_full_coverage():
    # Ten copies of each point: every ball has radius 0, which an open ball would leave empty.
    points = _points(10, 4, 3).repeat(10, 1)
    assert prdc(real=points, synthetic=points.clone(), nearest_k=5).coverage == 1.0


def test_swapping_the_sets_swaps_precision_and_recall():
    real, synthetic = _points(150, 3, 4), _points(180, 3, 5, shift=0.5) * 0.7
    forward, backward = prdc(real=real, synthetic=synthetic), prdc(real=synthetic, synthetic=real)
    assert (forward.precision, forward.recall) == (backward.recall, backward.precision)


def test_far_apart_sets_score_zero():
    assert prdc(real=_points(50, 3, 6), synthetic=_points(50, 3, 7, shift=1e3)) == (0.0, 0.0, 0.0, 0.0)


def test_collapsed_synthetic_points_are_precise_but_not_diverse():
    real = _points(400, 2, 8)
    result = prdc(real=real, synthetic=_points(400, 2, 9) * 0.01)
    assert result.precision == 1.0
    assert result.recall < 0.05


def test_is_unchanged_by_rotation_shift_and_scale():
    real, synthetic = _points(120, 5, 10), _points(130, 5, 11, shift=0.2)
    rotation = torch.linalg.qr(_points(5, 5, 12)).Q
    moved = prdc(real=real @ rotation * 3 + 7, synthetic=synthetic @ rotation * 3 + 7)
    assert moved == pytest.approx(prdc(real=real, synthetic=synthetic), abs=1e-12)


def test_accepts_numpy_arrays():
    real, synthetic = _points(40, 3, 13), _points(40, 3, 14)
    assert prdc(real=real.numpy(), synthetic=synthetic.numpy()) == prdc(real=real, synthetic=synthetic)


@pytest.mark.parametrize(
    ("real", "k", "message"),
    [
        (np.zeros((5, 2)), 5, "at least 6 points"),
        (np.zeros((9, 2)), 0, "nearest_k must be an integer >= 1"),
        (np.zeros((9, 3)), 5, "same number of features"),
    ],
)
def test_impossible_requests_are_refused(real, k, message):
    with pytest.raises(EvaluationError, match=message):
        prdc(real=real, synthetic=np.zeros((9, 2)), nearest_k=k)


def test_arguments_are_keyword_only():
    with pytest.raises(TypeError):
        prdc(np.zeros((9, 2)), np.zeros((9, 2)))


@pytest.mark.parametrize(("intrinsic", "precise"), [(2, False), (64, True)])
def test_diagonal_sampling_misses_a_low_dimensional_manifold(intrinsic, precise):
    # Real latents on a q-dimensional manifold in 64 dimensions; synthetic ones match its means and sds.
    generator = torch.Generator().manual_seed(15)
    basis = torch.randn(intrinsic, 64, generator=generator) * (64 / intrinsic) ** 0.5 / 8**0.5
    real = torch.randn(390, intrinsic, generator=generator) @ basis
    real = real + 0.05 * torch.randn(390, 64, generator=generator)
    synthetic = torch.randn(800, 64, generator=generator) * real.std(dim=0) + real.mean(dim=0)
    result = prdc(real=real, synthetic=synthetic)
    assert (result.precision > 0.1) is precise
    assert (result.coverage > 0.3) is precise
    assert result.recall > 0.3


@pytest.mark.parametrize("nearest_k", [0, 1.5, "5", None, True])
def test_a_number_of_neighbors_that_is_no_count_is_refused(nearest_k):
    with pytest.raises(EvaluationError, match="nearest_k must be an integer >= 1, got"):
        prdc(real=_points(9, 2, 0), synthetic=_points(9, 2, 1), nearest_k=nearest_k)


@pytest.mark.parametrize("k", [1, 3])
def test_precision_and_recall_equal_torch_fidelity(k):
    from torch_fidelity.metric_prc import prc_features_to_metric

    real, synthetic = _points(210, 4, 16), _points(190, 4, 17) * 0.8 + 0.5
    theirs = prc_features_to_metric(
        synthetic, real, prc_neighborhood=k, prc_batch_size=64, save_cpu_ram=False, verbose=False
    )
    ours = prdc(real=real, synthetic=synthetic, nearest_k=k)
    assert ours.precision == pytest.approx(theirs["precision"], abs=1e-6)  # their mean is a float32
    assert ours.recall == pytest.approx(theirs["recall"], abs=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equals_direct_distances_whatever_dtype_offset_and_ties(dtype, offset):
    generator = torch.Generator().manual_seed(18)
    real = (torch.randint(0, 4, (90, 3), generator=generator).double() + offset).to(dtype)
    synthetic = (torch.randint(0, 4, (70, 3), generator=generator).double() + offset).to(dtype)

    def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.double()[:, None] - b.double()[None]).square().sum(-1).sqrt()

    real_radius = distances(real, real).sort(dim=1).values[:, 5]
    synthetic_radius = distances(synthetic, synthetic).sort(dim=1).values[:, 5]
    across = distances(synthetic, real)
    expected = (
        float((across <= real_radius).any(dim=1).double().mean()),
        float((across <= synthetic_radius[:, None]).any(dim=0).double().mean()),
        float((across <= real_radius).sum()) / (5 * 70),
        float((across <= real_radius).any(dim=0).double().mean()),
    )
    assert prdc(real=real, synthetic=synthetic) == pytest.approx(expected, abs=1e-12)


def test_constant_sets_are_in_every_ball():
    assert prdc(real=torch.ones(8, 2), synthetic=torch.ones(9, 2), nearest_k=2) == (1.0, 1.0, 4.0, 1.0)
