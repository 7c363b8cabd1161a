"""Fusion of an image and an ECG embedding into one vector: FedDP-PALD Eqs. (12)-(15).

| symbol | name | shape |
|---|---|---|
| e^I, e^E | embeddings | [b, e] |
| m | modality mask, True = present; order (image, ECG) | [b, 2] |
| Z | tokens | [b, 2, d] |
| H | attention output | [b, 2, d] |
| g | gates, one a token | [b, 2] |
| f | fused vector | [b, d] |
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from fedsynth.models.inputs import ModelInputError, require_floating, require_positive, require_shape

FusionResult = tuple[Float[Tensor, "b d"], Float[Tensor, "b 2"], Float[Tensor, "b 2 2"]]


def masked_mean(tokens: Float[Tensor, "b q d"], mask: Bool[Tensor, "b q"]) -> Float[Tensor, "b d"]:
    """Mean over present tokens, FedDP-PALD Eq. (15): f = Σ_q m_q u_q / max(1, Σ_q m_q).

    A record with no token present gets the zero vector.
    """
    kept = torch.where(mask.unsqueeze(-1), tokens, 0.0)  # not a product: a missing token may hold NaN
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


class _TokenFusion(nn.Module):
    """What both fusions share: projection to tokens, Eq. (12), and the way from tokens to one vector."""

    def __init__(self, image_dim: int, signal_dim: int, token_dim: int, dropout: float) -> None:
        super().__init__()
        require_positive("image_dim, signal_dim and token_dim", image_dim, signal_dim, token_dim)
        if not 0 <= dropout < 1:
            raise ModelInputError(f"dropout must be in [0, 1), got {dropout}. Typical: 0.2.")
        self.image_dim, self.signal_dim, self.token_dim = image_dim, signal_dim, token_dim
        self.image_projection = nn.Linear(image_dim, token_dim)  # W_I, b_I
        self.signal_projection = nn.Linear(signal_dim, token_dim)  # W_E, b_E
        self.token_head = nn.Sequential(  # W_u, b_u
            nn.Linear(token_dim, token_dim), nn.LayerNorm(token_dim), nn.GELU(), nn.Dropout(dropout)
        )

    def tokens(
        self, image: Float[Tensor, "b i"], signal: Float[Tensor, "b e"], mask: Bool[Tensor, "b 2"]
    ) -> Float[Tensor, "b 2 d"]:
        """Eq. (12): z^I = W_I e^I + b_I, z^E = W_E e^E + b_E, Z = [z^I; z^E]."""
        require_shape("image embedding", image, None, self.image_dim)
        require_shape("signal embedding", signal, len(image), self.signal_dim)
        require_floating("image embedding", image)
        require_floating("signal embedding", signal)
        check_mask(mask, len(image))
        return torch.stack([self.image_projection(image), self.signal_projection(signal)], dim=1)


class GatedFusion(_TokenFusion):
    """Masked self-attention over two tokens with a gate between attention and token, Eqs. (12)-(15).

    A missing modality is never attended to and never pooled, so the fused vector does not depend on it;
    the gate of its own token does, unless its embedding is a constant (``FusionClassifier`` sees to that).
    With one modality present its attention weight is exactly 1. With none, attention is computed as if both
    were present, and the fused vector is zero.

    Args:
        image_dim: Length of e^I.
        signal_dim: Length of e^E.
        token_dim: d, a multiple of ``num_heads``.
        num_heads: Attention heads.
        dropout: Probability of the last step of the token head.
    """

    def __init__(
        self,
        image_dim: int = 128,
        signal_dim: int = 128,
        token_dim: int = 128,
        num_heads: int = 4,
        dropout: float = 0.2,
    ) -> None:
        super().__init__(image_dim, signal_dim, token_dim, dropout)
        require_positive("num_heads", num_heads)
        if token_dim % num_heads:
            raise ModelInputError(
                f"token_dim must be a multiple of num_heads, got {token_dim} and {num_heads}."
            )
        self.attention = nn.MultiheadAttention(token_dim, num_heads, batch_first=True)
        self.gate = nn.Linear(2 * token_dim, 1)  # W_g, b_g; fidelity: gate-input

    def forward(
        self, image: Float[Tensor, "b i"], signal: Float[Tensor, "b e"], mask: Bool[Tensor, "b 2"]
    ) -> FusionResult:
        """Fused vector, gates, and attention averaged over heads: [b, query, key], rows sum to 1."""
        tokens = self.tokens(image, signal, mask)  # Z
        attended, attention = self.attend(tokens, mask)  # H
        gates = self.gates(attended, tokens)
        mixed = gates * attended + (1 - gates) * tokens  # Eq. (14), second half.
        fused = masked_mean(self.token_head(mixed), mask)
        return fused, gates.squeeze(-1), attention

    def attend(
        self, tokens: Float[Tensor, "b 2 d"], mask: Bool[Tensor, "b 2"]
    ) -> tuple[Float[Tensor, "b 2 d"], Float[Tensor, "b 2 2"]]:
        """Eq. (13): H = MHA(Z, Z, Z; M), with -inf added to the logits of missing keys."""
        # A row with every key hidden would be a softmax over nothing, i.e. NaN: leave such rows unmasked.
        hidden = ~mask & mask.any(dim=1, keepdim=True)
        return self.attention(tokens, tokens, tokens, key_padding_mask=hidden, need_weights=True)

    def gates(
        self, attended: Float[Tensor, "b 2 d"], tokens: Float[Tensor, "b 2 d"]
    ) -> Float[Tensor, "b 2 1"]:
        """Eq. (14): g = sigmoid(W_g [H ‖ Z] + b_g), one gate in (0, 1) a token."""
        return torch.sigmoid(self.gate(torch.cat([attended, tokens], dim=-1)))


class MeanFusion(_TokenFusion):
    """The paper's mean-fusion baseline: Eqs. (12) and (15) without attention and gates.

    It is ``GatedFusion`` at g = 0: gates are reported as 0 and attention as the identity.
    """

    # fidelity: mean-fusion-head
    def __init__(
        self, image_dim: int = 128, signal_dim: int = 128, token_dim: int = 128, dropout: float = 0.2
    ) -> None:
        super().__init__(image_dim, signal_dim, token_dim, dropout)

    def forward(
        self, image: Float[Tensor, "b i"], signal: Float[Tensor, "b e"], mask: Bool[Tensor, "b 2"]
    ) -> FusionResult:
        """Fused vector, zero gates, identity attention."""
        tokens = self.tokens(image, signal, mask)
        fused = masked_mean(self.token_head(tokens), mask)
        gates = tokens.new_zeros(len(tokens), 2)
        return fused, gates, torch.eye(2, dtype=tokens.dtype, device=tokens.device).expand(len(tokens), 2, 2)


def check_mask(mask: Tensor, num_records: int) -> None:
    """Refuse anything but a boolean [num_records, 2] modality mask."""
    require_shape("mask", mask, num_records, 2)
    if mask.dtype != torch.bool:
        raise ModelInputError(f"mask must be boolean (True = present), got {mask.dtype}; call .bool().")
