"""DP-SGD on every client (Abadi et al., 2016): Opacus' per-record gradients inside the federated loop.

What leaves a client is its model after its local epochs; every step it took was noisy, so all its updates in
all rounds are protected at the price of :mod:`fedsynth.privacy.dp_sgd`. Its loss is neither kept nor sent.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fedsynth.data.paired import PairedClients
from fedsynth.data.poisson import poisson_loader
from fedsynth.errors import ConfigError
from fedsynth.federated.client import ClientId
from fedsynth.pipeline.stage import StageContext
from fedsynth.privacy import LedgerEntry
from fedsynth.privacy.dp_sgd import ClientNoise, PoissonSchedule, calibrate, dp_sgd_ledger_entry
from fedsynth.seeding import derive_seed, generator
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.fusion_encoder.per_record import per_record_view
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings

# Per-record gradients of so many records are held at a time (about 1.2 MB each with the default network).
RECORDS_AT_A_TIME = 128


@dataclass(frozen=True)
class PrivateTraining:
    """What DP-SGD needs to know before the first step.

    Attributes:
        noises: Calibrated noise by client.
        delta: δ of every client.
        clip_norm: C, the bound on the gradient of one record.
        seed: Root of batches and noise. Kept out of ``repr``, and it enters neither hyperparameters nor
            checkpoints: who knows it can subtract the noise.
    """

    noises: Mapping[int, ClientNoise]
    delta: float
    clip_norm: float
    seed: int = field(repr=False)

    @classmethod
    def plan(
        cls,
        pairs: PairedClients,
        *,
        epsilon: float,
        delta: float,
        clip_norm: float,
        batch_size: int,
        num_epochs: int,
        seed: int,
        secure_noise: bool,
    ) -> PrivateTraining:
        """Calibrate every client's noise from its number of records.

        Args:
            pairs: Of all clients; only their sizes are used.
            epsilon: Target of every client; ∞ clips and adds nothing.
            delta: δ.
            clip_norm: C.
            batch_size: Records a step draws on average.
            num_epochs: Local epochs over all rounds.
            seed: Of batches and noise, unless ``secure_noise``.
            secure_noise: Take the root from the operating system instead. Batches too: whoever knows which
                records a step drew gets no protection from the drawing.
        """
        clients, sizes = pairs.train.client.unique(return_counts=True)
        schedules = [PoissonSchedule(size, batch_size, num_epochs) for size in sizes.tolist()]
        noises = dict(zip(clients.tolist(), calibrate(schedules, epsilon=epsilon, delta=delta), strict=True))
        return cls(noises, delta, clip_norm, secrets.randbits(63) if secure_noise else seed)

    def ledger_entry(self, stage: str, not_covered: tuple[str, ...]) -> LedgerEntry:
        """What the training of all clients costs one record."""
        return dp_sgd_ledger_entry(
            tuple(self.noises.values()), stage=stage, delta=self.delta, clip_norm=self.clip_norm,
            not_covered=not_covered,
        )  # fmt: skip

    def notes(self) -> dict[str, Any]:
        """For the manifest: every client's schedule, noise and ε. All of it is public."""
        return {
            "dp_sgd": {
                str(client): {
                    "records": noise.schedule.num_records,
                    "sample_rate": noise.schedule.sample_rate,
                    "steps": noise.schedule.num_steps,
                    "noise_to_clip": noise.noise_to_clip,
                    "epsilon": noise.epsilon if math.isfinite(noise.epsilon) else "inf",
                }
                for client, noise in self.noises.items()
            }
        }


def plan_private_training(
    settings: FusionEncoderSettings, pairs: PairedClients, context: StageContext
) -> PrivateTraining | None:
    """The stage's DP-SGD, calibrated for all its rounds; None without DP-SGD.

    The artifact's key names the streams of batches and noise, so that no two different trainings share them.

    Raises:
        ConfigError: If batches would not be drawn anew in every step.
    """
    if settings.mechanism == "none":
        return None
    if context.trainer.get("overfit_batches"):
        raise ConfigError(
            f"stages.{context.name}.mechanism=dp_sgd cannot train on the same batches again and again "
            f"(trainer.overfit_batches={context.trainer['overfit_batches']}): its price assumes that every step "
            "draws anew. Say privacy=dp_pma, or leave debug=overfit out."
        )
    return PrivateTraining.plan(
        pairs,
        epsilon=settings.epsilon,
        delta=settings.delta,
        clip_norm=settings.clip_norm,
        batch_size=settings.batch_size,
        num_epochs=context.trainer["max_epochs"] * settings.local_epochs,
        seed=derive_seed(settings.seed, "fusion_encoder", context.key),
        secure_noise=settings.secure_noise,
    )


