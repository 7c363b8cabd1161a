"""Autoencoders as codecs, their losses, and what a stored one must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DModel
from torch.distributions import Normal, kl_divergence

from fedsynth.data.image_codec import ImageCodec
from fedsynth.models.autoencoder import (
    AutoencoderCodec,
    autoencoder_losses,
    downsampling_factor,
    load_autoencoder,
    small_autoencoder,
)
from fedsynth.models.inputs import ModelInputError


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def autoencoder(**changes: Any) -> Any:
    torch.manual_seed(0)
    return small_autoencoder(**{"channels": (8, 8), **changes})


def images(num: int = 3, side: int = 8) -> torch.Tensor:
    return torch.rand(num, 1, side, side, generator=stream(1))


def test_it_is_an_image_codec_of_the_shapes_it_says() -> None:
    codec = AutoencoderCodec(autoencoder(latent_channels=3), (1, 8, 12))
    assert isinstance(codec, ImageCodec)
    assert codec.latent_shape == (3, 4, 6)
    latent = codec.encode(torch.rand(2, 1, 8, 12), stream())
    assert latent.shape == (2, 3, 4, 6)
    assert codec.decode(latent).shape == (2, 1, 8, 12)
    assert not codec.autoencoder.training
    assert not any(parameter.requires_grad for parameter in codec.autoencoder.parameters())


def test_latents_are_diffusers_own_mean_or_draws_around_it() -> None:
    model = autoencoder()
    law = model.encode(images()).latent_dist
    mean = AutoencoderCodec(model, (1, 8, 8), posterior="mean")
    torch.testing.assert_close(mean.encode(images()), law.mean)
    drawn = AutoencoderCodec(model, (1, 8, 8))
    noise = torch.randn(law.mean.shape, generator=stream(5))
    torch.testing.assert_close(drawn.encode(images(), stream(5)), law.mean + law.std * noise)
    assert torch.equal(drawn.encode(images(), stream(5)), drawn.encode(images(), stream(5)))
    with pytest.raises(ModelInputError, match="generator"):
        drawn.encode(images())


def test_signed_codecs_see_and_give_pixels_from_minus_one_to_one() -> None:
    model = autoencoder()
    signed = AutoencoderCodec(model, (1, 8, 8), "signed", "mean")
    unit = AutoencoderCodec(model, (1, 8, 8), "unit", "mean")
    latent = signed.encode(images())
    torch.testing.assert_close(latent, unit.encode(2 * images() - 1))
    torch.testing.assert_close(signed.decode(latent), (unit.decode(latent) + 1) / 2)


def test_grey_images_are_repeated_and_the_colors_averaged() -> None:
    model = autoencoder(image_channels=3)
    grey, color = (AutoencoderCodec(model, (channels, 8, 8), posterior="mean") for channels in (1, 3))
    latent = color.encode(images().expand(-1, 3, -1, -1))
    torch.testing.assert_close(grey.encode(images()), latent)
    torch.testing.assert_close(grey.decode(latent), color.decode(latent).mean(1, keepdim=True))


def test_losses_are_the_absolute_error_and_the_divergence_of_torch() -> None:
    model = autoencoder()
    law = model.encode(images()).latent_dist
    losses = autoencoder_losses(model, images(), stream(2))
    unit = Normal(torch.zeros_like(law.mean), 1.0)
    torch.testing.assert_close(losses.divergence, kl_divergence(Normal(law.mean, law.std), unit).mean())
    codec = AutoencoderCodec(model, (1, 8, 8))
    decoded = codec.decode(codec.encode(images(), stream(2)))
    torch.testing.assert_close(losses.reconstruction, (decoded - images()).abs().mean())


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((1, 9, 8), {}, "does not divide 9 x 8"),
        ((2, 8, 8), {}, "takes 1 channels, but the images have 2"),
        ((1, 8, 8), {"pixel_range": "byte"}, "pixel_range"),
        ((1, 8, 8), {"posterior": "mode"}, "posterior"),
    ],
)
def test_what_does_not_fit_is_refused(shape: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(ModelInputError, match=words):
        AutoencoderCodec(autoencoder(), shape, **options)


def test_images_and_latents_of_other_shapes_are_refused() -> None:
    codec = AutoencoderCodec(autoencoder(), (1, 8, 8))
    with pytest.raises(ModelInputError, match="image must have shape"):
        codec.encode(torch.rand(2, 1, 16, 16), stream())
    with pytest.raises(ModelInputError, match="floating"):
        codec.encode(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), stream())
    with pytest.raises(ModelInputError, match="latent must have shape"):
        codec.decode(torch.rand(2, 4, 8, 8))
    with pytest.raises(ModelInputError, match="channels"):
        small_autoencoder(channels=(8, 0))


def test_a_stored_autoencoder_is_the_one_that_was_saved(tmp_path: Path) -> None:
    model = autoencoder(channels=(8, 8, 16))
    model.save_pretrained(tmp_path / "model" / "vae")
    for loaded in (
        load_autoencoder(str(tmp_path / "model"), subfolder="vae"),
        load_autoencoder(str(tmp_path / "model" / "vae")),
    ):
        assert downsampling_factor(loaded) == 4
        for name, value in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    other = UNet2DModel(8, 1, 1, block_out_channels=(8,), norm_num_groups=4, attention_head_dim=4,
                        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",))  # fmt: skip
    other.save_pretrained(tmp_path / "unet")
    with pytest.raises(ModelInputError, match="UNet2DModel, not AutoencoderKL"):
        load_autoencoder(str(tmp_path / "unet"))
    autoencoder().save_pretrained(tmp_path / "vae")
    path = tmp_path / "vae" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layers_per_block": 2}))
    with pytest.raises(ModelInputError, match="another architecture"):
        load_autoencoder(str(tmp_path / "vae"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "layers_per_block": 1, "latent_channels": 8}))
    with pytest.raises(ModelInputError):
        load_autoencoder(str(tmp_path / "vae"))


def test_absent_weights_are_refused_and_never_fetched(tmp_path: Path) -> None:
    with pytest.raises(ModelInputError, match=r"nobody/nothing.*Downloading is not allowed"):
        load_autoencoder("nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelInputError, match="cannot be loaded"):
        load_autoencoder(str(tmp_path / "empty"))
    autoencoder().save_pretrained(tmp_path / "vae")
    for file in (tmp_path / "vae").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelInputError, match="cannot be loaded"):
        load_autoencoder(str(tmp_path / "vae"))
