"""A classifier of speech segments from audio frames and the utterances said in them.

It stands in for ALiDeR, on which FedMPA builds and which is not published: results of the two, above all of
centralized training, are not comparable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape
from fedsynth.models.sequences import (
    AdditiveAttention,
    MaskedBiLSTM,
    check_dropout,
    check_lengths,
    length_mask,
)
from fedsynth.models.speech_fusion import EncodedSequence, GatedCrossAttention


@dataclass(frozen=True)
class SpeechOutput:
    """What the classifier says about a batch of segments."""

    logits: Float[Tensor, "b classes"]
    embeddings: dict[str, Float[Tensor, "b e"]]
    """The encoder outputs z^m of FedMPA, by modality: ``audio``, ``text`` and ``fused``."""
    gates: Float[Tensor, "b e"]
    """Share of audio in each feature of the fused embedding."""
    attention: dict[str, Float[Tensor, "b steps"]]
    """Weight of each frame (``audio``) and utterance (``text``) in its embedding; rows sum to 1, 0 in padding."""


class SequenceEncoder(nn.Module):
    """Projection, bidirectional LSTM, additive attention and a linear head: one sequence to one vector z^m.

    Args:
        input_dim: Features of a step.
        hidden_dim: Features after the projection and after the LSTM, both directions together; even.
        embedding_dim: Length of z^m.
        num_layers: LSTM layers.
        dropout: Probability after the projection and between LSTM layers.
    """

    def __init__(
        self, input_dim: int, hidden_dim: int, embedding_dim: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        require_positive("input_dim, hidden_dim and embedding_dim", input_dim, hidden_dim, embedding_dim)
        check_dropout(dropout)
        self.input_dim, self.embedding_dim = input_dim, embedding_dim
        self.projection = nn.Sequential(
            nn.Linear(input_dim, hidden_dim), nn.LayerNorm(hidden_dim), nn.GELU(), nn.Dropout(dropout)
        )
        self.lstm = MaskedBiLSTM(hidden_dim, hidden_dim, num_layers, dropout)
        self.pool = AdditiveAttention(hidden_dim)
        self.head = nn.Linear(hidden_dim, embedding_dim)

    def forward(self, steps: Float[Tensor, "b t i"], length: Int64[Tensor, " b"]) -> EncodedSequence:
        """Encode ``length`` steps of each record; what follows them, NaN too, influences nothing."""
        mask = length_mask(length, steps.shape[1])
        # Before the projection, whose weight gradient would otherwise be 0 · NaN.
        kept = torch.where(mask.unsqueeze(-1), steps, 0.0)
        hidden = self.lstm(self.projection(kept), mask)
        pooled, attention = self.pool(hidden, mask)
        return EncodedSequence(hidden, mask, self.head(pooled), attention)


class SpeechClassifier(nn.Module):
    """Two sequence encoders, a gated cross-attention fusion and a linear classifier.

    There is no BatchNorm and no buffer: a record's output does not depend on its batch, and all of the state can
    be averaged over clients. Padding influences nothing. With one frame or one utterance its attention is 1.

    Args:
        audio_dim: Features of a frame.
        text_dim: Features of an utterance.
        hidden_dim: Features of a step inside the network; even and a multiple of ``num_heads``.
        embedding_dim: Length of each embedding z^m.
        num_heads: Heads of the cross-attention.
        dropout: Probability after the projections, between LSTM layers and before the classifier.
        num_layers: LSTM layers.
        num_classes: Classes.

    Raises:
        ModelInputError: If a size is impossible, or an input has the wrong shape, type or (on CPU) length.
    """

    # fidelity: speech-network
    def __init__(
        self,
        *,
        audio_dim: int,
        text_dim: int,
        hidden_dim: int,
        embedding_dim: int,
        num_heads: int,
        dropout: float,
        num_layers: int,
        num_classes: int = 2,
    ) -> None:
        super().__init__()
        require_positive("audio_dim and text_dim", audio_dim, text_dim)
        require_positive("hidden_dim and embedding_dim", hidden_dim, embedding_dim)
        require_positive("num_heads, num_layers and num_classes", num_heads, num_layers, num_classes)
        check_dropout(dropout)
        self.audio_dim, self.text_dim, self.embedding_dim = audio_dim, text_dim, embedding_dim
        self.num_classes = num_classes
        self.audio_encoder = SequenceEncoder(audio_dim, hidden_dim, embedding_dim, num_layers, dropout)
        self.text_encoder = SequenceEncoder(text_dim, hidden_dim, embedding_dim, num_layers, dropout)
        self.fusion = GatedCrossAttention(hidden_dim, embedding_dim, num_heads)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(embedding_dim, num_classes)

    def forward(
        self,
        audio: Float[Tensor, "b t f"],
        audio_length: Int64[Tensor, " b"],
        text: Float[Tensor, "b u d"],
        text_length: Int64[Tensor, " b"],
    ) -> SpeechOutput:
        """Logits, embeddings, gates and attention of a batch of segments.

        Args:
            audio: Frames, padded at the end.
            audio_length: Frames of each segment, at least 1.
            text: One vector an utterance, padded at the end.
            text_length: Utterances of each segment, at least 1.
        """
        require_shape("audio", audio, None, None, self.audio_dim)
        if len(audio) == 0:
            raise ModelInputError("A batch must hold at least one segment, got none.")
        require_shape("text", text, len(audio), None, self.text_dim)
        require_floating("audio", audio)
        require_floating("text", text)
        check_lengths("audio_length", audio_length, len(audio), audio.shape[1])
        check_lengths("text_length", text_length, len(audio), text.shape[1])
        encoded_audio = self.audio_encoder(audio, audio_length)
        encoded_text = self.text_encoder(text, text_length)
        fused, gates = self.fusion(encoded_audio, encoded_text)
        return SpeechOutput(
            logits=self.classifier(self.dropout(fused)),
            embeddings={"audio": encoded_audio.embedding, "text": encoded_text.embedding, "fused": fused},
            gates=gates,
            attention={"audio": encoded_audio.attention, "text": encoded_text.attention},
        )
