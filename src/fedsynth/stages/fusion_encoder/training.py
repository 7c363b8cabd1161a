"""The two ways to train the fusion encoder: rounds over clients, or epochs over all pairs at one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from fedsynth.console import console
from fedsynth.data.paired import PairedClients
from fedsynth.federated.client import ClientId, Federation
from fedsynth.federated.progress import FederatedProgressBar
from fedsynth.federated.sharding import ClientShardedStrategy
from fedsynth.federated.state import State
from fedsynth.federated.strategies.base import Strategy
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.strategies.fedbn import FedBN, batch_norm_names
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.private_training import PrivateClientsData, PrivateFusionEncoder
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings
from fedsynth.stages.training import BestWeights, EpochMean, EpochStream, History, batch_share, fit


@dataclass(frozen=True)
class Trained:
    """What training leaves besides the module, which holds the chosen weights.

    Attributes:
        history: Metrics by round or epoch.
        counter: What one row of it is: ``"round"`` or ``"epoch"``.
        chosen: The round or epoch whose weights are kept, from 1.
        normalization: Under FedBN, what each client kept in that round, by names within the network.
    """

    history: History
    counter: str
    chosen: int
    normalization: dict[ClientId, State] = field(default_factory=dict)

    def normalization_tensors(self) -> dict[str, Tensor]:
        """As one flat dictionary, ``<client>/<name>``."""
        return {
            f"{client}/{name}": tensor
            for client, state in self.normalization.items()
            for name, tensor in state.items()
        }


class BestClients(Callback):
    """Keeps what FedBN's clients held in the best round; part of the checkpoint.

    Args:
        best: Says which round is the best; comes before this callback.
        strategy: Whose clients they are.
    """

    def __init__(self, best: BestWeights, strategy: FedBN) -> None:
        self.best, self.strategy = best, strategy
        self.kept: dict[ClientId, State] = {}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking and self.best.epoch == trainer.current_epoch:
            self.kept = dict(self.strategy.kept)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.kept = state_dict["kept"]


class TrainingLoss(Callback):
    """Logs ``train/loss`` once an epoch, as the federated loop does once a round."""

    def __init__(self) -> None:
        self.mean = EpochMean()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.mean.add(outputs["loss"], len(batch["label"]))
        self.mean.log(pl_module, "train/loss")


def train(
    module: FusionEncoder,
    pairs: PairedClients,
    settings: FusionEncoderSettings,
    context: StageContext,
    *,
    seed: int,
) -> Trained:
    """Train in place and put the chosen weights back: those of the lowest validation loss, or the last ones."""
    way = train_centralized if settings.training == "centralized" else train_federated
    return way(module, pairs, settings, context, seed=seed)


def train_federated(
    module: FusionEncoder,
    pairs: PairedClients,
    settings: FusionEncoderSettings,
    context: StageContext,
    *,
    seed: int,
) -> Trained:
    """Eq. (17): ``trainer.max_epochs`` rounds of ``local_epochs`` epochs on every client."""
    strategy: Strategy = FedBN(batch_norm_names(module)) if settings.strategy == "fedbn" else FedAvg()
    federation = Federation(
        local_epochs=settings.local_epochs,
        participation=settings.participation,
        seed=seed,
        strategy=strategy,
        num_clients=int(pairs.train.client.max()) + 1,
    )
    arguments: dict[str, object] = {"federation": federation, "enable_progress_bar": True}
    if context.world_size > 1:
        arguments["strategy"] = ClientShardedStrategy()
    callbacks: list[Callback] = [FederatedProgressBar(console())]
    best = BestWeights(module.network, "val/loss") if settings.checkpoint == "best" else None
    if best is not None:
        callbacks.append(best)
    clients = BestClients(best, strategy) if best is not None and isinstance(strategy, FedBN) else None
    if clients is not None:
        callbacks.append(clients)
    history = fit(
        module,
        _client_batches(module, pairs, settings, seed),
        context,
        network=module.network,
        trainer_class=FederatedTrainer,
        trainer_arguments=arguments,
        callbacks=callbacks,
    )
    kept = clients.kept if clients is not None and clients.kept else getattr(strategy, "kept", {})
    named = {
        client: {name.removeprefix("network."): tensor for name, tensor in state.items()}
        for client, state in kept.items()
    }
    return Trained(history, "round", _choose(best, history), named)


def _client_batches(
    module: FusionEncoder, pairs: PairedClients, settings: FusionEncoderSettings, seed: int
) -> PairedClientsData:
    """Shuffled batches; Poisson batches under DP-SGD."""
    if isinstance(module, PrivateFusionEncoder) and module.training_plan is not None:
        return PrivateClientsData(pairs, module.training_plan)
    return PairedClientsData(pairs, batch_size=settings.batch_size, seed=seed)


def train_centralized(
    module: FusionEncoder,
    pairs: PairedClients,
    settings: FusionEncoderSettings,
    context: StageContext,
    *,
    seed: int,
) -> Trained:
    """The stock Trainer on the pairs of all clients, for as many epochs as a client makes in a federation.

    These are ``trainer.max_epochs`` rounds times ``local_epochs``; optimizer, batch size and the rule for the
    checkpoint are the same, applied after every epoch. The optimizer's state is never reset.
    """
    arguments: dict[str, object] = {"max_epochs": context.trainer["max_epochs"] * settings.local_epochs}
    if context.world_size > 1:
        # A small batch may lack a modality altogether, and a network of one modality always does.
        arguments["strategy"] = DDPStrategy(find_unused_parameters=True)
    best = BestWeights(module.network, "val/loss") if settings.checkpoint == "best" else None
    history = fit(
        module,
        PairedClientsData(
            pairs,
            batch_size=batch_share(settings.batch_size, context),
            seed=seed,
            centralized=True,
            rank=context.rank,
            world_size=context.world_size,
        ),
        context,
        network=module.network,
        trainer_arguments=arguments,
        callbacks=[EpochStream(seed), TrainingLoss(), *([best] if best is not None else [])],
    )
    return Trained(history, "epoch", _choose(best, history))


def _choose(best: BestWeights | None, history: History) -> int:
    """Put the best weights back, if they are wanted and there are any; the number of their epoch, from 1."""
    if best is None or not best.weights:
        return len(history.rows)
    best.restore()
    return best.epoch + 1
