"""Build the pseudo-pairs of a federation from images and beats (FedDP-PALD Eq. 8)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from fedsynth.data.medmnist import MedMNISTData
from fedsynth.data.mitbih import SAME_PERSON, Beats, normalize_beats
from fedsynth.data.paired import GLOBAL, SPLITS, PairedClients, PairedSplit, PairingStatistics, standardize
from fedsynth.data.partition import assign_records, data_report, dirichlet_partition, split_records
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Pairing:
    """Pairs of one split as indices."""

    beat: Int64[np.ndarray, " n"]
    borrowed: list[dict[str, int]]


def build_pairs(
    images: MedMNISTData,
    beats: Beats,
    *,
    num_clients: int,
    dirichlet_alpha: float,
    min_records: int,
    fractions: Sequence[float],
    split_seed: int,
    partition_seed: int,
    pairing_seed: int,
) -> PairedClients:
    """Pair every image with a beat of its class, inside its split and client.

    Implements FedDP-PALD Eq. (8): (x^I_i, x^E_{π_c(i)}, y = c). Images keep their official splits; training
    images go to clients by class-wise Dirichlet, ECG records to splits and clients as wholes. π_c runs
    through a seeded permutation of the client's beats of class c and starts over when they are used up. A
    client without beats of class c borrows those of the client that has most of them; further such clients
    take the other holders in turn, those with most beats first. This is logged and reported, and means that
    such an ECG record is no longer confined to one client. Validation and test are global.

    A beat, and all the more a person, can be in several pairs: see ``report["splits"][...]["beat_uses"]``. A
    guarantee for one pair is not one for one person.

    Args:
        images: Binary greyscale images.
        beats: Labelled beats.
        num_clients: K.
        dirichlet_alpha: α of the image partition.
        min_records: Least number of training images per client.
        fractions: Shares of ECG records in train, validation, test.
        split_seed: Seed of the record-level split.
        partition_seed: Seed of who holds which images and records.
        pairing_seed: Seed of π_c.

    Raises:
        ConfigError: If a value is impossible, e.g. more clients than images to go round.
        DataError: If the images are multi-label, or a class is missing from a split.
    """
    if images.labels["train"].shape[1] != 1:
        num_labels = images.labels["train"].shape[1]
        raise DataError(
            f"Pairing needs binary images, got {num_labels} labels per image. Use PneumoniaMNIST."
        )
    if num_clients < 1:
        raise ConfigError(f"num_clients must be ≥ 1, got {num_clients}. The paper uses 5.")
    split_of = dict(zip(SPLITS, _split(beats, fractions, split_seed), strict=True))
    image_label = {split: images.labels[split][:, 0] for split in SPLITS}
    image_client = {split: np.full(len(image_label[split]), GLOBAL) for split in SPLITS}
    image_client["train"] = dirichlet_partition(
        *(image_label["train"], num_clients, dirichlet_alpha, generator(partition_seed, "image-partition")),
        min_records=min_records,
    )
    in_train = np.isin(beats.record, split_of["train"])
    record_client = assign_records(
        *(
            beats.record[in_train],
            beats.label[in_train],
            num_clients,
            generator(partition_seed, "record-assignment"),
        ),
        groups=SAME_PERSON,
    )
    beat_client = np.full(len(beats.record), GLOBAL)
    beat_client[in_train] = [record_client[record] for record in beats.record[in_train].tolist()]
    normalized = normalize_beats(beats.window)
    statistics = _statistics(images, normalized[in_train])
    splits, pairings = {}, {}
    for split in SPLITS:
        available = np.isin(beats.record, split_of[split])
        pairings[split] = _pair(
            image_label[split],
            image_client[split],
            beats.label,
            beat_client,
            available,
            (pairing_seed, split),
        )
        splits[split] = _to_split(
            images.images[split],
            image_label[split],
            image_client[split],
            beats,
            normalized,
            pairings[split],
            statistics,
        )
    report = _report(beats, splits, pairings, split_of, record_client, beat_client, statistics, num_clients)
    return PairedClients(splits["train"], splits["val"], splits["test"], statistics, report)


def _split(beats: Beats, fractions: Sequence[float], seed: int) -> tuple[tuple[int, ...], ...]:
    random = generator(seed, "record-split")
    return split_records(beats.record, beats.label, fractions=fractions, generator=random, groups=SAME_PERSON)


def _statistics(images: MedMNISTData, train_beats: np.ndarray) -> PairingStatistics:
    # fidelity: ecg-statistics (scalars, the literal reading)
    pixels = images.images["train"]
    values = (
        pixels.mean() / 255,
        pixels.std() / 255,
        train_beats.mean(dtype=float),
        train_beats.std(dtype=float),
    )
    if not values[3] > 0:
        raise DataError(
            f"Every training beat is flat (standard deviation {values[3]} after normalization); such beats "
            "cannot be standardized. Check the .dat files of the ECG records in DATA_DIR/mitdb."
        )
    return PairingStatistics(*(torch.tensor(float(value), dtype=torch.float64) for value in values))


def _pair(
    image_label: np.ndarray,
    image_client: np.ndarray,
    beat_label: np.ndarray,
    beat_client: np.ndarray,
    available: np.ndarray,
    stream: tuple[int, str],
) -> _Pairing:
    """π_c of Eq. (8) for one split; `available` marks the beats of this split."""
    seed, split = stream
    beat = np.empty(len(image_label), dtype=np.int64)
    borrowed = []
    for label in np.unique(image_label).tolist():
        of_class = available & (beat_label == label)
        if not of_class.any():
            raise DataError(
                f"No beat of class {label} in the {split} split. Use another split seed or label_rule."
            )
        holders, counts = np.unique(beat_client[of_class], return_counts=True)
        donors = holders[np.argsort(-counts, kind="stable")].tolist()
        borrowers: list[int] = []
        for client in np.unique(image_client[image_label == label]).tolist():
            pairs = np.flatnonzero((image_client == client) & (image_label == label))
            owner = client
            if client not in holders:
                owner = donors[len(borrowers) % len(donors)]  # fidelity: borrowed-beats
                borrowers.append(client)
                borrowed.append({"client": client, "label": label, "donor": owner, "pairs": len(pairs)})
            own = np.flatnonzero(of_class & (beat_client == owner))
            order = torch.randperm(
                len(own), generator=generator(seed, "pairing", split, client, label)
            ).numpy()
            beat[pairs] = own[order[np.arange(len(pairs)) % len(own)]]  # fidelity: pairing-cycle
        if borrowers:
            logger.warning(
                "Clients without beats of class %d in %s borrow those of others (see the data report): %s.",
                *(label, split, ", ".join(map(str, borrowers))),
            )
    return _Pairing(beat, borrowed)


def _to_split(
    pixels: np.ndarray,
    label: np.ndarray,
    client: np.ndarray,
    beats: Beats,
    normalized: np.ndarray,
    pairing: _Pairing,
    statistics: PairingStatistics,
) -> PairedSplit:
    """Tensors of one split."""
    return PairedSplit(
        # Eq. (6).
        image=standardize(pixels[:, None] / np.float32(255), statistics.image_mean, statistics.image_std),
        # Eq. (7), second stage.
        ecg=standardize(normalized[pairing.beat][:, None], statistics.ecg_mean, statistics.ecg_std),
        label=torch.from_numpy(label.copy()),
        client=torch.from_numpy(client.copy()),
        image_id=torch.arange(len(label)),
        beat_id=torch.from_numpy(pairing.beat),
        record_id=torch.from_numpy(beats.record[pairing.beat]),
    )


def _report(
    beats: Beats,
    splits: dict[str, PairedSplit],
    pairings: dict[str, _Pairing],
    split_of: dict[str, tuple[int, ...]],
    record_client: dict[int, int],
    beat_client: np.ndarray,
    statistics: PairingStatistics,
    num_clients: int,
) -> dict[str, Any]:
    symbols, counts = np.unique(beats.symbol, return_counts=True)
    train = splits["train"]
    images = data_report(train.label.numpy(), train.client.numpy(), num_clients)
    held = data_report(beats.label, beat_client, num_clients)
    return {
        "num_clients": num_clients,
        "statistics": {name: float(value) for name, value in vars(statistics).items()},
        "beats_by_symbol": dict(zip(symbols.tolist(), counts.tolist(), strict=True)),
        "dropped_beats": dict(beats.dropped),
        "borrowed_beats": [entry for pairing in pairings.values() for entry in pairing.borrowed],
        "splits": {split: _split_report(beats, splits[split], split_of[split]) for split in SPLITS},
        "clients": [
            {
                "images_by_class": images[client],
                "beats_by_class": held[client],
                "records": [record for record, owner in record_client.items() if owner == client],
            }
            for client in range(num_clients)
        ],
    }


def _split_report(beats: Beats, split: PairedSplit, records: tuple[int, ...]) -> dict[str, Any]:
    """Counts of one split; `beat_uses` says how many pairs share a beat, `record_uses` a whole ECG record."""
    label = beats.label[np.isin(beats.record, records)]
    uses = split.beat_id.unique(return_counts=True)[1]
    record_uses = split.record_id.unique(return_counts=True)[1]
    return {
        "records": list(records),
        "images_by_class": {str(c): int((split.label == c).sum()) for c in (0, 1)},
        "beats_by_class": {str(c): int((label == c).sum()) for c in (0, 1)},
        "beat_uses": {"max": int(uses.max()), "mean": float(uses.double().mean())},
        "record_uses": {"max": int(record_uses.max()), "mean": float(record_uses.double().mean())},
    }
