"""Training images, encoded and decoded again: the bound of what diffusion on the latents can show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_latent_images import codec_artifact, image_set, images_artifact, stage_settings
from tiny_stages import run_stage, stage_context, values

from fedsynth.errors import DataError
from fedsynth.models.autoencoder import small_autoencoder
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_codec.stored import open_codec
from fedsynth.stages.image_set import read_image_set


@pytest.fixture
def images(tmp_path: Path) -> Artifact:
    return images_artifact(tmp_path)


def reconstruct(folder: Path, images: Artifact, codec: Artifact) -> Artifact:
    settings = stage_settings("vae_reconstruction")
    return run_stage(
        "vae_reconstruction", settings, {"images": images, "codec": codec}, stage_context(folder)
    )


def test_an_exact_codec_gives_the_images_back_with_labels_and_sources(
    tmp_path: Path, images: Artifact
) -> None:
    made = reconstruct(tmp_path / "rec", images, codec_artifact(tmp_path, images))
    read, real = read_image_set(made, "train"), image_set()
    assert torch.equal(read.image, real.image)
    assert torch.equal(read.label, real.label)
    assert read.source is not None
    assert read.source.tolist() == list(range(40))
    assert read.patient is None  # made images are nobody's
    assert (read.classes, read.task) == (real.classes, real.task)
    assert values(made)[("vae_reconstruction", "train/reconstruction_error", 42)] == 0.0
    with pytest.raises(DataError, match="holds no val images"):
        read_image_set(made, "val")


def test_an_autoencoder_gives_the_decoded_latents_that_diffusion_trains_on(
    tmp_path: Path, images: Artifact
) -> None:
    torch.manual_seed(0)
    small_autoencoder(3, 4, (8, 8)).save_pretrained(tmp_path / "stored" / "vae")
    codec = codec_artifact(tmp_path, images, f"codec.weights={tmp_path / 'stored'}", codec="sd_vae")
    made = reconstruct(tmp_path / "rec", images, codec)
    latent = codec.load("latents.safetensors")["train.latent"]
    wanted = (open_codec(codec).decode(latent) * 255).round().clamp(0, 255)
    read = read_image_set(made, "train")
    assert torch.equal(read.image.float(), wanted)
    error = (read.image.float() - image_set().image.float()).abs().mean() / 255
    assert values(made)[("vae_reconstruction", "train/reconstruction_error", 42)] == pytest.approx(
        float(error), rel=1e-5
    )


def test_a_codec_of_other_images_is_refused(tmp_path: Path, images: Artifact) -> None:
    codec = codec_artifact(tmp_path, images)
    with pytest.raises(DataError, match=r"40 training latents .* 30 training images"):
        reconstruct(tmp_path / "rec", images_artifact(tmp_path / "other", 30), codec)
