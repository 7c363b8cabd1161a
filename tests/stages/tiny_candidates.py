"""Artifacts for the stages that sample and select: small random networks, made by hand in an instant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_stages import artifact
from torch import Tensor, nn

from fedsynth.data.image_codec import LatentStatistics, PixelUnshuffle, grey_levels
from fedsynth.models.image_denoiser import ImageDenoiser
from fedsynth.models.siamese import SiameseNetwork
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.diadm.trained import DENOISER_FILE, EARLIER_FILE
from fedsynth.stages.image_codec.stored import CODEC_FILE, codec_notes, open_codec
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet
from fedsynth.stages.reidentifier.trained import open_reidentifier
from fedsynth.stages.select_images.spec import SelectImagesSettings
from fedsynth.stages.synthesize_images.spec import SynthesizeImagesSettings
from fedsynth.stages.tstr_densenet.network import build_network
from fedsynth.stages.tstr_densenet.trained import CLASSIFIER

SIDE, DIM = 8, 6
CLASSES = ("normal", "bacteria", "virus")
NUM_TRAIN = 12
WIDTHS = (0.0, 0.1)


def sampler_settings(**changes: Any) -> SynthesizeImagesSettings:
    """Few steps, few candidates, three shards of four sources."""
    defaults: dict[str, Any] = {
        "seed": 42, "num_sources": None, "num_candidates": 5, "solver": "dpmpp_2m", "num_steps": 3, "sigma_min": 0.06,
        "sigma_max": 80.0, "rho": 7.0, "guidance": "unconditional", "guidance_weight": 1.0, "guidance_interval": None,
        "ema_width": None, "shard_size": 4, "batch_size": 256,
    }  # fmt: skip
    return SynthesizeImagesSettings(**{**defaults, **changes})


def selection_settings(**changes: Any) -> SelectImagesSettings:
    """A hard mask at 0.5 with the paper's drop."""
    defaults: dict[str, Any] = {
        "seed": 42, "arm": "made", "filter": "mask", "ranking": "predicates", "scope": "source",
        "threshold_rule": "fixed", "threshold_value": 0.5, "threshold_by": "all", "train_share": 0.1,
        "guidance_weights": [1.0, 0.5], "guidance_step": None, "guidance_floor": None, "when_all_flagged": "drop",
        "max_per_source": 3, "images_per_source": 1, "labels": "hard", "batch_norm": "eval",
        "release": True, "num_shown": 2,
        "batch_size": 64, "sampling_batch_size": 64,
    }  # fmt: skip
    return SelectImagesSettings(**{**defaults, **changes})


def tiny_images(task: str = "multiclass") -> dict[str, ImageSet]:
    """Smooth patterns of three classes (or two labels and their combinations), 12 to train and 9 held out."""
    stream = torch.Generator().manual_seed(0)
    sets = {}
    for number, (split, num) in enumerate((("train", NUM_TRAIN), ("val", 9))):
        coarse = torch.rand(num, 1, 3, 3, generator=stream)
        image = nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
        label = torch.arange(num) % len(CLASSES)
        if task == "multilabel":
            label = torch.stack([label != 1, label > 0], 1).to(torch.uint8)
        names = CLASSES if task == "multiclass" else CLASSES[1:]
        patient = torch.arange(num) + 100 * number
        sets[split] = ImageSet((image * 255).round().to(torch.uint8), label, names, task, patient)
    return sets


def tiny_inputs(
    folder: Path, *, condition: str = "feature", task: str = "multiclass", condition_dropout: float = 0.15
) -> dict[str, Artifact]:
    """Everything that sampling and selecting read but the candidates themselves."""
    sets = tiny_images(task)
    train = sets["train"]
    stream = torch.Generator().manual_seed(3)
    feature = torch.randn(NUM_TRAIN, DIM, generator=stream)
    files = sets["train"].to_tensors() | sets["val"].to_tensors("val")
    inputs = {
        "images": artifact(folder / "images" / "output", {IMAGES_FILE: files}, notes=train.describe()),
        "codec": _codec(folder / "codec" / "output", train),
        "denoiser": _denoiser(
            folder / "denoiser" / "output", condition, train.num_classes, condition_dropout
        ),
        "reidentifier": _reidentifier(folder / "reidentifier" / "output", train),
        "classifier": _classifier(folder / "classifier" / "output", train),
    }
    if condition == "feature":
        tensors = {"features.safetensors": {"train.feature": feature}}
        inputs["features"] = artifact(folder / "features" / "output", tensors)
    return inputs


