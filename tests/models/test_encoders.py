"""Encoders, Eq. (11): shapes, the normalizations, and that the fast memory layout changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsynth.errors import FedSynthError
from fedsynth.models.encoders import ImageEncoder, SignalEncoder
from fedsynth.models.inputs import ModelInputError


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [(28, 28), (64, 64), (29, 41), (4, 4)])
@pytest.mark.parametrize("pooling", ["max", "average", "stride"])
def test_image_encoder_gives_one_embedding_an_image_of_any_size(size, pooling):
    assert ImageEncoder(pooling=pooling)(draw(3, 1, *size)).shape == (3, 128)


@pytest.mark.parametrize("pooling", ["max", "average", "stride"])
def test_resolution_is_halved_after_every_block_but_the_last(pooling):
    assert ImageEncoder(pooling=pooling).blocks(draw(2, 1, 28, 28)).shape == (2, 128, 7, 7)


@pytest.mark.parametrize("length", [256, 255, 1])
def test_signal_encoder_gives_one_embedding_a_window_of_any_length(length):
    assert SignalEncoder()(draw(2, 1, length)).shape == (2, 128)


def test_signal_length_is_halved_by_every_block():
    assert SignalEncoder().blocks(draw(2, 1, 256)).shape == (2, 128, 32)


def test_parameter_counts_equal_those_of_the_layers():
    norms, head = 2 * (32 + 64 + 128), 128 * 128 + 128 + 2 * 128
    image = 9 * (1 * 32 + 32 * 64 + 64 * 128) + norms + head
    signal = 7 * 1 * 32 + 5 * 32 * 64 + 3 * 64 * 128 + norms + head
    assert sum(p.numel() for p in ImageEncoder().parameters()) == image
    assert sum(p.numel() for p in SignalEncoder().parameters()) == signal


@pytest.mark.parametrize("encoder", [ImageEncoder(), SignalEncoder()])
def test_embeddings_leave_layer_norm_with_mean_zero_and_variance_one(encoder):
    x = draw(5, 1, 28, 28) if isinstance(encoder, ImageEncoder) else draw(5, 1, 256)
    embedding = encoder(x)
    torch.testing.assert_close(embedding.mean(1), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(embedding.var(1, correction=0), torch.ones(5), atol=1e-2, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_memory_layout_and_not_the_embedding(channels):
    encoder, image = ImageEncoder(in_channels=channels).eval(), draw(4, channels, 28, 28)
    plain = encoder.head(encoder.blocks(image).mean(dim=(2, 3)))
    torch.testing.assert_close(encoder(image), plain, atol=1e-5, rtol=1e-4)
    seen = []
    encoder.blocks[0].register_forward_hook(lambda _m, _i, out: seen.append(out))
    encoder(image)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert all(weight.is_contiguous() for weight in encoder.state_dict().values())


@pytest.mark.parametrize("make", [ImageEncoder, SignalEncoder])
def test_group_normalization_keeps_records_apart_and_passes_opacus_validation(make):
    from opacus.validators import ModuleValidator

    shape = (1, 28, 28) if make is ImageEncoder else (1, 256)
    encoder, x = make(normalization="group"), draw(4, *shape)
    assert ModuleValidator.validate(encoder, strict=False) == []
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in encoder.modules())
    torch.testing.assert_close(encoder(x)[:2], encoder(x[:2]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [ImageEncoder, SignalEncoder])
def test_batch_normalization_mixes_records_in_training(make):
    shape = (1, 28, 28) if make is ImageEncoder else (1, 256)
    encoder, x = make(), draw(4, *shape)
    assert not torch.allclose(encoder(x)[:2], encoder(x[:2]), atol=1e-4)


@pytest.mark.parametrize(
    ("encoder", "x", "said"),
    [
        (ImageEncoder(), draw(2, 28, 28), "shape"),
        (ImageEncoder(), draw(2, 3, 28, 28), "shape"),
        (ImageEncoder(), torch.zeros(2, 1, 28, 28, dtype=torch.uint8), "floating-point"),
        (ImageEncoder(), draw(2, 1, 3, 28), "at least 4 x 4"),
        (SignalEncoder(), draw(2, 256), "shape"),
        (SignalEncoder(), torch.zeros(2, 1, 256, dtype=torch.int64), "floating-point"),
    ],
)
def test_wrong_input_is_named_in_the_error(encoder, x, said):
    with pytest.raises(ModelInputError, match=said):
        encoder(x)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ImageEncoder(channels=()),
        lambda: ImageEncoder(channels=(32, 0)),
        lambda: ImageEncoder(pooling="median"),
        lambda: ImageEncoder(normalization="layer"),
        lambda: SignalEncoder(kernel_sizes=(7, 5)),
        lambda: SignalEncoder(kernel_sizes=(7, 5, 4)),
        lambda: SignalEncoder(stride=0),
    ],
)
def test_impossible_encoders_are_refused(build):
    with pytest.raises(ModelInputError):
        build()


def test_model_errors_are_both_ours_and_value_errors():
    assert issubclass(ModelInputError, FedSynthError)
    assert issubclass(ModelInputError, ValueError)
