"""Fusion of a sequence of audio frames and a sequence of utterances into one vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_positive
from fedsynth.models.sequences import AdditiveAttention


@dataclass(frozen=True)
class EncodedSequence:
    """What an encoder makes of one modality."""

    steps: Float[Tensor, "b t h"]
    """One vector a step; without meaning in padding."""
    mask: Bool[Tensor, "b t"]
    """True at real steps."""
    embedding: Float[Tensor, "b e"]
    """z^m, the whole sequence in one vector."""
    attention: Float[Tensor, "b t"]
    """How much each step weighs in the embedding; rows sum to 1, 0 in padding."""


class GatedCrossAttention(nn.Module):
    """Each modality attends to the other; a gate a feature mixes the two results.

    With C_m the steps of modality m after attending to the other modality (residual, LayerNorm), pooled by
    additive attention and projected: r_m = z^m + W_m pool(C_m), g = sigmoid(W_g [r_a ‖ r_t] + b_g), and
    z^f = g ⊙ r_a + (1 - g) ⊙ r_t. The embeddings z^m enter the sum, so that the classification loss alone
    already shapes them: FedMPA compares them with prototypes of their own.

    Args:
        hidden_dim: Features of a step, a multiple of ``num_heads``.
        embedding_dim: Length of z^a, z^t and z^f.
        num_heads: Attention heads.
    """

    # fidelity: speech-network
    def __init__(self, hidden_dim: int, embedding_dim: int, num_heads: int) -> None:
        super().__init__()
        require_positive("hidden_dim, embedding_dim and num_heads", hidden_dim, embedding_dim, num_heads)
        if hidden_dim % num_heads:
            raise ModelInputError(
                f"hidden_dim must be a multiple of num_heads, got {hidden_dim} and {num_heads}."
            )
        self.audio_side = _CrossAttention(hidden_dim, embedding_dim, num_heads)
        self.text_side = _CrossAttention(hidden_dim, embedding_dim, num_heads)
        self.gate = nn.Linear(2 * embedding_dim, embedding_dim)  # W_g, b_g

    def forward(
        self, audio: EncodedSequence, text: EncodedSequence
    ) -> tuple[Float[Tensor, "b e"], Float[Tensor, "b e"]]:
        """z^f and the gates g in (0, 1), the share of audio in each feature."""
        audio_part = audio.embedding + self.audio_side(audio, text)
        text_part = text.embedding + self.text_side(text, audio)
        gates = torch.sigmoid(self.gate(torch.cat([audio_part, text_part], dim=-1)))
        return gates * audio_part + (1 - gates) * text_part, gates


class _CrossAttention(nn.Module):
    """W pool(LayerNorm(h + MHA(h, h', h'))): the steps h of one modality, informed by the steps h' of the other."""

    def __init__(self, hidden_dim: int, embedding_dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden_dim, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(hidden_dim)
        self.pool = AdditiveAttention(hidden_dim)
        self.projection = nn.Linear(hidden_dim, embedding_dim)

    def forward(self, own: EncodedSequence, other: EncodedSequence) -> Float[Tensor, "b e"]:
        attended, _ = self.attention(
            own.steps, other.steps, other.steps, key_padding_mask=~other.mask, need_weights=False
        )
        pooled, _ = self.pool(self.norm(own.steps + attended), own.mask)
        return self.projection(pooled)
