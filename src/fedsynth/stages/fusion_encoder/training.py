"""Train the fusion encoder by rounds over clients, or by epochs over all pairs at one place."""

from __future__ import annotations

import lightning as L
import torch

from fedsynth.data.paired import PairedClients
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.network import MODALITIES
from fedsynth.stages.fusion_encoder.private_training import PrivateClientsData, PrivateFusionEncoder
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings
from fedsynth.stages.multimodal.class_counts import count_classes
from fedsynth.stages.multimodal.strategies import build_strategy
from fedsynth.stages.multimodal.training import Trained, train_centralized, train_federated
from fedsynth.stages.training import batch_share


def train(
    module: FusionEncoder,
    pairs: PairedClients,
    settings: FusionEncoderSettings,
    context: StageContext,
    *,
    seed: int,
) -> Trained:
    """Train in place and put the chosen weights back: those of the lowest validation loss, or the last ones."""
    if settings.class_weighting == "client":
        module.weigh_classes(count_classes(pairs.train.label, pairs.train.client))

    def data(centralized: bool) -> L.LightningDataModule:
        return _data(module, pairs, settings, context, seed=seed, centralized=centralized)

    if settings.training == "centralized":
        return train_centralized(module, data, settings, context, seed=seed)
    strategy = build_strategy(settings, module, MODALITIES, context, trained=settings.modalities)
    clients = int(pairs.train.client.max()) + 1
    return train_federated(module, data, settings, context, strategy=strategy, num_clients=clients, seed=seed)


def num_models(settings: FusionEncoderSettings, client: torch.Tensor) -> int:
    """How many models are validated: one, or one for each client that keeps its own."""
    return 1 if settings.has_global_model else len(client.unique())


def _data(
    module: FusionEncoder,
    pairs: PairedClients,
    settings: FusionEncoderSettings,
    context: StageContext,
    *,
    seed: int,
    centralized: bool,
) -> PairedClientsData:
    """Shuffled batches of each client or of all; Poisson batches under DP-SGD."""
    if isinstance(module, PrivateFusionEncoder) and module.training_plan is not None:
        return PrivateClientsData(pairs, module.training_plan)
    if not centralized:
        return PairedClientsData(pairs, batch_size=settings.batch_size, seed=seed)
    return PairedClientsData(
        pairs,
        batch_size=batch_share(settings.batch_size, context),
        seed=seed,
        centralized=True,
        rank=context.rank,
        world_size=context.world_size,
    )
