"""timm backbones: same contract as the paper's encoder, local weights only."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from fedsynth.models.encoders import ImageEncoder
from fedsynth.models.inputs import ModelInputError
from fedsynth.models.pretrained_encoder import TimmImageEncoder, image_encoder

NAME = "test_resnet"  # timm's own miniature


def test_timm_backbone_gives_embeddings_like_the_papers_encoder():
    x = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    encoder = image_encoder(f"timm:{NAME}", embedding_dim=32)
    assert isinstance(encoder, TimmImageEncoder)
    assert encoder(x).shape == (2, 32)
    assert encoder.embedding_dim == 32


def test_conv_is_the_papers_encoder():
    assert isinstance(image_encoder("conv", channels=(8, 8)), ImageEncoder)


def test_local_three_channel_weights_are_adapted_to_one_channel(tmp_path):
    source = timm.create_model(NAME, pretrained=False, in_chans=3)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    loaded = TimmImageEncoder(NAME, weights_path=tmp_path / "weights.safetensors").backbone.state_dict()
    first, *others = [name for name in loaded if name.endswith("weight") and loaded[name].ndim == 4]
    torch.testing.assert_close(loaded[first], source.state_dict()[first].sum(1, keepdim=True))
    assert all(torch.equal(loaded[name], source.state_dict()[name]) for name in others)


def test_group_normalization_leaves_no_batch_norm():
    from opacus.validators import ModuleValidator

    encoder = TimmImageEncoder(NAME, normalization="group")
    assert ModuleValidator.validate(encoder, strict=False) == []


def test_unknown_names_and_missing_files_are_refused():
    with pytest.raises(ModelInputError, match=r"Similar names: .*resnet18"):
        TimmImageEncoder("resnet_18")
    with pytest.raises(ModelInputError, match="not a file"):
        TimmImageEncoder(NAME, weights_path="/nowhere/weights.safetensors")
    with pytest.raises(ModelInputError, match="timm:<model name>"):
        image_encoder("torchvision:resnet18")
