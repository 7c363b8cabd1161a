"""Check the corpus, cut sessions into segments, give participants to clients; see :mod:`fedsynth.data.edaic`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from fedsynth.data.edaic.check import REMEDY, SIMULATED_REMEDY, check_structure, readable_participants
from fedsynth.data.edaic.clients import build_speech_clients, check_enough_people
from fedsynth.data.edaic.features import FeatureSettings, read_segments
from fedsynth.data.edaic.labels import LabelRule
from fedsynth.data.edaic.layout import find_layout
from fedsynth.data.edaic.problems import Problems
from fedsynth.data.text_encoders import make_text_encoder
from fedsynth.errors import FedSynthError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.speech_clients.spec import SpeechClientsSettings

logger = logging.getLogger(__name__)


def run(settings: SpeechClientsSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Segments of all clients and splits as tensors, the audio statistics, and the data report.

    Raises:
        DataError: Before anything is trained, naming every fault of the corpus.
    """
    source = context.sources["edaic"]
    encoder = make_text_encoder(settings.text_encoder, settings.text_dim)
    rule: LabelRule = settings.label_rule  # type: ignore[assignment]
    problems = Problems()
    layout = find_layout(source.path)
    participants = check_structure(
        layout,
        problems,
        audio_features=(settings.audio_features,),
        rule=rule,
        exclude=settings.exclude_participants,
    )
    known = problems.warning_lines()  # said when the corpus was found
    remedy = f"{REMEDY}\n{SIMULATED_REMEDY}" if source.simulated else REMEDY
    if not problems.faults:  # an impossible partition is said before gigabytes are parsed
        training = [person.label(rule) for person in participants.values() if person.split == "train"]
        with _naming_settings(settings, context):
            check_enough_people(np.array(training), settings.num_clients, settings.min_depressed_per_client)
    segments = read_segments(
        layout,
        readable_participants(layout, participants, settings.audio_features),
        FeatureSettings(
            settings.audio_features, settings.segment_seconds, settings.frame_pool, settings.max_utterances
        ),
        encoder,
        problems,
        digests={file.path: file.sha256 for file in source.files},
        cache_dir=source.cache_dir / "edaic" if source.cache_dir else None,
    )
    problems.raise_if_any(layout.root, remedy)
    for warning in problems.warning_lines()[len(known) :]:
        logger.warning("E-DAIC at %s: %s.", layout.root, warning)
    with _naming_settings(settings, context):
        clients, statistics = build_speech_clients(
            segments,
            participants,
            rule=rule,
            num_clients=settings.num_clients,
            alpha=settings.dirichlet_alpha,
            min_positive=settings.min_depressed_per_client,
            partition_seed=settings.partition_seed,
            warnings=problems.warning_lines(),
        )
    report = {**clients.report, "excluded": sorted(settings.exclude_participants)}
    context.save("speech.safetensors", clients.to_tensors())
    context.save("audio_statistics.safetensors", statistics)
    (context.output / "data_report.json").write_text(json.dumps(report, indent=1) + "\n")
    return Outcome(notes={"report": report})


@contextmanager
def _naming_settings(settings: SpeechClientsSettings, context: StageContext) -> Iterator[None]:
    """Add to an error what the partition was asked for."""
    try:
        yield
    except FedSynthError as error:
        keys = ("num_clients", "min_depressed_per_client", "label_rule", "exclude_participants")
        given = ", ".join(f"{key}={getattr(settings, key)}" for key in keys)
        raise type(error)(f"{error} (From stages.{context.name}, where {given}.)") from error
