"""The two ways to train a multimodal classifier: rounds over clients, or epochs over all records at one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

from fedsynth.console import console
from fedsynth.federated.client import ClientId, Federation
from fedsynth.federated.progress import FederatedProgressBar
from fedsynth.federated.sharding import ClientShardedStrategy
from fedsynth.federated.state import State, clone_state
from fedsynth.federated.strategies.base import Strategy
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.pipeline.stage import StageContext
from fedsynth.stages.multimodal.chosen_round import ChosenRound
from fedsynth.stages.multimodal.module import MultimodalClassifier
from fedsynth.stages.multimodal.settings import TrainingSettings
from fedsynth.stages.training import BestWeights, EpochMean, EpochStream, History, fit

#: Data of a training; the argument says whether all records are pooled.
MakeData = Callable[[bool], L.LightningDataModule]


@dataclass(frozen=True)
class Trained:
    """What training leaves besides the module, which holds the chosen weights.

    Attributes:
        history: Metrics by round or epoch.
        counter: What one row of it is: ``"round"`` or ``"epoch"``.
        chosen: The round or epoch whose weights are kept, from 1.
        server: The strategy's state in that round; {} for centralized training.
        models: What each client uploaded or kept in that round, by names within the network; {} if nobody
            reads it (FedAvg, FedProx), the normalization alone under FedBN. Of personal models no client lacks one:
            who never took part still holds the model that all start from.
    """

    history: History
    counter: str
    chosen: int
    server: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[ClientId, State] = field(default_factory=dict)


class TrainingLoss(Callback):
    """Logs ``train/loss`` once an epoch, as the federated loop does once a round."""

    def __init__(self) -> None:
        self.mean = EpochMean()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.mean.add(outputs["loss"], len(batch["label"]))
        self.mean.log(pl_module, "train/loss")


def train_federated(
    module: MultimodalClassifier,
    make_data: MakeData,
    settings: TrainingSettings,
    context: StageContext,
    *,
    strategy: Strategy,
    num_clients: int,
    seed: int,
) -> Trained:
    """``trainer.max_epochs`` rounds of ``local_epochs`` epochs on every client (FedDP-PALD Eq. 17 under FedAvg).

    The chosen weights are put back: those of the lowest validation loss, or the last ones.
    """
    federation = Federation(
        local_epochs=settings.local_epochs,
        participation=settings.participation,
        seed=seed,
        strategy=strategy,
        num_clients=num_clients,
    )
    arguments: dict[str, object] = {"federation": federation, "enable_progress_bar": True}
    if context.world_size > 1:
        arguments["strategy"] = ClientShardedStrategy()
    best = BestWeights(module.network, "val/loss") if settings.checkpoint == "best" else None
    # Only audits of prototypes read what clients uploaded; FedAvg keeps nothing of it.
    chosen = ChosenRound(best, strategy, keep_models=settings.shares_prototypes and settings.shares_weights)
    history = fit(
        module,
        make_data(False),
        context,
        network=module.network,
        trainer_class=FederatedTrainer,
        trainer_arguments=arguments,
        callbacks=[FederatedProgressBar(console()), *([best] if best is not None else []), chosen],
    )
    round_ = put_back(best, history)
    models = {client: within_network(state) for client, state in chosen.models().items()}
    if not settings.shares_weights:
        # fidelity: untrained-client-models
        initial = clone_state(module.network, "cpu")  # no weights are averaged, so these never changed
        models = {client: models.get(client, initial) for client in range(num_clients)}
    return Trained(history, "round", round_, chosen.server(), models)


def train_centralized(
    module: MultimodalClassifier,
    make_data: MakeData,
    settings: TrainingSettings,
    context: StageContext,
    *,
    seed: int,
) -> Trained:
    """The stock Trainer on the records of all clients, for as many epochs as a client makes in a federation.

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
        make_data(True),
        context,
        network=module.network,
        trainer_arguments=arguments,
        callbacks=[EpochStream(seed), TrainingLoss(), *([best] if best is not None else [])],
    )
    return Trained(history, "epoch", put_back(best, history))


def within_network(state: Mapping[str, Any]) -> State:
    """A module's state by names within its network."""
    prefix = "network."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def put_back(best: BestWeights | None, history: History) -> int:
    """Put the best weights back, if they are wanted and there are any; the number of their epoch, from 1."""
    if best is None or not best.weights:
        return len(history.rows)
    best.restore()
    return best.epoch + 1
