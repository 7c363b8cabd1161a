"""Codecs as artifacts: what is opened is what was stored, latents are standardized, kills lose nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_latent_images import codec_artifact, image_set, images_artifact, stage_settings
from tiny_stages import equal, values

from fedsynth.data.image_codec import grey_levels, unit_images
from fedsynth.errors import ConfigError, DataError
from fedsynth.models.autoencoder import AutoencoderCodec, small_autoencoder
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_codec import encoding
from fedsynth.stages.image_codec.encoding import encode_pieces
from fedsynth.stages.image_codec.spec import STAGE
from fedsynth.stages.image_codec.stored import open_codec

SMALL = ("codec.channels=[8,8]", "codec.epochs=2", "codec.batch_size=16")


@pytest.fixture
def images(tmp_path: Path) -> Artifact:
    return images_artifact(tmp_path)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A stored autoencoder with three input channels."""
    torch.manual_seed(0)
    small_autoencoder(3, 4, (8, 8)).save_pretrained(tmp_path / "stored" / "vae")
    return tmp_path / "stored"


def stored_words(weights: Path, *more: str) -> tuple[str, ...]:
    return (f"codec.weights={weights}", *more)


@pytest.mark.parametrize("codec", ["identity", "unshuffle"])
def test_exact_codecs_lose_nothing(tmp_path: Path, images: Artifact, codec: str) -> None:
    made = codec_artifact(tmp_path, images, codec=codec)
    opened, latent = open_codec(made), made.load("latents.safetensors")["train.latent"]
    assert torch.equal(grey_levels(opened.decode(latent)), image_set().image)
    torch.testing.assert_close(opened.encode(unit_images(image_set().image)), latent)
    assert values(made)[("image_codec", "val/reconstruction_error", 42)] == 0.0
    assert made.manifest["notes"]["latent_shape"] == list(opened.latent_shape) == list(latent.shape[1:])


