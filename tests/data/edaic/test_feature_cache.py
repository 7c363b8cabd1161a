"""The large files are parsed once; whatever changes the result makes them parsed again."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedsynth.data.edaic import features as features_module
from fedsynth.data.edaic import sessions
from fedsynth.data.edaic.features import FeatureSettings, read_segments
from fedsynth.data.edaic.layout import find_layout
from fedsynth.data.edaic.problems import Problems
from fedsynth.data.edaic.segments import Segment
from fedsynth.data.source_files import digest_of
from tiny_edaic import NUMBERS, change, features, transcript

SETTINGS = FeatureSettings("egemaps", segment_seconds=2.0, frame_pool=10, max_utterances=2)


class LengthEncoder:
    """A text's vector is its number of characters, times `scale`."""

    name = "length"
    dim = 2

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def encode(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[len(text) * self.scale, 1.0] for text in texts])


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The feature files that were really parsed."""
    seen: list[Path] = []
    real = sessions.read_opensmile

    def counted(path: Path, kind: str) -> Tensor:
        seen.append(path)
        return real(path, kind)

    monkeypatch.setattr(sessions, "read_opensmile", counted)
    return seen


def read(
    corpus: Path,
    cache: Path | None,
    settings: FeatureSettings = SETTINGS,
    encoder: LengthEncoder | None = None,
    numbers: Sequence[int] = NUMBERS,
    problems: Problems | None = None,
) -> dict[int, list[Segment]]:
    layout = find_layout(corpus)
    files = [path for number in numbers for path in (features(corpus, number), transcript(corpus, number))]
    return read_segments(
        layout, numbers, settings, encoder or LengthEncoder(), problems or Problems(),
        digests={path: digest_of(path, "sha256") for path in files}, cache_dir=cache,
    )  # fmt: skip


def same(first: dict[int, list[Segment]], second: dict[int, list[Segment]]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(a.audio, b.audio) and torch.equal(a.text, b.text) and (a.start, a.end) == (b.start, b.end)
        for number in first
        for a, b in zip(first[number], second[number], strict=True)
    )


def test_the_second_reading_parses_nothing_and_gives_the_same(
    corpus: Path, tmp_path: Path, parsed: list[Path]
) -> None:
    change(transcript(corpus, 301), lambda text: text + "3.9,4.0, ,0.9\n")
    problems, again = Problems(), Problems()
    first = read(corpus, tmp_path / "cache", problems=problems)
    assert len(parsed) == len(NUMBERS)
    second = read(corpus, tmp_path / "cache", problems=again)
    assert len(parsed) == len(NUMBERS)
    assert same(first, second)
    assert [len(first[number]) for number in NUMBERS] == [2] * len(NUMBERS)
    assert problems.warnings == again.warnings != {}


def test_without_a_cache_folder_everything_is_parsed(corpus: Path, parsed: list[Path]) -> None:
    assert same(read(corpus, None), read(corpus, None))
    assert len(parsed) == 2 * len(NUMBERS)


def test_a_changed_file_is_parsed_again_and_no_other(
    corpus: Path, tmp_path: Path, parsed: list[Path]
) -> None:
    read(corpus, tmp_path / "cache")
    parsed.clear()
    change(transcript(corpus, 302), lambda text: text.replace("sleep", "sleep at all"))
    change(features(corpus, 303), lambda text: text.replace(";0.030000;", ";0.030000;7", 1))
    read(corpus, tmp_path / "cache")
    assert parsed == [features(corpus, 302), features(corpus, 303)]


@pytest.mark.parametrize(
    "change_of_settings", [{"segment_seconds": 1.0}, {"frame_pool": 5}, {"max_utterances": 1}]
)
def test_other_settings_are_other_segments(
    corpus: Path, tmp_path: Path, parsed: list[Path], change_of_settings: dict[str, float]
) -> None:
    first = read(corpus, tmp_path / "cache")
    other = read(corpus, tmp_path / "cache", dataclasses.replace(SETTINGS, **change_of_settings))  # type: ignore[arg-type]
    assert len(parsed) == 2 * len(NUMBERS)
    assert not same({301: first[301][:1]}, {301: other[301][:1]})


def test_an_encoder_that_changed_under_its_name_is_noticed(
    corpus: Path, tmp_path: Path, parsed: list[Path]
) -> None:
    read(corpus, tmp_path / "cache")
    found = read(corpus, tmp_path / "cache", encoder=LengthEncoder(scale=2.0))
    assert len(parsed) == 2 * len(NUMBERS)
    assert found[301][0].text[0, 0] == 2 * len("how have you been")


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_file_is_made_anew_with_a_warning(
    corpus: Path, tmp_path: Path, parsed: list[Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = read(corpus, tmp_path / "cache", numbers=[301])
    (stored,) = (tmp_path / "cache").iterdir()
    content = stored.read_bytes()
    damaged = {"cut": content[:-5], "flipped": content[:-1] + bytes([content[-1] ^ 1]), "emptied": b""}[
        damage
    ]
    stored.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert same(read(corpus, tmp_path / "cache", numbers=[301]), first)
    assert f"{stored.name} is damaged" in caplog.text
    assert len(parsed) == 2
    assert stored.read_bytes() == content


def test_what_has_a_fault_is_not_kept(corpus: Path, tmp_path: Path) -> None:
    change(features(corpus, 301), lambda text: text.replace(";0.030000;", ";0.030000;nan", 1))
    for _ in range(2):
        problems = Problems()
        assert 301 not in read(corpus, tmp_path / "cache", problems=problems)
        assert sum(map(len, problems.faults.values())) == 1


def test_a_session_that_cannot_be_cut_is_a_fault(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsynth.errors import DataError

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise DataError("no room")

    monkeypatch.setattr(features_module, "build_segments", refuse)
    problems = Problems()
    assert read(corpus, None, numbers=[301], problems=problems) == {}
    assert problems.faults == {"session that cannot be cut into segments": ["301 (no room)"]}


def test_a_full_disk_is_reported_and_the_segments_are_used(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert list(read(corpus, tmp_path / "file" / "cache", numbers=[301])) == [301]
    assert "Cannot keep parsed features" in caplog.text


def test_a_cache_that_is_damaged_as_a_whole_is_reported_once(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read(corpus, tmp_path / "cache")
    for stored in (tmp_path / "cache").iterdir():
        stored.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert list(read(corpus, tmp_path / "cache")) == NUMBERS
    assert caplog.text.count("is damaged") == 1
    assert "Further ones are not reported" in caplog.text


def test_another_order_of_descriptors_is_a_fault_with_and_without_the_cache(
    corpus: Path, tmp_path: Path
) -> None:
    change(features(corpus, 305), lambda text: text.replace("f0;f1", "f1;f0"))
    for _ in range(2):
        problems = Problems()
        read(corpus, tmp_path / "cache", problems=problems)
        assert list(problems.faults) == ["columns in another order"]
        assert problems.faults["columns in another order"][0].startswith("305")
