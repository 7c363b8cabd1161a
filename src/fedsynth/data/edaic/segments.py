"""Cut a session into segments of whole utterances: the records of FedMPA's speech classifier.

A segment holds the pooled audio frames from the beginning of its first utterance to the end of its last one,
pauses between them included, and one text vector per utterance. Silence between two segments belongs to none.
The label of every segment is that of its participant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from fedsynth.data.edaic.layout import FRAME_SECONDS, Utterance
from fedsynth.errors import ConfigError, DataError

FRAMES_PER_SECOND = round(1 / FRAME_SECONDS)


@dataclass(frozen=True)
class Segment:
    """Consecutive utterances of one session, interviewer and participant mixed."""

    audio: Float32[Tensor, "t f"]
    """Means over `frame_pool` frames each, the last one over what is left; t ≥ 1."""
    text: Float32[Tensor, "u d"]
    """One vector per utterance, in order of their beginnings; u ≥ 1."""
    start: float
    """Seconds from the beginning of the session to the first frame."""
    end: float
    """Seconds to the end of the last frame."""


@dataclass(frozen=True)
class _Piece:
    """Frames [first, last) of one utterance, or of a part of a long one."""

    first: int
    last: int
    utterance: int


def build_segments(
    frames: Float32[Tensor, "frames f"],
    utterances: Sequence[Utterance],
    text: Float32[Tensor, "utterances d"],
    *,
    segment_seconds: float,
    frame_pool: int,
    max_utterances: int,
) -> list[Segment]:
    """Segments of one session, in time order; no audio frame is in two of them and every utterance in one.

    An utterance joins the segment before it as long as that then spans at most `segment_seconds` and holds at
    most `max_utterances`. One longer than `segment_seconds` is cut into equal parts, each of which keeps its
    text vector. Utterances are taken in the order of their beginnings; where two segments overlap in time, the
    earlier one ends where the later begins. An end behind the audio is moved to its last frame.

    Args:
        frames: Low-level descriptors, 100 per second.
        utterances: The transcript.
        text: One vector per utterance, in the same order.
        segment_seconds: Longest segment, ≥ 0.01 s.
        frame_pool: Frames averaged into one audio step, ≥ 1.
        max_utterances: Most utterances of a segment, ≥ 1.

    Raises:
        ConfigError: For settings out of range.
        DataError: If there is no frame or no utterance, if `text` has another length, or if an utterance ends
            before it begins or begins outside the audio.
    """
    # fidelity: speech-segments
    longest = _checked_length(segment_seconds, frame_pool, max_utterances)
    if frames.ndim != 2 or len(frames) == 0:
        raise DataError(f"Audio frames must be [frames ≥ 1, features], got {tuple(frames.shape)}.")
    if len(utterances) == 0 or len(text) != len(utterances):
        raise DataError(
            f"A session needs at least one utterance and one text vector for each, got {len(utterances)} "
            f"utterances and {len(text)} vectors."
        )
    pieces = _pieces(utterances, len(frames), longest)
    groups = _groups(pieces, longest, max_utterances)
    return [
        Segment(
            audio=_pooled(frames[first:last], frame_pool),
            text=text[[piece.utterance for piece in group]].float(),
            start=first / FRAMES_PER_SECOND,
            end=last / FRAMES_PER_SECOND,
        )
        for group, (first, last) in zip(groups, _frame_ranges(groups, len(frames)), strict=True)
    ]


def _checked_length(segment_seconds: float, frame_pool: int, max_utterances: int) -> int:
    """The longest segment in frames."""
    if not (math.isfinite(segment_seconds) and segment_seconds * FRAMES_PER_SECOND >= 1):
        raise ConfigError(f"segment_seconds must be at least 0.01 (one frame), got {segment_seconds}.")
    for name, value in (("frame_pool", frame_pool), ("max_utterances", max_utterances)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
    return round(segment_seconds * FRAMES_PER_SECOND)


def _pieces(utterances: Sequence[Utterance], num_frames: int, longest: int) -> list[_Piece]:
    """Utterances in frames, the long ones cut, by beginning."""
    pieces = []
    for index, utterance in enumerate(utterances):
        if not (0 <= utterance.start <= utterance.end < math.inf):
            raise DataError(
                f"Utterance {index + 1} lasts from {utterance.start} to {utterance.end} s; times must be ≥ 0 "
                "and in order. Check the transcript."
            )
        first = round(utterance.start * FRAMES_PER_SECOND)
        if first >= num_frames:
            raise DataError(
                f"Utterance {index + 1} begins at {utterance.start} s, but the audio has {num_frames} frames "
                f"({num_frames / FRAMES_PER_SECOND} s). Check that transcript and features are of one session."
            )
        last = min(max(round(utterance.end * FRAMES_PER_SECOND), first + 1), num_frames)
        parts = math.ceil((last - first) / longest)
        cuts = [first + (last - first) * part // parts for part in range(parts + 1)]
        pieces += [_Piece(a, b, index) for a, b in itertools.pairwise(cuts)]
    return sorted(pieces, key=lambda piece: piece.first)


def _groups(pieces: list[_Piece], longest: int, max_utterances: int) -> list[list[_Piece]]:
    groups: list[list[_Piece]] = []
    for piece in pieces:
        group = groups[-1] if groups else []
        is_room = 0 < len(group) < max_utterances
        if is_room and max(piece.last, _last(group)) - group[0].first <= longest:
            group.append(piece)
        else:
            groups.append([piece])
    return groups


def _last(group: list[_Piece]) -> int:
    return max(piece.last for piece in group)


def _frame_ranges(groups: list[list[_Piece]], num_frames: int) -> list[tuple[int, int]]:
    """Frames [first, last) of each segment; disjoint, at least one frame each."""
    firsts: list[int] = []
    for group in groups:
        # Full segments that begin in the same frame move apart by one frame each.
        firsts.append(max(group[0].first, firsts[-1] + 1) if firsts else group[0].first)
    if firsts[-1] >= num_frames:
        raise DataError(
            f"{len(groups)} segments do not fit into {num_frames} audio frames: too many utterances begin at "
            "the end of the audio. Check the transcript, or raise max_utterances."
        )
    lasts = [max(_last(group), first + 1) for group, first in zip(groups, firsts, strict=True)]
    ends = [min(last, following) for last, following in zip(lasts, [*firsts[1:], num_frames], strict=True)]
    return list(zip(firsts, ends, strict=True))


def _pooled(frames: Float32[Tensor, "frames f"], frame_pool: int) -> Float32[Tensor, "t f"]:
    """Means over `frame_pool` frames each, the last one over what is left."""
    parts = frames.double().split(frame_pool)
    return torch.stack([part.mean(dim=0) for part in parts]).float()