class PrivateClientsData(PairedClientsData):
    """Poisson batches for every client: a record is drawn with probability q_k in each step.

    Args:
        pairs: All pairs.
        training: Schedules by client, and the seed of the draws.
    """

    def __init__(self, pairs: PairedClients, training: PrivateTraining) -> None:
        largest = max(noise.schedule.expected_batch_size for noise in training.noises.values())
        super().__init__(pairs, batch_size=largest, seed=training.seed)
        self.training = training

    def client_loader(self, records: Mapping[str, Tensor], name: int | str) -> Any:
        schedule = self.training.noises[int(name)].schedule
        return poisson_loader(
            records,
            sample_rate=schedule.sample_rate,
            num_batches=schedule.steps_per_epoch,
            seed=derive_seed(self.seed, "batches", name),
        )


class PrivateFusionEncoder(FusionEncoder):
    """``FusionEncoder`` whose steps clip each record's gradient and add Gaussian noise to their sum.

    The optimizer is manual: the step sees the gradients of single records, and no loss is kept. Set
    ``training_plan`` before fitting; it is no constructor argument, because Lightning would write it into
    checkpoints. Needs a ``FederatedTrainer``, which says which client trains.
    """

    training_plan: PrivateTraining | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.automatic_optimization = False
        # In a list, so that torch does not register it: its parameters are those of ``network``.
        self._per_record = [per_record_view(self.network)]

    def configure_optimizers(self) -> Any:
        from opacus.optimizers import DPOptimizer

        # Noise and batch size are those of a client: set when it starts.
        return DPOptimizer(
            super().configure_optimizers(), noise_multiplier=0.0, max_grad_norm=self._plan.clip_norm,
            expected_batch_size=1, loss_reduction="mean",
        )  # fmt: skip

    def on_client_start(self, client: ClientId) -> None:
        """The client's own noise and batch size, and its noise stream of this round."""
        noise, optimizer = self._plan.noises[int(client)], self._optimizer
        round_ = self.trainer.fit_loop.round  # type: ignore[attr-defined]  # of a FederatedTrainer
        optimizer.noise_multiplier = noise.noise_to_clip
        optimizer.expected_batch_size = noise.schedule.expected_batch_size
        optimizer.generator = generator(self._plan.seed, "dp-sgd", client, round_, device=self.device.type)
        self._per_record[0].train()

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        optimizer: Any = self.optimizers()
        dp = self._optimizer
        optimizer.zero_grad()
        mask = self.training_mask(len(batch["label"]))
        for part, is_last in _parts({**batch, "mask": mask.to(self.device)}):
            self._backward(part)
            if not is_last:
                dp.clip_and_accumulate()
                _drop_per_record_gradients(self.network)
        optimizer.step()

    def _backward(self, part: Mapping[str, Tensor]) -> None:
        """Leave the gradient of every record in ``grad_sample`` of each parameter; [0, …] if there is none."""
        if len(part["label"]) == 0:
            for parameter in self.network.parameters():
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)  # type: ignore[attr-defined]
            return
        # Gradients are asked for the inputs, which all layers lie before: the hooks see every one of them, and the
        # gradients of weights summed over the batch, which nobody needs, are not computed.
        image, ecg = (part[name].detach().requires_grad_() for name in ("image", "ecg"))
        logits = self._per_record[0](image, ecg, part["mask"]).logits
        # The sum, so that each record's gradient is that of its own loss.
        loss = nn.functional.cross_entropy(logits, part["label"], reduction="sum")
        self.manual_backward(loss, inputs=[image, ecg])

    @property
    def _optimizer(self) -> Any:
        return self.trainer.optimizers[0]

    @property
    def _plan(self) -> PrivateTraining:
        if self.training_plan is None:
            raise ConfigError(
                "PrivateFusionEncoder.training_plan is not set. Make one by PrivateTraining.plan(…)."
            )
        return self.training_plan


def _parts(batch: Mapping[str, Tensor]) -> Iterator[tuple[dict[str, Tensor], bool]]:
    """Pieces of a batch that fit into memory, with whether it is the last; one empty piece of an empty batch."""
    pieces = [tensor.split(RECORDS_AT_A_TIME) for tensor in batch.values()]
    count = len(pieces[0])
    for index in range(count):
        yield {name: piece[index] for name, piece in zip(batch, pieces, strict=True)}, index == count - 1


def _drop_per_record_gradients(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.grad_sample = None  # type: ignore[attr-defined]
