"""Small artifacts for the encoder and audit stages: drawn chests whose people can be told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from tiny_stages import artifact, run_stage, stage_context
from torch import Tensor

from fedsynth.models.siamese import SiameseNetwork
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.fingerprint import canonical
from fedsynth.stages.audit_images.records import gather
from fedsynth.stages.audit_images.spec import AuditImagesSettings
from fedsynth.stages.image_set import IMAGES_FILE, ImageSet
from fedsynth.stages.pseudo_features.spec import PseudoFeaturesSettings
from fedsynth.stages.tstr_densenet.network import build_network

Values = dict[tuple[str, str, int], float]
SIDE = 16
MINIATURE = "test_resnet"
CLASSES = ("normal", "bacteria", "virus")
COUNTS = {"train": 60, "val": 30, "test": 60}


def encoder_settings(**changes: Any) -> PseudoFeaturesSettings:
    """EfficientNet-Lite0 at a size that takes no time."""
    defaults: dict[str, Any] = {
        "encoder": "efficientnet_lite0", "weights": None, "weights_sha256": None, "allow_download": False,
        "image_size": 32, "batch_size": 64,
    }  # fmt: skip
    return PseudoFeaturesSettings(**{**defaults, **changes})


def audit_settings(**changes: Any) -> AuditImagesSettings:
    """An audit of everything there is."""
    defaults: dict[str, Any] = {
        "seed": 42, "arm": "made", "max_released": None, "max_train": None, "held_out": "test",
        "num_components": 12, "nearest_k": 3, "irs_bounds": "exact", "irs_tail": 0.05, "num_radii": 4,
        "isolation_radius": 0.5, "confidence": 0.95, "threshold_rule": "fpr", "threshold_value": 0.1,
        "similarity_level": 0.05, "dp_epsilon": 4.0, "torchmetrics_fid": True, "batch_size": 64,
    }  # fmt: skip
    return AuditImagesSettings(**{**defaults, **changes})


def people(num: int, stream: torch.Generator, first_patient: int = 0, per_patient: int = 2) -> ImageSet:
    """Images of random smooth patterns; two of a person differ by a little noise."""
    num_people = -(-num // per_patient)
    coarse = torch.rand(num_people, 1, 5, 5, generator=stream)
    base = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
    patient = torch.arange(num_people).repeat_interleave(per_patient)[:num]
    noise = 0.03 * torch.randn(num, 1, SIDE, SIDE, generator=stream)
    image = ((base[patient] + noise).clamp(0, 1) * 255).round().to(torch.uint8)
    return ImageSet(image, patient % len(CLASSES), CLASSES, patient=patient + first_patient)


def real_sets() -> dict[str, ImageSet]:
    """Training, validation and test images of different people."""
    stream = torch.Generator().manual_seed(5)
    return {
        split: people(num, stream, first_patient=1000 * number)
        for number, (split, num) in enumerate(COUNTS.items())
    }


def small_encoder(folder: Path) -> PseudoFeaturesSettings:
    """A miniature of timm that was never trained, with few features."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        network = timm.create_model(MINIATURE)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), folder / "miniature.pth")
    return encoder_settings(encoder=f"timm:{MINIATURE}", weights=str(folder / "miniature.pth"))


def made_set(image: Tensor, source: Tensor, train: ImageSet) -> ImageSet:
    """Images made of training images."""
    return ImageSet(image, train.label[source], CLASSES, source=source)


def stored_images(folder: Path, kind: str, **splits: ImageSet) -> Artifact:
    """An artifact of image sets."""
    tensors: dict[str, Tensor] = {}
    for split, images in splits.items():
        tensors |= images.to_tensors(split)
    made = artifact(folder / "output", {IMAGES_FILE: tensors}, notes=next(iter(splits.values())).describe())
    made.manifest["kind"] = kind
    return made


def settings_of(made: Artifact, settings: Any) -> Artifact:
    """The artifact as if made with these settings."""
    made.manifest["settings"] = canonical(settings)
    return made


def classifier(folder: Path) -> Artifact:
    """A classifier that was never trained, as ``tstr_densenet`` stores it."""
    shape = {
        "network": "slim_densenet", "growth_rate": 4, "block_config": [2, 2], "num_init_features": 8, "input_size": None,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = build_network(shape, len(CLASSES))
    made = artifact(
        folder / "output",
        {"classifier.safetensors": network.state_dict()},
        notes={"classes": list(CLASSES), "task": "multiclass"},
    )
    made.manifest["settings"] = shape
    return made


def reidentifier(folder: Path, patients: Tensor | None = None) -> Artifact:
    """An identity network that was never trained, with a calibration drawn by hand; said to know these patients."""
    options = {"channels": [8, 8, 8], "embedding_dim": 16, "head": "difference"}
    with torch.random.fork_rng():
        torch.manual_seed(4)
        network = SiameseNetwork(**options)
    # Embeddings of a network that never learned lie close together; an image itself stays apart from all others.
    with torch.no_grad():
        network.head.weight.fill_(-1e4)
        network.head.bias.fill_(2.0)
    same = torch.arange(200) % 2
    probability = (
        0.2 + 0.5 * same + 0.3 * torch.rand(200, generator=torch.Generator().manual_seed(6))
    ).clamp(0, 1)
    return artifact(
        folder / "output",
        {
            "reidentifier.safetensors": network.state_dict(),
            "calibration.safetensors": {"probability": probability, "is_same": same, "label": same},
            **({} if patients is None else {"patients.safetensors": {"train": patients.unique()}}),
        },
        notes={"network": options, "image_shape": [1, SIDE, SIDE]},
    )


def audit_inputs(folder: Path) -> dict[str, Artifact]:
    """Everything an audit needs but the release."""
    images = stored_images(folder / "images", "xray_images", **real_sets())
    settings = small_encoder(folder)
    features = run_stage("pseudo_features", settings, {"images": images}, stage_context(folder / "features"))
    others = people(40, torch.Generator().manual_seed(77))
    source = torch.arange(40)
    return {
        "images": images,
        "features": settings_of(features, settings),
        "reidentifier": reidentifier(folder / "reidentifier"),
        "classifier": classifier(folder / "classifier"),
        "independent": stored_images(
            folder / "independent",
            "select_images",
            train=made_set(others.image, source, real_sets()["train"]),
        ),
    }


def audited(folder: Path, inputs: dict[str, Artifact], released: ImageSet, **changes: Any) -> Artifact:
    """The audit of a release."""
    kind = changes.pop("kind", "select_images")
    made = stored_images(folder / "released", kind, train=released)
    settings = audit_settings(**changes)
    return run_stage("audit_images", settings, {**inputs, "released": made}, stage_context(folder / "audit"))


def number(found: Values, metric: str) -> float:
    """One metric of the audited arm."""
    return found["made", metric, 42]


def only(inputs: dict[str, Artifact], *names: str) -> dict[str, Artifact]:
    """Images, features and these of the inputs."""
    return {name: inputs[name] for name in ("images", "features", *names)}


def gathered(folder: Path, inputs: dict[str, Artifact], released: ImageSet, **changes: Any) -> Any:
    """The images an audit of a release looks at."""
    made = stored_images(folder / "released", "select_images", train=released)
    return gather(
        audit_settings(**changes), {**only(inputs), "released": made}, stage_context(folder / "audit")
    )