def test_training_latents_have_mean_zero_and_the_deviation_of_the_diffusion_model(
    tmp_path: Path, images: Artifact, weights: Path
) -> None:
    whole = codec_artifact(tmp_path / "a", images).load("latents.safetensors")["train.latent"]
    torch.testing.assert_close(whole.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(whole.std(correction=0), torch.tensor(0.5))
    made = codec_artifact(tmp_path / "b", images, *stored_words(weights), codec="sd_vae")
    each = made.load("latents.safetensors")["train.latent"].movedim(1, 0).flatten(1)
    torch.testing.assert_close(each.mean(1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(each.std(1, correction=0), torch.full((4,), 0.5))


def test_validation_latents_are_standardized_by_the_training_images(tmp_path: Path, images: Artifact) -> None:
    made = codec_artifact(tmp_path, images)
    opened, latent = open_codec(made), made.load("latents.safetensors")["val.latent"]
    torch.testing.assert_close(opened.encode(unit_images(image_set(12, 1).image)), latent)


def test_a_stored_autoencoder_is_opened_without_its_file(
    tmp_path: Path, images: Artifact, weights: Path
) -> None:
    made = codec_artifact(tmp_path, images, *stored_words(weights), codec="sd_vae")
    for file in weights.rglob("*"):
        if file.is_file():
            file.unlink()
    opened = open_codec(made)
    assert isinstance(opened.codec, AutoencoderCodec)
    assert (opened.codec.pixel_range, opened.codec.posterior) == ("unit", "sample")
    latent = made.load("latents.safetensors")["train.latent"]
    assert opened.decode(latent).shape == (40, 1, 8, 8)
    # The stored latents are draws: their distance from new ones is that of two draws, not zero.
    again = opened.encode(unit_images(image_set().image), torch.Generator().manual_seed(0))
    assert not torch.equal(again, latent)
    digest = made.manifest["notes"]["weights_sha256"]
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        codec_artifact(tmp_path / "again", images, *stored_words(weights), codec="sd_vae")
    assert caught.value.key == "stages.codec.codec.weights"
    assert len(digest) == 64


def test_weights_can_be_pinned(tmp_path: Path, images: Artifact, weights: Path) -> None:
    made = codec_artifact(tmp_path / "a", images, *stored_words(weights), codec="sd_vae")
    digest = made.manifest["notes"]["weights_sha256"]
    codec_artifact(tmp_path / "b", images, *stored_words(weights, f"codec.sha256={digest}"), codec="sd_vae")
    with pytest.raises(ConfigError, match=f"{digest}, wanted {'0' * 64}"):
        codec_artifact(
            tmp_path / "c", images, *stored_words(weights, f"codec.sha256='{'0' * 64}'"), codec="sd_vae"
        )


def test_the_small_autoencoder_learns_to_reconstruct(tmp_path: Path, images: Artifact) -> None:
    errors = {}
    for epochs in (1, 20):
        made = codec_artifact(
            tmp_path / str(epochs), images, *SMALL, f"codec.epochs={epochs}", codec="small_autoencoder"
        )
        errors[epochs] = values(made)[("image_codec", "val/reconstruction_error", 42)]
        assert len(json.loads((made.path / "history.json").read_text())) == epochs
    # The grey value that is best for all pixels errs by about .2; one epoch is three steps.
    assert errors[20] < 0.12 < errors[1]
    opened = open_codec(made)
    latent = made.load("latents.safetensors")["train.latent"]
    error = (opened.decode(latent).clamp(0, 1) - unit_images(image_set().image)).abs().mean()
    assert float(error) == pytest.approx(errors[20], abs=0.03)


class Killed(Exception):
    pass


def test_pieces_that_are_encoded_survive_a_kill(
    tmp_path: Path, images: Artifact, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding.encode_pieces, "__kwdefaults__", {"piece_size": 16})
    whole = codec_artifact(tmp_path / "whole", images, *stored_words(weights), codec="sd_vae")
    encoded: list[int] = []
    encode = AutoencoderCodec.encode

    def killed(self: AutoencoderCodec, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if len(encoded) == 2:
            raise Killed
        encoded.append(len(image))
        return encode(self, image, generator)

    monkeypatch.setattr(AutoencoderCodec, "encode", killed)
    with pytest.raises(Killed):
        codec_artifact(tmp_path / "resumed", images, *stored_words(weights), codec="sd_vae")
    encoded.clear()
    monkeypatch.setattr(
        AutoencoderCodec, "encode", lambda self, image, draws: encoded.append(len(image)) or encode(self, image, draws)
    )  # fmt: skip
    resumed = codec_artifact(tmp_path / "resumed", images, *stored_words(weights), codec="sd_vae")
    assert encoded == [8, 12]  # the last piece of the training images, and the validation images
    for name in ("codec.safetensors", "latents.safetensors"):
        assert equal(whole.load(name), resumed.load(name))


@pytest.mark.parametrize(("side", "channels"), [(8, 4), (6, 3)])
def test_batches_that_do_not_fit_are_halved_without_changing_a_latent(
    monkeypatch: pytest.MonkeyPatch, side: int, channels: int
) -> None:
    """Of latents of 64 values, and of 27, which are no multiple of the block that torch draws at a time."""
    torch.manual_seed(0)
    codec = AutoencoderCodec(small_autoencoder(1, channels, (8, 8)), (1, side, side))
    options = {"seed": 0, "key": "batch_size", "device": torch.device("cpu"), "folder": None}
    image = image_set(side=side).image
    (whole,) = encode_pieces(codec, image, batch_size=40, **options)
    encode = AutoencoderCodec.encode

    def limited(self: AutoencoderCodec, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if len(image) > 11:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return encode(self, image, generator)

    monkeypatch.setattr(AutoencoderCodec, "encode", limited)
    (parts,) = encode_pieces(codec, image, batch_size=40, **options)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize(
    ("codec", "words", "message"),
    [
        ("unshuffle", ("codec.factor=3",), "divide height and width, got 3 for 8 x 8"),
        ("small_autoencoder", ("codec.channels=[4,4,4,4,4]",), "divides sides by 16"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_before_training(
    tmp_path: Path, images: Artifact, codec: str, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        codec_artifact(tmp_path, images, *words, codec=codec)
    assert caught.value.key == "stages.codec.codec"


@pytest.mark.parametrize(
    ("codec", "words", "factor", "key"),
    [
        ("identity", (), 1, ""),
        ("unshuffle", (), 2, "codec.factor"),
        ("unshuffle", ("codec.factor=7",), 7, "codec.factor"),
        ("small_autoencoder", (), 2, "codec.channels"),
        ("small_autoencoder", ("codec.channels=[4,4,4]",), 4, "codec.channels"),
    ],
)
def test_the_plan_refuses_just_the_sizes_that_the_codec_itself_refuses(
    codec: str, words: tuple[str, ...], factor: int, key: str
) -> None:
    settings = stage_settings("image_codec", *words, codec=codec)
    for size in range(8, 33):
        suppliers = {"images": SimpleNamespace(name="images", settings=SimpleNamespace(image_size=size))}
        if size % factor == 0:
            STAGE.check_suppliers(settings, suppliers, "stages.codec")
            continue
        with pytest.raises(ConfigError, match=rf"data\.image_size .*codec\.{key.split('.')[1]}") as caught:
            STAGE.check_suppliers(settings, suppliers, "stages.codec")
        assert caught.value.key == f"stages.codec.{key}"


def test_of_stored_weights_the_plan_says_nothing(weights: Path) -> None:
    settings = stage_settings("image_codec", *stored_words(weights), codec="sd_vae")
    suppliers = {"images": SimpleNamespace(name="images", settings=SimpleNamespace(image_size=29))}
    STAGE.check_suppliers(settings, suppliers, "stages.codec")


def test_images_that_never_vary_are_refused(tmp_path: Path, images: Artifact) -> None:
    path = images.path / "images.safetensors"
    from safetensors.torch import load_file, save_file

    save_file({name: torch.zeros_like(value) for name, value in load_file(path).items()}, path)
    with pytest.raises(DataError, match="never varies"):
        codec_artifact(tmp_path, images)


@pytest.mark.parametrize(
    ("words", "codec", "key"),
    [
        (("codec.name=jpeg",), "unshuffle", "codec.name"),
        (("codec.name=[]",), "unshuffle", "codec.name"),
        (("codec.name={}",), "unshuffle", "codec.name"),
        (("codec.sha256=abc",), "sd_vae", "codec.sha256"),
        (("codec.learning_rate=11",), "small_autoencoder", "codec.learning_rate"),
        (("codec.factor=0",), "unshuffle", "codec.factor"),
        (("+codec.factor=2",), "identity", "codec.factor"),
        (("codec.channels=[]",), "small_autoencoder", "codec.channels"),
        (("codec.posterior=mode",), "sd_vae", "codec.posterior"),
        (("codec.weights=/nowhere",), "sd_vae", "codec.weights"),
        (("codec.weights=nothing",), "sd_vae", "codec.weights"),
    ],
)
def test_impossible_options_are_refused_under_their_key(words: tuple[str, ...], codec: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.image_codec\.{key}"):
        stage_settings("image_codec", *words, codec=codec)
