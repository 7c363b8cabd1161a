"""The configs of the denoiser compose, say the paper's arithmetic, and refuse what cannot work before anything runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_latent_images import composed, stage_settings

from fedsynth.composition import compose_config, resolved
from fedsynth.diffusion.training_schedule import inverse_sqrt_rate, iterations_of
from fedsynth.errors import ConfigError
from fedsynth.models.image_denoiser import ImageDenoiser
from fedsynth.pipeline.stage import find_stage
from fedsynth.stages.diadm.spec import STAGE
from fedsynth.stages.diadm.trained import NETWORK

PAPER = "edm2_xs"


@pytest.mark.parametrize(("words", "iterations"), [((), 40_960), (("image_network.kimg=100663",), 49_152)])
def test_the_durations_of_the_paper_are_its_iterations(words: tuple[str, ...], iterations: int) -> None:
    settings = stage_settings("diadm", *words, network=PAPER)
    assert settings.batch_size == 2048
    assert iterations_of(settings.kimg, settings.batch_size) == iterations


def test_every_network_of_the_paper_leaves_its_snapshot_after_8388_kimg() -> None:
    """Of training lengths that differ, so no fraction serves all."""
    stages = resolved(compose_config(["experiment=pso_secure/paper"]))["stages"]
    lengths = {
        name: iterations_of(stage["kimg"], stage["batch_size"])
        for name, stage in stages.items()
        if stage["stage"] == "diadm"
    }
    assert set(lengths.values()) == {40_960, 49_152}
    snapshots = {name: round(lengths[name] * stages[name]["earlier_fraction"]) for name in lengths}
    assert set(snapshots.values()) == {iterations_of(8_388, 2048)} == {4_096}


def test_the_rate_of_the_paper_ramps_over_ten_million_images_and_falls_after_17000_iterations() -> None:
    settings = stage_settings("diadm", network=PAPER)
    assert settings.decay_kimg * 1000 == 17_000 * 2048
    rates = [
        inverse_sqrt_rate(images, reference=settings.learning_rate, decay=1000 * settings.decay_kimg,
                          ramp=1000 * settings.ramp_kimg)
        for images in (0, 5_000_000, 10_000_000, 17_000 * 2048, 4 * 17_000 * 2048)
    ]  # fmt: skip
    assert rates == pytest.approx([0, 1.5e-4, 3e-4, 3e-4, 1.5e-4])


def test_a_step_of_the_paper_is_256_images_on_each_of_four_gpus_twice() -> None:
    section = composed("diadm", network=PAPER)
    accumulated = section["trainer"]["accumulate_grad_batches"]
    assert section["batch_size"] == 256 * 4 * accumulated
    assert section["trainer"]["precision"] == "32-true"


@pytest.mark.parametrize(("network", "parameters"), [(PAPER, 125), ("cpu", 0.9)])
def test_the_networks_have_the_sizes_they_say(network: str, parameters: float) -> None:
    settings = stage_settings("diadm", network=network)
    with torch.device("meta"):
        model = ImageDenoiser(condition_dim=1280, **{name: getattr(settings, name) for name in NETWORK})
    assert sum(one.numel() for one in model.parameters()) / 1e6 == pytest.approx(parameters, rel=0.03)


def test_the_cpu_training_has_1000_steps() -> None:
    settings = stage_settings("diadm")
    assert iterations_of(settings.kimg, settings.batch_size) == 1000


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("stages.diadm.condition=text", "condition"),
        ("image_network.style=vit", "style"),
        ("image_network.multipliers=[]", "multipliers"),
        ("image_network.attention_levels=[2]", "attention_levels"),
        ("image_network.ema_widths=[]", "ema_widths"),
        ("image_network.ema_widths=[0.1,0.1]", "ema_widths"),
        ("image_network.ema_widths=[0.1,0.3]", "ema_widths"),
        ("image_network.ema_width=0.2", "ema_width"),
        ("image_network.earlier_fraction=0", "earlier_fraction"),
        ("image_network.adam_betas=[0.9]", "adam_betas"),
        ("image_network.kimg=0", "kimg"),
        ("image_network.learning_rate=11", "learning_rate"),
        ("image_network.noise_mean=-11", "noise_mean"),
        ("image_network.noise_mean=1e9", "noise_mean"),
        ("image_network.noise_std=11", "noise_std"),
        ("image_network.validation_sigmas=[]", "validation_sigmas"),
        ("image_network.init_weights=/nowhere.safetensors", "init_weights"),
        ("stages.diadm.condition=none", "condition_dropout"),
    ],
)
def test_settings_that_cannot_work_are_refused_under_their_key(word: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.diadm\.{key}"):
        stage_settings("diadm", word)


def check(condition: str, **suppliers: Any) -> None:
    settings = stage_settings(
        "diadm", f"stages.diadm.condition={condition}", "image_network.condition_dropout=0"
    )
    find_stage("diadm", "diadm").check_suppliers(settings, suppliers, "stages.diadm")


def planned(name: str, **inputs: str) -> SimpleNamespace:
    """Of images of 28 pixels, and of the codec that halves them."""
    settings = SimpleNamespace(image_size=28, options=lambda: SimpleNamespace(downsampling=2))
    return SimpleNamespace(name=name, inputs=inputs, settings=settings)


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("factor", [1, 2, None])
def test_latents_must_be_halved_without_rest_where_their_size_is_known(
    levels: int, factor: int | None
) -> None:
    multipliers = "[" + ",".join(["1"] * levels) + "]"
    settings = stage_settings(
        "diadm", "stages.diadm.condition=none", "image_network.condition_dropout=0",
        f"image_network.multipliers={multipliers}", "image_network.attention_levels=[0]",
    )  # fmt: skip
    for size in (28, 30, 32, 34):
        images, codec = planned("images"), planned("codec", images="images")
        images.settings.image_size = size
        codec.settings.options = lambda: SimpleNamespace(downsampling=factor)
        suppliers = {"images": images, "codec": codec}
        if factor is None or size % (factor * 2 ** (levels - 1)) == 0:
            STAGE.check_suppliers(settings, suppliers, "stages.diadm")
            continue
        with pytest.raises(ConfigError, match=rf"data\.image_size={size}.*codec\.factor") as caught:
            STAGE.check_suppliers(settings, suppliers, "stages.diadm")
        assert caught.value.key == "stages.diadm.multipliers"


def test_inputs_must_be_made_of_the_same_images() -> None:
    images, codec = planned("images_a"), planned("codec_a", images="images_a")
    features = planned("features_a", images="images_a")
    check("feature", images=images, codec=codec, features=features)
    check("none", images=images, codec=codec)
    with pytest.raises(ConfigError, match=r"stages\.diadm\.inputs\.codec .*'images_b'"):
        check("none", images=images, codec=planned("codec_b", images="images_b"))
    with pytest.raises(ConfigError, match=r"stages\.diadm\.inputs\.features .*'images_b'"):
        check("feature", images=images, codec=codec, features=planned("features_b", images="images_b"))
    reconstruction = find_stage("vae_reconstruction", "vae_reconstruction")
    settings = stage_settings("vae_reconstruction")
    with pytest.raises(ConfigError, match=r"inputs\.codec"):
        reconstruction.check_suppliers(
            settings, {"images": images, "codec": planned("codec_b", images="images_b")}, "stages.rec"
        )


def test_features_are_given_if_and_only_if_they_are_the_condition() -> None:
    images, codec = planned("images"), planned("codec", images="images")
    features = planned("features", images="images")
    with pytest.raises(ConfigError, match=r"inputs\.features is missing"):
        check("feature", images=images, codec=codec)
    with pytest.raises(ConfigError, match=r"inputs\.features=null"):
        check("class", images=images, codec=codec, features=features)
