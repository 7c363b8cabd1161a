from __future__ import annotations

import pytest
import torch

from fedsynth.evaluation import EvaluationError, latent_summary


def test_gap_and_norms_of_hand_made_points():
    real = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    synthetic = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 2.0]])
    summary = latent_summary(real=real, synthetic=synthetic)
    # Means (1.5, 4.5) and (0, 1).
    assert summary == pytest.approx(((1.5**2 + 3.5**2) ** 0.5, 5.0, 1.0), abs=1e-12)


def test_identical_sets_have_no_gap():
    points = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    assert latent_summary(real=points, synthetic=points).mean_gap == 0.0


def test_empty_sets_are_refused():
    with pytest.raises(EvaluationError, match="at least 1 points"):
        latent_summary(real=torch.zeros(0, 2), synthetic=torch.zeros(3, 2))
