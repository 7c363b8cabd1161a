"""What a FederatedTrainer step costs against a bare PyTorch FedAvg loop, on the same steps.

Five unequal clients, an image encoder on 28×28 and a signal encoder on 256 samples (conv 32-64-128 with
BatchNorm), batch 64, Adam. Rounds of the two runners are interleaved, so a busy machine slows both; the
ratio is the median over pairs. Run with one thread:

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/federated_overhead.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedsynth.federated.client import Federation
from fedsynth.federated.state import average_states
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.seeding import derive_seed

BATCH = 64
SHARES = (0.36, 0.27, 0.18, 0.12, 0.07)


class Records(Dataset):
    """Random images, signals and binary labels in memory; indexed by tensors of positions."""

    def __init__(self, size: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        self.image = torch.randn(size, 1, 28, 28, generator=source)
        self.signal = torch.randn(size, 1, 256, generator=source)
        self.label = torch.randint(2, (size,), generator=source)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.image[index], self.signal[index], self.label[index]


class IndexBatches:
    """Shuffled index batches; a short tail is dropped."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):  # type: ignore[no-untyped-def]
        order = torch.randperm(
            self.size, generator=torch.Generator().manual_seed(self.seed + 1000 * self.epoch)
        )
        return iter(order[: len(self) * BATCH].split(BATCH))

    def __len__(self) -> int:
        return self.size // BATCH


def make_loaders(records: int) -> dict[int, DataLoader]:
    """One in-memory loader per client."""
    sizes = {client: int(share * records) for client, share in enumerate(SHARES)}
    return {
        client: DataLoader(
            Records(size, client),
            batch_size=None,
            sampler=IndexBatches(size, client),
            generator=torch.Generator(),
        )
        for client, size in sizes.items()
    }


def conv_encoder(dimensions: int) -> nn.Sequential:
    """Three convolutions, 32-64-128 channels, BatchNorm, pooling, a 64-d latent."""
    convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if dimensions == 2 else (nn.Conv1d, nn.BatchNorm1d)
    pool, adaptive = (
        (nn.MaxPool2d, nn.AdaptiveAvgPool2d) if dimensions == 2 else (nn.MaxPool1d, nn.AdaptiveAvgPool1d)
    )
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64), (64, 128)):
        layers += [convolution(before, after, 3, padding=1), norm(after), nn.ReLU(), pool(2)]
    return nn.Sequential(*layers, adaptive(1), nn.Flatten(), nn.Linear(128, 64))


class Encoder(lightning.LightningModule):
    """Image and signal encoders, summed, with dropout and a linear head."""

    def __init__(self, both: bool, logs: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.signal = conv_encoder(2), conv_encoder(1) if both else None
        self.head, self.logs = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 2)), logs

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Cross-entropy of one batch."""
        latent = self.image(batch[0])
        if self.signal is not None:
            latent = latent + self.signal(batch[1])
        return nn.functional.cross_entropy(self.head(latent), batch[2])

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        """One batch, as Lightning wants it."""
        loss = self.loss(batch)
        if self.logs:
            self.log("fit/loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def bare_round(model: Encoder, loaders: dict[int, DataLoader], round_: int) -> None:
    """One round of FedAvg in plain PyTorch: the least code that gives the same model."""
    start = {k: v.clone() for k, v in model.state_dict().items()}
    states, counts = [], []
    optimizer = model.configure_optimizers()
    for client, loader in loaders.items():
        model.load_state_dict(start)
        model.train()
        optimizer.state.clear()
        torch.manual_seed(derive_seed(0, "client", round_, client))
        loader.sampler.set_epoch(round_)  # type: ignore[attr-defined]
        for batch in loader:
            optimizer.zero_grad()
            model.loss(batch).backward()
            optimizer.step()
        states.append({k: v.clone() for k, v in model.state_dict().items()})
        counts.append(len(loader.dataset))  # type: ignore[arg-type]
    model.load_state_dict(average_states(states, counts))


class Clock(lightning.Callback):
    """Times each round inside the Trainer, and runs one bare round before each."""

    def __init__(self, bare: Callable[[int], None]) -> None:
        self.bare, self.bare_seconds, self.trainer_seconds = bare, [], []  # type: ignore[var-annotated]

    def on_train_epoch_start(self, trainer: FederatedTrainer, module: Encoder) -> None:
        """The bare loop's round, then the start of the Trainer's own."""
        start = time.process_time()
        self.bare(trainer.current_epoch)
        self.start = time.process_time()
        self.bare_seconds.append(self.start - start)

    def on_train_epoch_end(self, trainer: FederatedTrainer, module: Encoder) -> None:
        """The end of the Trainer's round."""
        self.trainer_seconds.append(time.process_time() - self.start)


def measure(records: int, rounds: int, both: bool, logs: bool, progress_bar: bool) -> None:
    """Print milliseconds per step of both runners and the median of the paired ratios, in CPU time."""
    loaders, bare_loaders = make_loaders(records), make_loaders(records)
    bare = Encoder(both, logs)
    clock = Clock(lambda round_: bare_round(bare, bare_loaders, round_))
    module = Encoder(both, logs)
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            federation=Federation(local_epochs=1, seed=0, strategy=FedAvg()),
            accelerator="cpu",
            devices=1,
            max_epochs=rounds,
            callbacks=[clock],
            logger=CSVLogger(folder),
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress_bar,
        )
        trainer.fit(module, train_dataloaders=CombinedLoader(loaders, mode="sequential"))
    same = all(torch.equal(v, bare.state_dict()[k]) for k, v in module.state_dict().items())
    steps = sum(len(loader) for loader in loaders.values())
    # The first round also warms caches up.
    pairs = list(zip(clock.bare_seconds, clock.trainer_seconds, strict=True))[1:]
    ratio = statistics.median(ours / theirs for theirs, ours in pairs)
    theirs, ours = (1000 * statistics.median(column) / steps for column in zip(*pairs, strict=True))
    print(
        f"{'image + signal' if both else 'image':15s} log={logs!s:5} {steps} steps × {len(pairs)} rounds   "
        f"bare {theirs:6.2f} ms   trainer {ours:6.2f} ms   +{ours - theirs:5.2f} ms/step   ratio {ratio:.3f}"
        f"   same weights: {same}"
    )


def main() -> None:
    """Measure with and without the signal encoder, with and without logging."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1500, help="records over all clients")
    parser.add_argument("--rounds", type=int, default=8, help="rounds measured, after one to warm up")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    for both in (False, True):
        for logs in (False, True):
            measure(options.records, options.rounds + 1, both, logs, progress_bar=False)


if __name__ == "__main__":
    main()
