"""Segments of every participant: parsed once, then kept beside the digests of the files they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsynth.data import text_encoders
from fedsynth.data.edaic import layout as layout_module
from fedsynth.data.edaic import segments as segments_module
from fedsynth.data.edaic import sessions as sessions_module
from fedsynth.data.edaic import tables as tables_module
from fedsynth.data.edaic.check import warn_of_left_out_rows
from fedsynth.data.edaic.layout import CorpusLayout
from fedsynth.data.edaic.problems import Problems
from fedsynth.data.edaic.segment_cache import SegmentCache
from fedsynth.data.edaic.segments import Segment, build_segments
from fedsynth.data.edaic.sessions import check_same_columns, read_session
from fedsynth.data.progress import tracked
from fedsynth.data.text_encoders import TextEncoder
from fedsynth.errors import DataError

_PROBE = ["I have not been sleeping well.", "how are you doing today"]


@dataclass(frozen=True)
class FeatureSettings:
    """What is made of a session."""

    audio_features: str
    """"egemaps" or "mfcc"."""
    segment_seconds: float
    frame_pool: int
    """Frames of 10 ms averaged into one."""
    max_utterances: int


def read_segments(
    layout: CorpusLayout,
    participants: Collection[int],
    settings: FeatureSettings,
    encoder: TextEncoder,
    problems: Problems,
    *,
    digests: Mapping[Path, str],
    cache_dir: Path | None,
) -> dict[int, list[Segment]]:
    """The segments of each participant; whoever has a fault is missing, and the fault is in `problems`.

    What was parsed and found without fault is kept below `cache_dir`, under a name that holds everything it
    depends on: both files' contents, the settings, the text encoder and the code that reads and cuts. So another
    partition, label rule or seed parses nothing.

    Args:
        layout: The corpus.
        participants: Whose two files are there.
        settings: What is made of a session.
        encoder: Text encoder of the utterances.
        problems: Takes faults and warnings.
        digests: SHA-256 of each file; a participant without them is read and not kept.
        cache_dir: Folder of the cache; None parses everything.
    """
    check_same_columns(layout, participants, settings.audio_features, problems)
    cache = SegmentCache(cache_dir)
    recipe = _recipe(settings, encoder)
    found = {}
    for number in tracked(list(participants), "Reading E-DAIC"):
        files = (layout.features(number, settings.audio_features), layout.transcript(number))
        contents = [digests.get(path) for path in files]
        name = hashlib.sha256(json.dumps([recipe, contents]).encode()).hexdigest() if all(contents) else None
        made = cache.load(name) if name else None
        if made is None:
            made = _segments(layout, number, settings, encoder, problems)
            if made is not None and name:
                cache.store(name, *made)
        if made is None:
            continue
        found[number], left_out_rows = made
        warn_of_left_out_rows(problems, number, left_out_rows)
    return found


def _segments(
    layout: CorpusLayout, number: int, settings: FeatureSettings, encoder: TextEncoder, problems: Problems
) -> tuple[list[Segment], int] | None:
    """The segments of one participant and the number of transcript rows left out; None with a fault."""
    session = read_session(layout, number, settings.audio_features, problems)
    if session is None:
        return None
    try:
        segments = build_segments(
            session.frames,
            session.utterances,
            encoder.encode([utterance.text for utterance in session.utterances]),
            segment_seconds=settings.segment_seconds,
            frame_pool=settings.frame_pool,
            max_utterances=settings.max_utterances,
        )
    except DataError as error:
        problems.add("session that cannot be cut into segments", number, str(error))
        return None
    return segments, session.left_out_rows


def _recipe(settings: FeatureSettings, encoder: TextEncoder) -> str:
    """Digest of all that turns files into segments."""
    code = [
        hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
        for module in (layout_module, segments_module, sessions_module, tables_module, text_encoders)
    ]
    # A model folder can change under its name: what it makes of two sentences cannot, so that is in the name too.
    probe = [[round(value, 3) for value in vector] for vector in encoder.encode(_PROBE).tolist()]
    parts = [asdict(settings), encoder.name, encoder.dim, probe, code]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
