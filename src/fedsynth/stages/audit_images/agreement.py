"""Agreement of our Fréchet distance with that of torchmetrics, where its Inception network is at hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedsynth.evaluation.frechet import frechet_distance
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.audit_images.records import AuditRecords
from fedsynth.stages.audit_images.spaces import Space


def torchmetrics_fid(
    records: AuditRecords,
    space: Space,
    features: Artifact,
    batch_size: int,
    device: str | torch.device = "cpu",
) -> dict[str, float]:
    """FID of released images to the training images looked at, by torchmetrics from the images themselves, and ours.

    torchmetrics adds nothing to the covariances, so ours is taken without shrinkage here.

    Args:
        records: Images.
        space: Of the encoder ``inception``.
        features: The ``pseudo_features`` artifact, for its file of weights.
        batch_size: Images at once.
        device: Where the network runs.
    """
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric: Any = (
        FrechetInceptionDistance(
            feature=2048, feature_extractor_weights_path=features.manifest["settings"]["weights"]
        )
        .set_dtype(space.train.double().dtype)
        .to(device)
    )
    train = records.real["train"].image
    for image, is_real in ((train[records.train_rows], True), (records.released.image, False)):
        for part in image.split(batch_size):
            metric.update(_colors(part).to(device), real=is_real)
    ours = frechet_distance(real=space.train, synthetic=space.released, shrinkage=0.0)
    return {"frechet/train_torchmetrics": float(metric.compute()), "frechet/train_unshrunk": ours}


def _colors(image: Tensor) -> Tensor:
    return image.expand(-1, 3, -1, -1).contiguous()
