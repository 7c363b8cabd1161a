"""Segments of a session: what belongs to which, and that nothing is lost or used twice."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsynth.data.edaic.layout import Utterance
from fedsynth.data.edaic.segments import Segment, build_segments
from fedsynth.errors import ConfigError, DataError

SETTINGS = {"segment_seconds": 2.0, "frame_pool": 10, "max_utterances": 3}


def numbered_frames(num: int) -> Tensor:
    """Two features: the number of the frame, and one."""
    return torch.stack([torch.arange(num, dtype=torch.float32), torch.ones(num)], dim=1)


def cut(num_frames: int, times: list[tuple[float, float]], **changes: float) -> list[Segment]:
    """Segments of utterances whose text vector is their place in the list."""
    utterances = [Utterance(start, end, f"text {index}") for index, (start, end) in enumerate(times)]
    text = torch.arange(len(times), dtype=torch.float32)[:, None]
    return build_segments(numbered_frames(num_frames), utterances, text, **(SETTINGS | changes))


def texts(segments: list[Segment]) -> list[list[int]]:
    return [segment.text[:, 0].int().tolist() for segment in segments]


def test_an_utterance_joins_until_the_segment_would_be_too_long() -> None:
    segments = cut(500, [(0.1, 0.8), (1.0, 2.1), (2.2, 3.0), (3.1, 4.0)])
    assert texts(segments) == [[0, 1], [2, 3]]
    assert [(segment.start, segment.end) for segment in segments] == [(0.1, 2.1), (2.2, 4.0)]


def test_a_full_segment_takes_no_more_utterances() -> None:
    times = [(0.2 * k, 0.2 * k + 0.1) for k in range(5)]
    assert texts(cut(500, times)) == [[0, 1, 2], [3, 4]]


def test_audio_steps_are_means_and_the_last_one_covers_what_is_left() -> None:
    (segment,) = cut(500, [(1.0, 1.25)])
    expected = torch.tensor([[104.5, 1], [114.5, 1], [122.0, 1]])  # frames 100–109, 110–119, 120–124
    torch.testing.assert_close(segment.audio, expected, rtol=0, atol=0)


def test_pooling_is_exact_for_large_values() -> None:
    # 2²⁴ + 1 is no float32: summed in float32 the mean of ten such frames would be off.
    frames = torch.full((1000, 1), 16777215.0)
    (segment,) = build_segments(
        frames,
        [Utterance(0, 10, "")],
        torch.zeros(1, 1),
        segment_seconds=10,
        frame_pool=1000,
        max_utterances=1,
    )
    assert segment.audio.item() == 16777215.0


def test_a_long_utterance_is_cut_into_equal_parts_that_keep_its_vector() -> None:
    segments = cut(1000, [(1.0, 6.0)])
    assert texts(segments) == [[0], [0], [0]]
    lengths = [round(100 * (segment.end - segment.start)) for segment in segments]
    assert sum(lengths) == 500
    assert max(lengths) - min(lengths) <= 1


def test_silence_between_segments_belongs_to_none_and_within_one_it_stays() -> None:
    segments = cut(1000, [(0.0, 0.5), (1.0, 1.5), (5.0, 5.5)])
    assert [(segment.start, segment.end) for segment in segments] == [(0.0, 1.5), (5.0, 5.5)]


def test_overlapping_segments_are_divided_where_the_later_one_begins() -> None:
    segments = cut(1000, [(0.0, 1.9), (1.5, 3.0)])
    assert [(segment.start, segment.end) for segment in segments] == [(0.0, 1.5), (1.5, 3.0)]


def test_utterances_are_taken_by_beginning_and_an_end_behind_the_audio_is_moved() -> None:
    segments = cut(300, [(2.5, 9.0), (0.0, 1.0)])
    assert texts(segments) == [[1], [0]]
    assert segments[-1].end == 3.0


def test_an_utterance_without_length_gets_one_frame() -> None:
    (segment,) = cut(100, [(0.5, 0.5)])
    torch.testing.assert_close(segment.audio, torch.tensor([[50.0, 1.0]]))


@st.composite
def sessions(draw: st.DrawFn) -> tuple[int, list[tuple[float, float]]]:
    """Any transcript inside its audio: overlaps, empty utterances, long ones, any order."""
    num_frames = draw(st.integers(50, 1500))
    # Room at the end, so that utterances of one frame can be moved apart.
    begins = draw(st.lists(st.integers(0, num_frames - 40), min_size=1, max_size=15))
    lengths = draw(st.lists(st.integers(0, 600), min_size=len(begins), max_size=len(begins)))
    return num_frames, [(b / 100, (b + n) / 100) for b, n in zip(begins, lengths, strict=True)]


@given(
    session=sessions(),
    segment_seconds=st.sampled_from([0.5, 2.0, 10.0]),
    frame_pool=st.integers(1, 30),
    max_utterances=st.integers(1, 6),
)
def test_frames_are_disjoint_ordered_and_every_utterance_is_used(
    session: tuple[int, list[tuple[float, float]]],
    segment_seconds: float,
    frame_pool: int,
    max_utterances: int,
) -> None:
    num_frames, times = session
    segments = cut(
        num_frames,
        times,
        segment_seconds=segment_seconds,
        frame_pool=frame_pool,
        max_utterances=max_utterances,
    )
    spans = [(round(100 * segment.start), round(100 * segment.end)) for segment in segments]
    for first, last in spans:
        assert 0 <= first < last <= num_frames
        assert last - first <= round(100 * segment_seconds)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert set().union(*map(set, texts(segments))) == set(range(len(times)))
    for segment, (first, last) in zip(segments, spans, strict=True):
        assert segment.audio.shape == (-(-(last - first) // frame_pool), 2)
        assert 1 <= len(segment.text) <= max_utterances
        # The mean of all steps, weighted by their frames, is the mean of the frames of the span.
        weight = torch.full((len(segment.audio),), float(frame_pool))
        weight[-1] = (last - first) - frame_pool * (len(segment.audio) - 1)
        mean = (segment.audio[:, 0] * weight).sum() / (last - first)
        assert mean.item() == pytest.approx((first + last - 1) / 2, rel=1e-5)


def test_an_utterance_that_is_not_long_is_in_one_segment_only() -> None:
    segments = cut(2000, [(0.5 * k, 0.5 * k + 0.4) for k in range(30)])
    assert list(itertools.chain(*texts(segments))) == list(range(30))


@pytest.mark.parametrize(
    "change",
    [
        {"segment_seconds": 0.0},
        {"segment_seconds": float("inf")},
        {"segment_seconds": float("nan")},
        {"frame_pool": 0},
        {"max_utterances": 0},
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        cut(100, [(0.0, 0.5)], **change)


@pytest.mark.parametrize(
    ("num_frames", "times", "message"),
    [
        (0, [(0.0, 0.5)], "Audio frames"),
        (100, [], "at least one utterance"),
        (100, [(0.5, 0.2)], "0.5 to 0.2"),
        (100, [(-0.5, 0.2)], "-0.5"),
        (100, [(0.0, 0.2), (1.0, 1.2)], "Utterance 2 begins at 1.0"),
        (100, [(0.99, 1.0)] * 7, "do not fit"),
    ],
)
def test_impossible_sessions_are_refused(
    num_frames: int, times: list[tuple[float, float]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        cut(num_frames, times)


def test_text_of_another_length_is_refused() -> None:
    with pytest.raises(DataError, match="1 utterances and 2 vectors"):
        build_segments(numbered_frames(100), [Utterance(0, 1, "a")], torch.zeros(2, 3), **SETTINGS)
