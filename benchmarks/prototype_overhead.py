"""What a round of FedMPA costs against one of FedAvg: same network, same records, same Trainer.

The fusion network of FedDP-PALD on X-ray and ECG pairs of five clients: real ones if DATA_DIR holds the files, else
random tensors of their shape. Rounds of both strategies alternate, and so does who goes first; the ratio is the
geometric mean over pairs of rounds, with a 95 % t-interval. CPU seconds, without validation, which both have alike.
Run with one thread:

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE DATA_DIR=… python benchmarks/prototype_overhead.py
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger

from fedsynth.data.medmnist import read_medmnist
from fedsynth.data.mitbih import read_beats
from fedsynth.data.paired import PairedClients, PairedSplit, PairingStatistics
from fedsynth.data.pairing import build_pairs
from fedsynth.federated.client import Federation
from fedsynth.federated.strategies.fedavg import FedAvg
from fedsynth.federated.strategies.fedmpa import FedMPA, parameter_names
from fedsynth.federated.trainer import FederatedTrainer
from fedsynth.stages.fusion_encoder.datamodule import PairedClientsData
from fedsynth.stages.fusion_encoder.module import FusionEncoder
from fedsynth.stages.multimodal.class_counts import count_classes
from paired_ratio import paired_ratio

NETWORK: dict[str, Any] = {
    "backbone": "conv", "image_channels": [32, 64, 128], "signal_channels": [32, 64, 128],
    "signal_kernels": [7, 5, 3], "normalization": "batch", "fusion": "gated", "token_dim": 128, "num_heads": 4,
    "latent_dim": 64, "dropout": 0.2, "missing": "skip",
}  # fmt: skip
MODALITIES = ("image", "ecg", "fused")
WEIGHTS = dict(zip(MODALITIES, (0.07, 0.07, 0.08), strict=True))
SHARES = (0.36, 0.27, 0.18, 0.12, 0.07)  # of random records


def real_pairs(data_dir: Path) -> PairedClients:
    """The pairs of the default config."""
    return build_pairs(
        read_medmnist(data_dir / "medmnist" / "pneumoniamnist.npz", 28),
        read_beats(data_dir / "mitdb"),
        num_clients=5,
        dirichlet_alpha=0.5,
        min_records=20,
        fractions=(0.7, 0.15, 0.15),
        split_seed=0,
        partition_seed=42,
        pairing_seed=42,
    )


def random_pairs(records: int) -> PairedClients:
    """Noise of the shape of the real pairs."""
    source = torch.Generator().manual_seed(0)
    index = torch.arange(records)
    split = PairedSplit(
        image=torch.randn(records, 1, 28, 28, generator=source),
        ecg=torch.randn(records, 1, 256, generator=source),
        label=torch.randint(2, (records,), generator=source),
        client=torch.bucketize(index / records, torch.tensor(SHARES).cumsum(0)[:-1], right=True),
        image_id=index,
        beat_id=index,
        record_id=index,
    )
    zero = torch.zeros((), dtype=torch.float64)
    return PairedClients(split, split, split, PairingStatistics(zero, zero + 1, zero, zero + 1), {})


def thinned(split: PairedSplit, records: int) -> PairedSplit:
    """At most so many records, evenly over the split, so that clients keep their shares."""
    chosen = torch.arange(0, len(split), max(1, len(split) // records))
    return replace(split, **{name: value[chosen] for name, value in vars(split).items()})


class TimedFedMPA(FedMPA):
    """FedMPA that notes the CPU seconds of its own parts."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seconds: dict[str, float] = defaultdict(float)

    def local_objective(self, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of the losses; their backward pass is in what remains."""
        return self._timed("losses, forward", super().local_objective, *args, **kwargs)

    def client_message(self, *args: Any, **kwargs: Any) -> Any:
        """Local prototypes."""
        return self._timed("prototypes", super().client_message, *args, **kwargs)

    def aggregate(self, *args: Any, **kwargs: Any) -> Any:
        """Weights, bank, average, momentum."""
        return self._timed("aggregation", super().aggregate, *args, **kwargs)

    def _timed(self, part: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = function(*args, **kwargs)
        self.seconds[part] += time.process_time() - start
        return result


class Clock(lightning.Callback):
    """CPU seconds of every round."""

    def __init__(self) -> None:
        self.rounds: list[float] = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A round begins."""
        self.start = time.process_time()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A round ends."""
        self.rounds.append(time.process_time() - self.start)


class Runner:
    """One strategy and its Trainer, which goes on by one round at a time."""

    def __init__(self, fedmpa: bool, pairs: PairedClients, options: argparse.Namespace, folder: str) -> None:
        torch.manual_seed(0)
        self.module = FusionEncoder(
            network=NETWORK, modality_dropout=0.25, learning_rate=1e-3, weight_decay=1e-4
        )
        self.strategy: FedAvg | TimedFedMPA = FedAvg()
        if fedmpa:
            self.module.weigh_classes(count_classes(pairs.train.label, pairs.train.client))
            self.strategy = TimedFedMPA(
                parameters=parameter_names(self.module), modalities=MODALITIES, pull_weights=WEIGHTS,
                repulsion_weights=WEIGHTS, repulsion="hinge", repulsion_margin=1.0, bank_momentum=0.9,
                aggregation="similarity", sensitivity=2.0, softplus="outside", server_momentum=0.9,
                server_learning_rate=1.0,
            )  # fmt: skip
        self.clock = Clock()
        federation = Federation(local_epochs=options.local_epochs, seed=0, strategy=self.strategy)
        self.trainer = FederatedTrainer(
            federation=federation, accelerator="cpu", devices=1, max_epochs=1, callbacks=[self.clock],
            logger=CSVLogger(folder), enable_checkpointing=False, enable_model_summary=False,
            enable_progress_bar=False, limit_val_batches=0,
        )  # fmt: skip
        self.data = PairedClientsData(pairs, batch_size=options.batch_size, seed=0)

    def advance(self) -> None:
        """One more round."""
        self.trainer.fit_loop.max_epochs = len(self.clock.rounds) + 1
        self.trainer.fit(self.module, datamodule=self.data)


def measure(pairs: PairedClients, options: argparse.Namespace) -> None:
    """Print the ratio of rounds and where the difference goes."""
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = (Runner(fedmpa, pairs, options, folder) for fedmpa in (False, True))
        for round_ in range(options.rounds + 1):
            for runner in (plain, ours) if round_ % 2 else (ours, plain):
                runner.advance()
            if round_ == 0:  # it has no bank yet, and warms caches up
                ours.strategy.seconds.clear()  # type: ignore[union-attr]
    fedavg, fedmpa = (np.array(runner.clock.rounds[1:]) for runner in (plain, ours))
    low, ratio, high = paired_ratio(fedmpa, fedavg)
    extra = (fedmpa - fedavg).mean()
    parts = {part: seconds / options.rounds for part, seconds in ours.strategy.seconds.items()}  # type: ignore[union-attr]
    parts["the rest (backward pass of the losses, noise of the clock)"] = extra - sum(parts.values())
    print(
        f"local epochs {options.local_epochs}, batch {options.batch_size}, {len(pairs.train)} records, "
        f"{options.rounds} pairs of rounds   FedAvg {fedavg.mean():.2f} s   FedMPA {fedmpa.mean():.2f} s   "
        f"ratio {ratio:.3f} [{low:.3f}, {high:.3f}]"
    )
    for part, seconds in parts.items():
        print(f"    {part:60s} {seconds:7.3f} s a round   {seconds / fedavg.mean():+.1%} of a FedAvg round")


def main() -> None:
    """Measure at the paper's five local epochs and at the three of the CPU schedule."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1200, help="training records over all clients, about")
    parser.add_argument(
        "--rounds", type=int, default=8, help="pairs of rounds measured, after one to warm up"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--local-epochs", type=int, nargs="+", default=[5, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    data_dir = os.environ.get("DATA_DIR")
    print(f"data: {'pairs from DATA_DIR' if data_dir else 'random tensors'}")
    pairs = real_pairs(Path(data_dir)) if data_dir else random_pairs(options.records)
    pairs = replace(pairs, train=thinned(pairs.train, options.records))
    for local_epochs in options.local_epochs:
        measure(pairs, argparse.Namespace(**{**vars(options), "local_epochs": local_epochs}))


if __name__ == "__main__":
    main()
