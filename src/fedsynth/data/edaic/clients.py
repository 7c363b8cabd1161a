"""From segments of participants to the clients of a federation: partition, standardization, padding."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedsynth.data.edaic.labels import LabelRule, Participant, label_conflicts
from fedsynth.data.edaic.segments import Segment
from fedsynth.data.paired import GLOBAL, SPLITS
from fedsynth.data.partition import data_report, dirichlet_partition
from fedsynth.data.speech import SpeechClients, SpeechSplit
from fedsynth.errors import ConfigError, DataError
from fedsynth.seeding import generator


def partition_participants(
    labels: Int64[np.ndarray, " n"],
    num_clients: int,
    alpha: float,
    min_positive: int,
    generator: torch.Generator,
) -> Int64[np.ndarray, " n"]:
    """Client of each participant: for each class a Dirichlet(alpha) split of its people over the clients.

    FedMPA, "four non-IID speaker-level clients". Of each class every client gets at least `min_positive` people:
    draws without are repeated up to 100 times, then people move from the largest client to the smallest (see
    `fedsynth.data.partition.dirichlet_partition`).

    Args:
        labels: 0 or 1 of each participant.
        num_clients: K ≥ 1.
        alpha: Concentration > 0; small is heterogeneous, large is even.
        min_positive: Least number of people of each class at a client, ≥ 1.
        generator: Source of randomness.

    Raises:
        ConfigError: If an argument is out of range, or there are fewer than K · min_positive people of a class.
    """
    labels = np.asarray(labels)
    check_enough_people(labels, num_clients, min_positive)
    client = np.full(len(labels), GLOBAL)
    # fidelity: speaker-partition
    for label in (0, 1):
        members = np.flatnonzero(labels == label)
        client[members] = dirichlet_partition(
            labels[members], num_clients, alpha, generator, min_records=min_positive
        )
    if (client == GLOBAL).any():
        raise DataError(f"Labels must be 0 or 1, got {sorted(set(labels.tolist()))}.")
    return client


def check_enough_people(labels: Int64[np.ndarray, " n"], num_clients: int, min_positive: int) -> None:
    """Whether `partition_participants` can give every client its people, known before any file is parsed.

    Raises:
        ConfigError: If an argument is below 1, or there are fewer than K · min_positive people of a class.
    """
    if num_clients < 1 or min_positive < 1:
        raise ConfigError(
            "num_clients and min_depressed_per_client must be ≥ 1, got "
            f"{num_clients} and {min_positive}. The paper uses 4 clients."
        )
    for label, kind in ((0, "not depressed"), (1, "depressed")):
        members = int((np.asarray(labels) == label).sum())
        if members < num_clients * min_positive:
            raise ConfigError(
                f"{num_clients} clients with at least {min_positive} participants of each class need "
                f"{num_clients * min_positive} who are {kind}, but only {members} of {len(labels)} are. Lower "
                "num_clients or min_depressed_per_client."
            )


def build_speech_clients(
    segments: Mapping[int, Sequence[Segment]],
    participants: Mapping[int, Participant],
    *,
    rule: LabelRule,
    num_clients: int,
    alpha: float,
    min_positive: int,
    partition_seed: int,
    warnings: Sequence[str] = (),
) -> tuple[SpeechClients, dict[str, Tensor]]:
    """Give the training participants to clients, standardize the audio and pad.

    Audio is standardized per descriptor by mean and population deviation over all pooled frames of the training
    participants; these statistics are pooled over clients without noise, so no guarantee covers them. A
    descriptor that is constant in training is only centered. Frames behind the end stay exactly zero.

    Args:
        segments: Of every participant, at least one.
        participants: The same people; each is in one split.
        rule: Label rule.
        num_clients: K.
        alpha: Of the Dirichlet partition.
        min_positive: See `partition_participants`.
        partition_seed: Decides who goes to which client and nothing else.
        warnings: Of the corpus, for the report.

    Returns:
        The clients; and the statistics "mean" and "std", float64, one value per descriptor.

    Raises:
        ConfigError: If the partition is impossible.
        DataError: If a split lacks a class, or people and segments do not agree.
    """
    _check_people(segments, participants, rule)
    # Ascending numbers: the order of rows in the tables has no say in who goes where.
    training = [number for number in sorted(participants) if participants[number].split == "train"]
    labels = np.array([participants[number].label(rule) for number in training])
    stream = generator(partition_seed, "speaker-partition")
    assigned = partition_participants(labels, num_clients, alpha, min_positive, stream).tolist()
    client_of = dict(zip(training, assigned, strict=True))
    mean, std = _frame_statistics([segment for number in training for segment in segments[number]])
    splits = {
        split: _split(
            [number for number in sorted(participants) if participants[number].split == split],
            *(segments, participants, rule, client_of, mean, std),
        )
        for split in SPLITS
    }
    report = {
        "label_rule": rule,
        "label_rules_disagree": len(label_conflicts(participants)),
        "clients": _client_counts(splits["train"], num_clients),
        "splits": {split: _split_counts(rows) for split, rows in splits.items()},
        "warnings": list(warnings),
    }
    clients = SpeechClients(splits["train"], splits["val"], splits["test"], report)
    return clients, {"mean": mean, "std": std}


def _check_people(
    segments: Mapping[int, Sequence[Segment]], participants: Mapping[int, Participant], rule: LabelRule
) -> None:
    without = sorted(number for number in participants if not segments.get(number))
    if without or set(segments) != set(participants):
        odd = without or sorted(set(segments) - set(participants))
        raise DataError(f"Participants and their segments do not agree: {odd[:10]}.")
    for split in SPLITS:
        people = [person for person in participants.values() if person.split == split]
        classes = {person.label(rule) for person in people}
        if classes != {0, 1}:
            raise DataError(
                f"The {split} split must hold both classes; its {len(people)} participants have the labels "
                f"{sorted(classes)} by the rule {rule}."
            )


def _frame_statistics(
    segments: Sequence[Segment],
) -> tuple[Float64[Tensor, " f"], Float64[Tensor, " f"]]:
    """Mean and population deviation of every descriptor over all frames; 1 for the deviation of a constant."""
    # fidelity: audio-statistics
    frames = torch.cat([segment.audio for segment in segments]).double()
    mean, std = frames.mean(dim=0), frames.std(dim=0, correction=0)
    # The mean of equal float64 numbers can miss them by a rounding error, and dividing by that would be noise.
    constant = frames.amax(dim=0) == frames.amin(dim=0)
    return mean, torch.where(constant, torch.ones_like(std), std)


def _split(
    numbers: Sequence[int],
    segments: Mapping[int, Sequence[Segment]],
    participants: Mapping[int, Participant],
    rule: LabelRule,
    client_of: Mapping[int, int],
    mean: Float64[Tensor, " f"],
    std: Float64[Tensor, " f"],
) -> SpeechSplit:
    rows = [(number, place, segment) for number in numbers for place, segment in enumerate(segments[number])]
    audio = [((segment.audio.double() - mean) / std).float() for _, _, segment in rows]
    text = [segment.text.float() for _, _, segment in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return SpeechSplit(
        audio=pad(audio, batch_first=True),
        audio_length=torch.tensor([len(one) for one in audio]),
        text=pad(text, batch_first=True),
        text_length=torch.tensor([len(one) for one in text]),
        label=torch.tensor([participants[number].label(rule) for number, _, _ in rows]),
        participant=torch.tensor([number for number, _, _ in rows]),
        segment=torch.tensor([place for _, place, _ in rows]),
        client=torch.tensor([client_of.get(number, GLOBAL) for number, _, _ in rows]),
    )


def _people(rows: SpeechSplit) -> tuple[Int64[np.ndarray, " people"], Int64[np.ndarray, " people"]]:
    """Label and client of every participant of a split."""
    first = np.unique(rows.participant.numpy(), return_index=True)[1]
    return rows.label.numpy()[first], rows.client.numpy()[first]


def _client_counts(train: SpeechSplit, num_clients: int) -> list[dict[str, Any]]:
    label, client = _people(train)
    people = data_report(label, client, num_clients)
    records = data_report(train.label.numpy(), train.client.numpy(), num_clients)
    return [
        {"participants_by_class": people[index], "segments_by_class": records[index]}
        for index in range(num_clients)
    ]


def _split_counts(rows: SpeechSplit) -> dict[str, Any]:
    label, _ = _people(rows)
    per_person = np.unique(rows.participant.numpy(), return_counts=True)[1].tolist()
    return {
        "participants_by_class": {str(c): int((label == c).sum()) for c in (0, 1)},
        "segments_by_class": {str(c): int((rows.label == c).sum()) for c in (0, 1)},
        "segments_per_participant": {
            "min": min(per_person),
            "median": statistics.median(per_person),
            "max": max(per_person),
        },
        "longest_audio": int(rows.audio_length.max()),
        "longest_text": int(rows.text_length.max()),
    }
