"""raw E-DAIC → speech_clients: checks, segments, speaker-level clients, normalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedsynth.data.edaic.labels import LABEL_RULES
from fedsynth.data.edaic.layout import AUDIO_FEATURES, FRAME_SECONDS
from fedsynth.errors import ConfigError
from fedsynth.pipeline.file_content import content_key
from fedsynth.pipeline.settings import setting
from fedsynth.pipeline.stage import Sensitivity, Side, Stage, always


def _encoder_key(name: str) -> Any:
    """Of ``transformers:PATH`` what the folder holds; a name is that of an installed package or of our own code."""
    folder = name.removeprefix("transformers:")
    return name if folder == name else {"transformers": content_key(folder)}


@dataclass(frozen=True)
class SpeechClientsSettings:
    label_rule: str = setting(one_of=LABEL_RULES)
    audio_features: str = setting(one_of=tuple(AUDIO_FEATURES))
    segment_seconds: float = setting(
        minimum=1.0, maximum=600.0, remedy="An utterance lasts some seconds; 10 is usual."
    )
    frame_pool: int = setting(minimum=1, remedy="Frames of 10 ms averaged into one; 10 gives 100 ms.")
    max_utterances: int = setting(minimum=1)
    text_encoder: str = setting(remedy="hashing, minilm or transformers:PATH.", as_key=_encoder_key)
    text_dim: int = setting(
        minimum=8, maximum=8192, remedy="minilm has 384; hashing takes any number within."
    )
    exclude_participants: list[int] = setting(minimum=0)
    num_clients: int = setting(minimum=1, remedy="The paper uses 4.")
    dirichlet_alpha: float = setting(above=0.0, remedy="Small values give uneven clients.")
    min_depressed_per_client: int = setting(minimum=1)
    partition_seed: int = setting(minimum=0)

    def check(self, path: str) -> None:
        folder = self.text_encoder.removeprefix("transformers:")
        if self.text_encoder not in ("hashing", "minilm") and (folder in ("", self.text_encoder)):
            raise ConfigError(
                f"{path}.text_encoder must be hashing, minilm or transformers:PATH, got {self.text_encoder!r}.",
                key=f"{path}.text_encoder",
            )
        if self.frame_pool * FRAME_SECONDS > self.segment_seconds:
            raise ConfigError(
                f"{path}.frame_pool must not be longer than a segment, got {self.frame_pool} frames of 10 ms for "
                f"segments of {self.segment_seconds:g} s. Lower it, or raise segment_seconds.",
                key=f"{path}.frame_pool",
            )


STAGE = Stage(
    kind="speech_clients",
    settings=SpeechClientsSettings,
    runs="fedsynth.stages.speech_clients.run:run",
    side=Side.CLIENT,
    yields=always(Sensitivity.PRIVATE),
    data=("edaic",),
    uncovered=lambda settings: (
        "mean and deviation of the acoustic descriptors, pooled over the training participants of all clients",
        "numbers of participants and segments of every client by class, printed in the data report",
    ),
)