def _randomized(network: nn.Module, seed: int) -> nn.Module:
    """Weights without the zeros that a network starts from."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.2, generator=stream)
    return network.eval()


def _codec(folder: Path, train: ImageSet) -> Artifact:
    codec = PixelUnshuffle((1, SIDE, SIDE), 2)
    statistics = LatentStatistics.fit(codec.encode(train.image.float() / 255), per_channel=False)
    notes = codec_notes(codec) | {"sigma_data": 0.5}
    return artifact(folder, {CODEC_FILE: statistics.to_tensors()}, notes=notes)


def _denoiser(folder: Path, condition: str, num_classes: int, condition_dropout: float) -> Artifact:
    dim = {"none": 0, "class": num_classes, "feature": DIM}[condition]
    shape = {
        "latent_channels": 4,
        "condition_dim": dim,
        "channels": 8,
        "multipliers": [1],
        "attention_levels": [0],
    }
    states: dict[str, dict[str, Tensor]] = {DENOISER_FILE: {}, EARLIER_FILE: {}}
    for number, file in enumerate(states):
        for width in WIDTHS:
            state = _randomized(ImageDenoiser(**shape), 10 * number + round(10 * width)).state_dict()
            states[file] |= {f"{width:g}/network.{name}": value for name, value in state.items()}
    notes = {"condition": condition, "condition_dim": dim, "sigma_data": 0.5, "network": shape}
    made = artifact(folder, states, notes=notes)
    made.manifest["settings"] = {
        "ema_width": 0.1, "condition": condition, "condition_dropout": condition_dropout,
    }  # fmt: skip
    return made


def _reidentifier(folder: Path, train: ImageSet) -> Artifact:
    shape: dict[str, Any] = {"backbone": "conv", "channels": [4, 4], "embedding_dim": 5, "head": "cosine"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        network = SiameseNetwork(**shape).eval()
    with torch.no_grad():  # centered: cosines of both signs
        network.embedding.bias -= network(network.pixels(train.image)).mean(0)
    stream = torch.Generator().manual_seed(6)
    is_same = torch.arange(60) % 2
    calibration = {
        "probability": (0.6 * torch.rand(60, generator=stream) + 0.35 * is_same).clamp(0, 1),
        "is_same": is_same,
        "label": train.label.repeat(5, *([1] * (train.label.ndim - 1))),
    }
    test = calibration | {"probability": calibration["probability"].roll(2).sqrt()}
    files: dict[str, Mapping[str, Tensor]] = {
        "reidentifier.safetensors": network.state_dict(), "calibration.safetensors": calibration,
        "test_pairs.safetensors": test, "patients.safetensors": {"train": torch.arange(NUM_TRAIN)},
    }  # fmt: skip
    return artifact(folder, files, notes={"network": shape, "image_shape": [1, SIDE, SIDE]})


def _classifier(folder: Path, train: ImageSet) -> Artifact:
    shape = {
        "network": "slim_densenet", "growth_rate": 4, "block_config": [1, 1], "num_init_features": 8, "input_size": None,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        network = build_network(shape, train.num_classes)
    made = artifact(folder, {CLASSIFIER: network.state_dict()}, notes=train.describe())
    made.manifest["settings"] = shape | {"seeds": [42]}
    return made


def half_flagged(folder: Path, inputs: Mapping[str, Artifact], candidates: Artifact) -> Artifact:
    """The same identity network, calibrated so that about half of the candidates have P > 0.5 of their source."""
    reidentifier = inputs["reidentifier"]
    network, codec = open_reidentifier(reidentifier), open_codec(inputs["codec"])
    train, cosines = tiny_images()["train"].image, []
    for name in sorted(candidates.manifest["files"]):
        shard = candidates.load(name)
        for source, latent in zip(shard["source"], shard["latent"], strict=True):
            made = network.embed(grey_levels(codec.decode(latent.float())))
            real = network.embed(train[source : source + 1]).expand_as(made)
            cosines.append(nn.functional.cosine_similarity(real, made))
    values = torch.cat(cosines)
    scale = 2.0 / float(values.std())
    tensors = reidentifier.load("reidentifier.safetensors")
    tensors["scale"] = torch.full_like(tensors["scale"], scale)
    tensors["bias"] = torch.full_like(tensors["bias"], -scale * float(values.median()))
    files = {name: reidentifier.load(name) for name in reidentifier.manifest["files"]}
    files["reidentifier.safetensors"] = tensors
    return artifact(folder / "output", files, notes=reidentifier.manifest["notes"])
