"""Participants to clients: nobody twice, both classes everywhere, statistics of the training people alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.data.edaic.clients import build_speech_clients, partition_participants
from fedsynth.data.edaic.labels import Participant
from fedsynth.data.edaic.segments import Segment
from fedsynth.data.paired import GLOBAL, SPLITS
from fedsynth.data.speech import SpeechClients
from fedsynth.errors import ArtifactError, ConfigError, DataError

SIZES = {"train": 16, "val": 4, "test": 6}


def people() -> dict[int, Participant]:
    """Numbers from 300, alternating classes."""
    splits = [split for split, size in SIZES.items() for _ in range(size)]
    return {300 + i: Participant(300 + i, split, i % 2, 4 + 10 * (i % 2)) for i, split in enumerate(splits)}


def sessions(seed: int = 0) -> dict[int, list[Segment]]:
    """One to three segments of three to seven frames and one to four utterances; descriptor 2 is constant."""
    random = torch.Generator().manual_seed(seed)
    found: dict[int, list[Segment]] = {}
    for number in people():
        for i in range(1 + number % 3):
            t, u = 3 + (number + i) % 5, 1 + (number + i) % 4
            moving = torch.randn(t, 2, generator=random) * 3 + number / 100
            audio = torch.cat([moving, torch.full((t, 1), 0.1)], dim=1)
            text = torch.randn(u, 5, generator=random)
            found.setdefault(number, []).append(Segment(audio, text, float(i), i + 1.0))
    return found


def made(segments: Mapping[int, list[Segment]] | None = None, **changes: object) -> SpeechClients:
    options = {"rule": "phq_binary", "num_clients": 3, "alpha": 0.5, "min_positive": 2, "partition_seed": 1}
    return build_speech_clients(segments or sessions(), people(), **{**options, **changes})[0]  # type: ignore[arg-type]


@given(
    num_clients=st.integers(1, 6),
    min_positive=st.integers(1, 4),
    spare=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    alpha=st.sampled_from([0.01, 0.5, 10.0]),
    seed=st.integers(0, 1000),
)
def test_every_client_gets_enough_people_of_each_class(
    num_clients: int, min_positive: int, spare: tuple[int, int], alpha: float, seed: int
) -> None:
    labels = np.repeat([0, 1], [num_clients * min_positive + extra for extra in spare])
    client = partition_participants(
        labels, num_clients, alpha, min_positive, torch.Generator().manual_seed(seed)
    )
    assert client.shape == labels.shape
    assert set(client.tolist()) == set(range(num_clients))
    for label in (0, 1):
        assert np.bincount(client[labels == label], minlength=num_clients).min() >= min_positive
    again = partition_participants(
        labels, num_clients, alpha, min_positive, torch.Generator().manual_seed(seed)
    )
    assert (client == again).all()


def test_small_alpha_is_more_uneven_than_large() -> None:
    labels = np.repeat([0, 1], [126, 37])

    def spread(alpha: float) -> float:
        draws = [
            partition_participants(labels, 4, alpha, 3, torch.Generator().manual_seed(seed))
            for seed in range(20)
        ]
        return float(np.mean([np.bincount(draw[labels == 1], minlength=4).std() for draw in draws]))

    assert spread(0.2) > 2 * spread(20.0)


@pytest.mark.parametrize(
    ("labels", "num_clients", "min_positive", "message"),
    [
        (
            [0] * 20 + [1] * 5,
            2,
            3,
            r"2 clients .* 3 participants .* need 6 who are depressed, but only 5 of 25",
        ),
        ([1] * 20 + [0] * 5, 2, 3, r"need 6 who are not depressed, but only 5 of 25"),
        ([0, 1], 0, 1, r"num_clients and min_depressed_per_client must be ≥ 1, got 0 and 1"),
        ([0, 1], 1, 0, r"got 1 and 0"),
    ],
)
def test_an_impossible_partition_gives_the_numbers(
    labels: list[int], num_clients: int, min_positive: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        partition_participants(np.array(labels), num_clients, 0.5, min_positive, torch.Generator())


def test_a_third_class_is_refused() -> None:
    with pytest.raises(DataError, match="0 or 1"):
        partition_participants(np.array([0, 1, 2]), 1, 0.5, 1, torch.Generator())


def test_nobody_is_in_two_splits_or_at_two_clients() -> None:
    clients = made()
    seen = {split: set(getattr(clients, split).participant.tolist()) for split in SPLITS}
    assert sum(map(len, seen.values())) == len(set().union(*seen.values())) == len(people())
    train = clients.train
    pairs = set(zip(train.participant.tolist(), train.client.tolist(), strict=True))
    assert len(pairs) == SIZES["train"]
    assert {client for _, client in pairs} == {0, 1, 2}
    for split in (clients.val, clients.test):
        assert (split.client == GLOBAL).all()


def test_rows_hold_the_standardized_segments_and_zeros_behind_them() -> None:
    segments = sessions()
    clients = made(segments)
    frames = torch.cat([s.audio for n in people() for s in segments[n] if people()[n].split == "train"])
    mean, std = frames.double().mean(0), frames.double().std(0, correction=0)
    std[2] = 1.0  # the constant descriptor is only centered
    for split in SPLITS:
        rows = getattr(clients, split)
        assert int(rows.audio_length.max()) == rows.audio.shape[1]
        for i in range(len(rows)):
            segment = segments[int(rows.participant[i])][int(rows.segment[i])]
            t, u = int(rows.audio_length[i]), int(rows.text_length[i])
            torch.testing.assert_close(rows.audio[i, :t], ((segment.audio - mean) / std).float())
            assert torch.equal(rows.text[i, :u], segment.text)
            assert (rows.audio[i, t:] == 0).all()
            assert (rows.text[i, u:] == 0).all()
            assert int(rows.label[i]) == people()[int(rows.participant[i])].phq_binary


def test_training_frames_have_mean_zero_and_variance_one_and_test_people_change_nothing() -> None:
    segments = sessions()
    first = made(segments)
    valid = torch.arange(first.train.audio.shape[1]) < first.train.audio_length[:, None]
    frames = first.train.audio[valid].double()
    # float32 values of size about 3: rounding errors of 1e-7 each
    torch.testing.assert_close(frames.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    wanted = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(frames.var(0, correction=0), wanted, atol=1e-5, rtol=0)
    for number, person in people().items():
        if person.split != "train":
            segments[number] = [dataclasses.replace(s, audio=s.audio * 100) for s in segments[number]]
    assert torch.equal(made(segments).train.audio, first.train.audio)


def test_the_partition_depends_on_its_seed_and_not_on_the_order_of_people() -> None:
    first = made()
    assert not torch.equal(made(partition_seed=2).train.client, first.train.client)
    backwards = dict(reversed(people().items()))
    other, _ = build_speech_clients(
        sessions(), backwards, rule="phq_binary", num_clients=3, alpha=0.5, min_positive=2, partition_seed=1
    )
    for name, tensor in first.to_tensors().items():
        assert torch.equal(other.to_tensors()[name], tensor), name


def test_the_report_counts_people_and_segments() -> None:
    clients = made(warnings=["something odd"])
    report = clients.report
    assert report["warnings"] == ["something odd"]
    for split, size in SIZES.items():
        counts = report["splits"][split]
        assert sum(counts["participants_by_class"].values()) == size
        assert sum(counts["segments_by_class"].values()) == len(getattr(clients, split))
    for kind, total in (("participants_by_class", SIZES["train"]), ("segments_by_class", len(clients.train))):
        assert sum(n for client in report["clients"] for n in client[kind].values()) == total
    assert all(min(client["participants_by_class"].values()) >= 2 for client in report["clients"])


def test_tensors_and_back() -> None:
    clients = made()
    back = SpeechClients.from_tensors(clients.to_tensors(), clients.report)
    assert all(torch.equal(back.to_tensors()[name], tensor) for name, tensor in clients.to_tensors().items())
    incomplete = clients.to_tensors()
    del incomplete["val/text"]
    with pytest.raises(ArtifactError, match="val/text"):
        SpeechClients.from_tensors(incomplete)


def test_people_without_segments_and_splits_without_a_class_are_refused() -> None:
    segments = sessions()
    segments[303] = []
    with pytest.raises(DataError, match=r"do not agree: \[303\]"):
        made(segments)
    cases = {n: p for n, p in people().items() if p.split != "test" or p.phq_binary}
    with pytest.raises(DataError, match=r"test split must hold both classes; its 3 participants .*\[1\]"):
        build_speech_clients(
            {n: s for n, s in sessions().items() if n in cases}, cases,
            rule="phq_binary", num_clients=3, alpha=0.5, min_positive=2, partition_seed=1,
        )  # fmt: skip
