"""Train the X-ray encoder on ChestMNIST and keep the encoder without its head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torchmetrics.functional.classification import multilabel_auroc

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.pretrain_xray.datamodule import ChestMNISTData
from fedsynth.stages.pretrain_xray.module import XrayPretraining
from fedsynth.stages.pretrain_xray.spec import PretrainSettings
from fedsynth.stages.training import EpochStream, batch_share, fit, seed_everything

LABELS = (
    "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
    "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia",
)  # fmt: skip


def run(settings: PretrainSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Encoder weights, and AUROC per label and on average on the test images."""
    source = context.sources["chestmnist"]
    seed = derive_seed(settings.seed, "pretrain_xray")
    data = ChestMNISTData(
        source.path,
        batch_size=batch_share(settings.batch_size, context),
        seed=seed,
        rank=context.rank,
        world_size=context.world_size,
    )
    seed_everything(seed)
    module = XrayPretraining(
        positive_weight=data.positive_weight(),
        backbone=settings.backbone,
        image_channels=list(settings.image_channels),
        token_dim=settings.token_dim,
        normalization=settings.normalization,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    module.has_both = has_both_classes(data.tensors["val"]["label"])
    history = fit(module, data, context, network=module.network, callbacks=[EpochStream(seed)])
    context.save("encoder.safetensors", module.network.encoder.state_dict())
    if context.rank == 0:
        history.write(context.output)
    test = data.tensors["test"]
    auroc = _label_auroc(module.network.eval().cpu(), test["image"], test["label"])
    metrics = [Metric(name, "test/auroc", value, settings.seed) for name, value in auroc.items()]
    defined = [value for value in auroc.values() if value == value]
    metrics.append(
        Metric("mean", "test/auroc", sum(defined) / len(defined) if defined else float("nan"), settings.seed)
    )
    notes = {
        "file": source.files[0].name,
        "training_images": len(data.tensors["train"]["image"]),
        "labels_without_both_classes": [name for name, value in auroc.items() if value != value],
    }
    return Outcome(metrics=metrics, notes=notes)


def has_both_classes(label: torch.Tensor) -> torch.Tensor:
    """Which labels occur both ways: only those have an AUROC."""
    return (label.sum(0) > 0) & (label.sum(0) < len(label))


@torch.inference_mode()
def _label_auroc(network: torch.nn.Module, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
    """AUROC of every label; NaN where the test images hold one class only."""
    logits = torch.cat([network(part) for part in image.split(512)])
    auroc = multilabel_auroc(logits, label, label.shape[1], average="none")
    both = has_both_classes(label)
    names = LABELS if label.shape[1] == len(LABELS) else [f"label_{i}" for i in range(label.shape[1])]
    return {
        name: float(value) if ok else float("nan") for name, value, ok in zip(names, auroc, both, strict=True)
    }
