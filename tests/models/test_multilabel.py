"""The pretraining network of Eq. (10)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsynth.models.encoders import ImageEncoder
from fedsynth.models.inputs import ModelInputError
from fedsynth.models.multilabel import MultiLabelClassifier


def test_logits_are_linear_in_the_embedding():
    model = MultiLabelClassifier(ImageEncoder(channels=(4, 8), embedding_dim=16)).eval()
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert model(x).shape == (3, 14)
    torch.testing.assert_close(model(x), model.encoder(x) @ model.head.weight.T + model.head.bias)


def test_impossible_heads_are_refused():
    with pytest.raises(ModelInputError, match="num_labels"):
        MultiLabelClassifier(ImageEncoder(), num_labels=0)
    with pytest.raises(ModelInputError, match="embedding_dim"):
        MultiLabelClassifier(nn.Identity())
