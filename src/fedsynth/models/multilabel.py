"""Multi-label head for pretraining the image encoder on ChestMNIST."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from fedsynth.models.inputs import embedding_dim, require_positive


class MultiLabelClassifier(nn.Module):
    """Image encoder and one linear layer: the scores s_il of FedDP-PALD Eq. (10), before the sigmoid.

    After pretraining ``encoder`` is kept and ``head`` dropped.

    Args:
        encoder: Module with an ``embedding_dim``, images to [b, embedding_dim].
        num_labels: L; 14 for ChestMNIST.
    """

    def __init__(self, encoder: nn.Module, num_labels: int = 14) -> None:
        super().__init__()
        require_positive("num_labels", num_labels)
        self.encoder = encoder
        self.head = nn.Linear(embedding_dim(encoder), num_labels)

    def forward(self, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b labels"]:
        """Logits, one a label."""
        return self.head(self.encoder(image))
