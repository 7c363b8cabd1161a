"""The noise predictor: conditioning, the null label, and the cheaper path for one shared timestep."""

from __future__ import annotations

import pytest
import torch

from fedsynth.models.denoiser import LatentDenoiser, sinusoidal_embedding
from fedsynth.models.inputs import ModelInputError


def untied_denoiser(**sizes: int) -> LatentDenoiser:
    """A denoiser whose last layer is not zero, so that its output depends on everything."""
    torch.manual_seed(0)
    denoiser = LatentDenoiser(**sizes)
    torch.nn.init.normal_(denoiser.output_layer[-1].weight)
    return denoiser


def rows(count: int = 6, dim: int = 64) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0))


def test_sinusoidal_embedding_has_unit_pairs_and_known_angles():
    embedding = sinusoidal_embedding(torch.tensor([0, 1, 500]), 8)
    cosines, sines = embedding.chunk(2, dim=1)
    torch.testing.assert_close(cosines**2 + sines**2, torch.ones(3, 4))
    torch.testing.assert_close(sines[1], torch.tensor([1.0, 1e-1, 1e-2, 1e-3]).sin())


def test_untrained_denoiser_predicts_no_noise():
    out = LatentDenoiser()(rows(), torch.arange(6), torch.zeros(6, dtype=torch.int64))
    assert torch.equal(out, torch.zeros(6, 64))


def test_prediction_depends_on_time_label_and_latent():
    denoiser, x = untied_denoiser(), rows()
    time, label = torch.full((6,), 10), torch.zeros(6, dtype=torch.int64)
    base = denoiser(x, time, label)
    assert not torch.allclose(base, denoiser(x, time + 400, label))
    assert not torch.allclose(base, denoiser(x, time, label + 1))
    assert not torch.allclose(base, denoiser(x, time, torch.full((6,), denoiser.null_label)))
    assert not torch.allclose(base, denoiser(x + 1, time, label))


def test_rows_do_not_influence_each_other():
    denoiser, x = untied_denoiser(), rows()
    time, label = torch.arange(6), torch.tensor([0, 1, 2, 0, 1, 2])
    whole = denoiser(x, time, label)
    torch.testing.assert_close(whole[2:4], denoiser(x[2:4], time[2:4], label[2:4]), atol=1e-5, rtol=1e-4)


def test_one_shared_timestep_equals_the_same_timestep_in_every_row():
    denoiser, x, label = untied_denoiser(), rows(), torch.tensor([0, 1, 2, 0, 1, 2])
    shared = denoiser(x, torch.tensor(77), label)
    torch.testing.assert_close(shared, denoiser(x, torch.full((6,), 77), label), atol=1e-5, rtol=1e-4)


def test_double_precision_is_kept():
    denoiser = untied_denoiser(dim=4, width=8).double()
    out = denoiser(rows(dim=4).double(), torch.arange(6), torch.zeros(6, dtype=torch.int64))
    assert out.dtype == torch.float64


def test_parameter_count_equals_that_of_the_layers():
    width, blocks = 256, 4
    square = width * width + width
    expected = (
        (128 * width + width)  # time
        + 3 * width  # classes and null
        + square  # condition, shared by the blocks
        + (64 * width + width)
        + blocks * (2 * width + 2 * square)
        + 2 * width
        + (width * 64 + 64)
    )
    assert sum(p.numel() for p in LatentDenoiser().parameters()) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(6, 5)}, "x must have shape"),
        ({"x": torch.zeros(6, 64, dtype=torch.int64)}, "floating-point"),
        ({"timestep": torch.zeros(3, dtype=torch.int64)}, "timestep must have shape"),
        ({"label": torch.zeros(3, dtype=torch.int64)}, "label must have shape"),
        ({"label": torch.zeros(6)}, "int64"),
        ({"label": torch.full((6,), 3)}, r"\[0, 2\]"),
        ({"label": torch.full((6,), -1)}, r"\[0, 2\]"),
    ],
)
def test_wrong_input_is_named_in_the_error(change, said):
    given = {"x": rows(), "timestep": torch.arange(6), "label": torch.zeros(6, dtype=torch.int64)} | change
    with pytest.raises(ModelInputError, match=said):
        LatentDenoiser()(**given)


@pytest.mark.parametrize(
    "sizes", [{"dim": 0}, {"num_blocks": 0}, {"time_embedding_dim": 7}, {"num_classes": 0}]
)
def test_impossible_denoisers_are_refused(sizes):
    with pytest.raises(ModelInputError):
        LatentDenoiser(**sizes)
