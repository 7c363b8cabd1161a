"""Settings that cannot work are refused before anything runs, each under its full key."""

from __future__ import annotations

import pytest
from tiny_stages import OVERRIDES, TRAINER

from fedsynth.composition import compose_config, resolved
from fedsynth.errors import ConfigError, PrivateInputError
from fedsynth.pipeline.planner import plan_stages
from fedsynth.run_sources import planner_sources


def check(*words: str) -> set[str]:
    """The names of the planned stages, if the settings are accepted."""
    config = resolved(compose_config(["experiment=feddp_pald", *OVERRIDES, *words]))
    return {planned.name for planned in plan_stages(config["stages"], TRAINER, planner_sources({}))}


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("diffusion.num_sampling_steps=21", "synthesize.num_steps"),
        ("diffusion.time_embedding_dim=7", "latent_ddpm.time_embedding_dim"),
        ("diffusion.guidance_scale=.inf", "synthesize.guidance_scale"),
        ("model.backbone=resnet18", "pretrain_xray.backbone"),
        ("model.backbone='timm:'", "pretrain_xray.backbone"),
        ("stages.fusion_encoder.backbone=resnet18", "fusion_encoder.backbone"),
        ("model.image_channels=[]", "pretrain_xray.image_channels"),
        ("stages.fusion_encoder.signal_channels=[]", "fusion_encoder.signal_channels"),
        ("model.signal_kernels=[4,3]", "fusion_encoder.signal_kernels"),
        ("model.modalities=[]", "fusion_encoder.modalities"),
        ("model.modalities=[image,image]", "fusion_encoder.modalities"),
        ("model.modalities=[image,video]", "fusion_encoder.modalities"),
        ("federated.training=alone", "fusion_encoder.training"),
        ("federated.strategy.name=fedsum", "fusion_encoder.strategy.name"),
        ("privacy.epsilon=1.0e7", "release.epsilon"),
        ("privacy.clip_radius=.inf", "release.clip_radius"),
        ("stages.encode.inputs.encoder=pretrain_xray", "encode.inputs.encoder"),
        ("stages.encode.inputs.clients=fusion_encoder", "encode.inputs.clients"),
        ("stages.fusion_encoder.inputs.xray_encoder=clients", "fusion_encoder.inputs.xray_encoder"),
        ("stages.release.inputs.latents=clients", "release.inputs.latents"),
        ("stages.latent_ddpm.inputs.mixture=release", "latent_ddpm.inputs.mixture"),
        ("stages.synthesize.inputs.denoiser=mix", "synthesize.inputs.denoiser"),
        ("stages.tstr_real.inputs.train=release", "tstr_real.inputs.train"),
        ("stages.audit.inputs.release=mix", "audit.inputs.release"),
        ("stages.audit.inputs.synthetic=latent_ddpm", "audit.inputs.synthetic"),
        ("diffusion.num_synthetic_per_class=2", "audit.samples_per_class"),
        ("privacy.clip_radius=1e300", "release.clip_radius"),
        *(
            (f"privacy.moments.{word}", f"release.{word.partition('=')[0]}")
            for word in (
                "radius_low=1e-300",
                "radius_high=1e300",
                "radius_slack=1e300",
                "radius_slack=1e-300",
                "num_rounds=1000",
                "noise_edge=1e300",
                "num_bins=99999999999",
                "num_components=99999999999",
                "clip_factor=1e300",
                "clip_factor=1e-300",
            )
        ),
        ("privacy.encoder.clip_norm=1e300", "fusion_encoder.clip_norm"),
        ("privacy.encoder.clip_norm=1e-300", "fusion_encoder.clip_norm"),
    ],
)
def test_what_cannot_work_is_refused_under_its_key(word: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(word)
    assert str(caught.value).startswith(f"stages.{key} must ")
    assert caught.value.key == f"stages.{key}"


PAPER = "experiment=feddp_pald/paper"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["stages.contrast_both_image.candidate_arm=null"], "contrast_both_image.candidate_arm"),
        (["stages.contrast_diffusion_real.baseline_arm=both"], "contrast_diffusion_real.baseline_arm"),
        (
            ["stages.contrast_image_ecg.inputs.candidate=fusion_ecg_only"],
            "contrast_image_ecg.candidate_arm",
        ),
        (["model.modalities=[image]"], "temperature_encoder.arm"),
        (["stages.temperature_encoder.arm=null"], "temperature_encoder.arm"),
        (["stages.temperature_diffusion.arm=both"], "temperature_diffusion.arm"),
    ],
)  # fmt: skip
def test_an_arm_that_a_system_will_not_have_is_refused_before_it_is_trained(
    words: list[str], key: str
) -> None:
    assert "contrast_image_ecg" in check(PAPER)
    with pytest.raises(ConfigError, match=rf"stages\.{key} must be ") as caught:
        check(PAPER, *words)
    assert caught.value.key == f"stages.{key}"


@pytest.mark.parametrize("value", [".inf", ".nan", "-.inf", "0", "2"])
def test_an_impossible_share_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"stages\.release\.shares(\.radius)? must ") as caught:
        check(f"privacy.shares.radius={value}")
    assert caught.value.key == "stages.release.shares"


def test_dp_sgd_does_not_train_networks_that_normalize_over_the_batch() -> None:
    with pytest.raises(ConfigError, match="mechanism=dp_sgd needs backbone=conv, got timm:resnet18"):
        check("privacy=dp_sgd", "model.backbone=timm:resnet18")


@pytest.mark.parametrize("word", ["model=group_norm", "federated.training=centralized"])
def test_fedbn_needs_batch_normalization_on_clients(word: str) -> None:
    assert check("federated=fedbn")
    with pytest.raises(ConfigError, match="strategy must be fedavg unless") as caught:
        check("federated=fedbn", word)
    assert caught.value.key == "stages.fusion_encoder.strategy"


@pytest.mark.parametrize(
    "word",
    ["model.backbone=timm:resnet18", "diffusion.num_sampling_steps=20", "stages.audit.inputs.synthetic=mix"],
)
def test_what_can_work_is_planned(word: str) -> None:
    planned = check("stages.fusion_encoder.inputs.xray_encoder=null", word)
    assert {"fusion_encoder", "synthesize", "audit"} <= planned


def test_the_boundary_speaks_before_the_kind_of_an_input() -> None:
    with pytest.raises(PrivateInputError, match="which is private"):
        check("stages.latent_ddpm.inputs.mixture=encode")
