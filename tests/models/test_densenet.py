"""DenseNets: sizes they take, what the normalization does, which weights are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import DenseNet, densenet121

from fedsynth.models import densenet as module
from fedsynth.models.densenet import GRAY_MEAN, GRAY_STD, DenseNetClassifier, slim_densenet, timm_densenet
from fedsynth.models.inputs import ModelInputError


def gray(num: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(num, 1, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [10, 28, 33, 64])
def test_the_slim_network_takes_small_images_of_any_size(size: int) -> None:
    network = slim_densenet(3).eval()
    logits = network(gray(2, size))
    assert logits.shape == (2, 3)
    assert logits.isfinite().all()


def test_logits_are_the_head_of_the_features() -> None:
    network = slim_densenet(3, growth_rate=4, block_config=(2, 2), num_init_features=8).eval()
    image = gray(4, 28)
    assert network.features(image).shape == (4, network.dim)
    assert torch.equal(network(image), network.head(network.features(image)))


@pytest.mark.parametrize(
    ("growth", "blocks", "initial"), [(12, (4, 4, 4), 24), (5, (1, 2), 7), (8, (3,), 16)]
)
def test_the_slim_network_is_torchvision_s_behind_another_stem(
    growth: int, blocks: tuple[int, ...], initial: int
) -> None:
    """Same parameters but for the first convolution, and as many features as the growth law says."""
    ours = slim_densenet(2, growth_rate=growth, block_config=blocks, num_init_features=initial)
    theirs = DenseNet(growth, blocks, initial, num_classes=2)
    shapes = {name: p.shape for name, p in theirs.features.named_parameters() if not name.startswith("conv0")}
    mine = {name: p.shape for name, p in ours.trunk[0].named_parameters() if not name.startswith("conv0")}  # type: ignore[index,operator,union-attr]
    assert mine == shapes
    assert ours.head.weight.shape == theirs.classifier.weight.shape
    width = initial
    for number, layers in enumerate(blocks):
        width += layers * growth
        width //= 1 if number == len(blocks) - 1 else 2
    assert ours.dim == width


class Recorder(nn.Module):
    """A trunk that keeps what it was given."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.seen = image
        return image.mean((2, 3))


def recording(**options: object) -> tuple[DenseNetClassifier, Recorder]:
    trunk = Recorder()
    return DenseNetClassifier(trunk, len(options["mean"]), 2, **options), trunk  # type: ignore[arg-type]


def test_images_are_normalized_and_repeated_to_the_channels_of_the_trunk() -> None:
    network, trunk = recording(mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    image = gray(2, 8)
    network(image)
    for channel, (mean, std) in enumerate(((0.1, 1.0), (0.2, 2.0), (0.3, 4.0))):
        torch.testing.assert_close(trunk.seen[:, channel], (image[:, 0] - mean) / std)


@pytest.mark.parametrize(
    ("size", "input_size", "min_size", "wanted"), [(28, None, 32, 32), (40, None, 32, 40), (28, 56, 32, 56)]
)
def test_images_are_resized_only_where_asked_or_too_small(
    size: int, input_size: int | None, min_size: int, wanted: int
) -> None:
    network, trunk = recording(mean=GRAY_MEAN, std=GRAY_STD, input_size=input_size, min_size=min_size)
    network(torch.full((1, 1, size, size), 0.5))
    assert trunk.seen.shape == (1, 1, wanted, wanted)
    assert trunk.seen.abs().max() < 1e-6  # a constant image stays what it is


def test_densenet121_has_the_paper_s_size_and_takes_28_pixels() -> None:
    network = timm_densenet(8, weights=None, input_size=None).eval()
    # 7,978,856 parameters with 1,000 outputs (Huang et al.); 8 outputs save 992 rows of 1,024 weights and a bias.
    assert sum(p.numel() for p in network.parameters()) == 7_978_856 - 992 * 1025
    with torch.inference_mode():
        assert network(gray(1, 28)).shape == (1, 8)


def test_weights_of_timm_and_of_torchvision_s_published_layout_are_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = densenet121(weights=None).eval()
    new = theirs.state_dict()
    # The published file's names are older: norm.1 for norm1 within dense layers, and no counters of batches.
    old = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", name): tensor
        for name, tensor in new.items()
        if "num_batches" not in name
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "published.pth")
    save_file(new, tmp_path / "timm.safetensors")
    image = gray(1, 64, seed=3)
    channels = (image - torch.tensor(module.IMAGENET_MEAN).view(1, 3, 1, 1)) / torch.tensor(
        module.IMAGENET_STD
    ).view(1, 3, 1, 1)
    with torch.inference_mode():
        wanted = theirs.features(channels).relu().mean((2, 3))
        for name in ("published.pth", "timm.safetensors"):
            network = timm_densenet(8, weights=str(tmp_path / name), input_size=None).eval()
            torch.testing.assert_close(network.features(image), wanted, rtol=1e-4, atol=1e-5)


def test_absent_unreadable_and_foreign_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInputError, match=r"none\.pth of densenet121 does not exist"):
        timm_densenet(2, weights=str(tmp_path / "none.pth"))
    (tmp_path / "text.pth").write_text("not weights")
    (tmp_path / "text.safetensors").write_text("not weights either")
    for name in ("text.pth", "text.safetensors"):
        with pytest.raises(ModelInputError, match=f"{name} cannot be read"):
            timm_densenet(2, weights=str(tmp_path / name))
    other = timm.create_model("resnet18", num_classes=0)
    torch.save(other.state_dict(), tmp_path / "resnet.pth")
    with pytest.raises(ModelInputError, match=r"resnet\.pth is not of densenet121: \d+ of its \d+ tensors"):
        timm_densenet(2, weights=str(tmp_path / "resnet.pth"))
    wider = DenseNet(32, (6, 12, 24, 16), 32, num_classes=2)
    torch.save(wider.state_dict(), tmp_path / "narrow.pth")
    with pytest.raises(ModelInputError, match="have another shape"):
        timm_densenet(2, weights=str(tmp_path / "narrow.pth"))


def test_weights_that_cannot_be_fetched_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def offline(name: str, pretrained: bool = False, **options: object) -> nn.Module:
        if pretrained:
            raise OSError("no route")
        return create(name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ModelInputError, match=r"densenet121 cannot be fetched \(OSError\).*weights=PATH"):
        timm_densenet(2, weights="imagenet")


def test_impossible_networks_and_images_are_refused() -> None:
    with pytest.raises(ModelInputError, match="no DenseNet named 'resnet18'"):
        timm_densenet(2, name="resnet18")
    with pytest.raises(ModelInputError, match="input_size must be ≥ 16"):
        slim_densenet(2, input_size=8)
    with pytest.raises(ModelInputError, match="at most 4 blocks"):
        slim_densenet(2, block_config=(1, 1, 1, 1, 1))
    with pytest.raises(ModelInputError, match="at least 1"):
        slim_densenet(0)
    network = slim_densenet(2)
    with pytest.raises(ModelInputError, match=r"image must have shape"):
        network(torch.rand(1, 3, 28, 28))
    with pytest.raises(ModelInputError, match="floating-point"):
        network(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
