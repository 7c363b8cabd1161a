"""Local training of a classifier of two modalities, whatever they are: loss, embeddings, validation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import lightning as L
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAUROC, MulticlassRecall

from fedsynth.federated.client import ClientId, canonical_order
from fedsynth.prototypes.prototype_losses import class_weights, weighted_cross_entropy

FUSED = "fused"
NUM_CLASSES = 2


class Answer(NamedTuple):
    """What the network says about a batch."""

    logits: Float[Tensor, "b class"]
    embeddings: dict[str, Float[Tensor, "b dim"]]
    """By modality, the fused one last; the fused one is what the classifier sees."""
    present: dict[str, Bool[Tensor, " b"]]
    """Which records have the modality; a modality without an entry is always there."""


class MultimodalClassifier(L.LightningModule):
    """Base of the trained classifiers: a subclass sets ``network`` and says how it answers.

    Returns from ``training_step`` what strategies align: ``embeddings``, ``label`` and ``present``. Where
    clients have models of their own (``Strategy.client_models``), validation is the mean over all clients; one that
    never took part answers with the model that all start from.

    Args:
        learning_rate: Of AdamW.
        weight_decay: Of AdamW; 0 makes it Adam.
        num_models: How many models are validated: 1, or the number of clients if each keeps its own.
    """

    network: nn.Module

    def __init__(self, *, learning_rate: float, weight_decay: float, num_models: int = 1) -> None:
        super().__init__()
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.num_models = num_models
        self.class_counts: dict[ClientId | None, Int64[Tensor, " class"]] = {}
        self._class_weight: Tensor | None = None
        self.scores: dict[str, list[Metric]] = {
            "auroc": [BinaryAUROC() for _ in range(num_models)],
            "uar": [MulticlassRecall(NUM_CLASSES, average="macro") for _ in range(num_models)],
        }
        # Registered, so that they follow the module to its device and a sharded federation keeps them to itself.
        self.val_metrics = nn.ModuleList(metric for metrics in self.scores.values() for metric in metrics)

    @abstractmethod
    def answer(self, batch: Mapping[str, Tensor]) -> Answer:
        """Logits and embeddings with everything shown that the network was made for."""

    def training_answer(self, batch: Mapping[str, Tensor]) -> Answer:
        """The same while it trains, where modalities may be hidden. Here: everything is shown."""
        return self.answer(batch)

    def forward(self, batch: Mapping[str, Tensor]) -> Answer:
        return self.answer(batch)

    def embed(
        self, batch: Mapping[str, Tensor]
    ) -> tuple[dict[str, Float[Tensor, "b dim"]], Int64[Tensor, " b"], dict[str, Bool[Tensor, " b"]]]:
        """Embeddings, labels and presence of a batch, for class prototypes."""
        answer = self.answer(batch)
        return answer.embeddings, batch["label"], answer.present

    def weigh_classes(self, counts: Mapping[ClientId | None, Int64[Tensor, " class"]]) -> None:
        """From now on weigh the loss by w_c = n / (C n_c) of these records by class.

        Args:
            counts: Records of each class by client; None is the key of all records, for centralized training.
        """
        self.class_counts = dict(counts)

    def on_client_start(self, client: ClientId) -> None:
        """The client's own class weights."""
        self._weigh(client)

    def on_train_start(self) -> None:
        self._weigh(None)

    def _weigh(self, client: ClientId | None) -> None:
        if client in self.class_counts:
            self._class_weight = class_weights(self.class_counts[client]).to(self.device, torch.float32)

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Any:
        answer = self.training_answer(batch)
        label = batch["label"]
        if self._class_weight is None:
            loss = nn.functional.cross_entropy(answer.logits, label)
        else:
            loss = weighted_cross_entropy(answer.logits, label, self._class_weight)
        return {"loss": loss, "embeddings": answer.embeddings, "label": label, "present": answer.present}

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        label = batch["label"]
        losses = []
        for index, answer in enumerate(self._answers(batch)):
            logits = answer.logits.float()
            losses.append(nn.functional.cross_entropy(logits, label))
            self.scores["auroc"][index].update(logits.softmax(1)[:, 1], label)
            self.scores["uar"][index].update(logits, label)
        # Every federated rank validates the whole split with the same models: nothing to pool there.
        loss = torch.stack(losses).mean() if len(losses) > 1 else losses[0]
        self.log("val/loss", loss, on_step=False, on_epoch=True, batch_size=len(label), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        for name, metrics in self.scores.items():
            used = [metric for metric in metrics if metric.update_called]
            values = [metric.compute() for metric in used]
            for metric in used:
                metric.reset()
            if values:
                self.log(f"val/{name}", torch.stack(values).mean(), sync_dist=True)

    def _answers(self, batch: dict[str, Tensor]) -> list[Answer]:
        """Of the module itself, or of every client's own model."""
        # Personal strategies leave the module as it was initialized.
        federation = getattr(self.trainer, "federation", None)
        own = {} if federation is None else federation.strategy.client_models()
        if not own:
            return [self.answer(batch)]
        states = [
            {name: tensor.to(self.device) for name, tensor in own[client].items()}
            for client in canonical_order(own)
        ]
        answers = [torch.func.functional_call(self, state, (batch,), strict=False) for state in states]
        absent = self.num_models - len(answers)
        return [*answers, *([self.answer(batch)] * absent if absent else [])]

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(
            self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
