"""Stored features: those of the encoder, in the order of the images, whole after a kill."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from omegaconf import OmegaConf
from tiny_audited import classifier, encoder_settings, real_sets, stored_images
from tiny_stages import equal, run_stage, stage_context

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.models.image_encoder import FrozenImageEncoder
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Side, find_stage
from fedsynth.stages.pseudo_features import pieces
from fedsynth.stages.pseudo_features.spec import STAGE, PseudoFeaturesSettings
from fedsynth.stages.pseudo_features.stored import open_encoder
from fedsynth.stages.tstr_densenet.trained import open_densenet

CONFIGS = Path(__file__).parents[2] / "configs"
FILE = "features.safetensors"


@pytest.fixture
def images(tmp_path: Path) -> Artifact:
    return stored_images(tmp_path / "images", "xray_images", **real_sets())


def encoded(folder: Path, images: Artifact, classifier: Artifact | None = None, **changes: Any) -> Artifact:
    inputs = {"images": images} | ({} if classifier is None else {"classifier": classifier})
    return run_stage("pseudo_features", encoder_settings(**changes), inputs, stage_context(folder))


def test_features_are_the_encoders_for_each_image_in_order(tmp_path: Path, images: Artifact) -> None:
    made = encoded(tmp_path / "features", images)
    encoder = open_encoder(made, None)
    stored = made.load(FILE)
    for split, real in real_sets().items():
        feature = stored[f"{split}.feature"]
        assert feature.dtype == torch.float32
        torch.testing.assert_close(feature, encoder.features(real.image, 7), rtol=1e-4, atol=1e-4)
        # Raw: consumers bring them to length 1.
        assert not torch.allclose(feature.norm(dim=1), torch.ones(len(feature)))
    notes = made.manifest["notes"]
    assert (notes["encoder"], notes["dim"]) == ("efficientnet_lite0", stored["train.feature"].shape[1])
    assert len(notes["weights_sha256"]) == 64
    assert notes["counts"] == {split: len(real) for split, real in real_sets().items()}


def test_the_classifiers_pooled_features(tmp_path: Path, images: Artifact) -> None:
    network = classifier(tmp_path / "classifier")
    made = encoded(tmp_path / "features", images, network, encoder="classifier", image_size=None)
    wanted = open_densenet(network).features(real_sets()["val"].image)
    torch.testing.assert_close(made.load(FILE)["val.feature"], wanted)
    assert open_encoder(made, network).dim == made.manifest["notes"]["dim"]
    with pytest.raises(ConfigError, match="needs the input 'classifier'"):
        open_encoder(made, None)


def test_a_killed_run_goes_on_where_it_was(
    tmp_path: Path, images: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 16)
    whole = encoded(tmp_path / "whole", images)
    calls: list[int] = []
    own = FrozenImageEncoder.features

    def dying(self: FrozenImageEncoder, image: torch.Tensor, batch_size: int) -> torch.Tensor:
        calls.append(len(image))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return own(self, image, batch_size)

    monkeypatch.setattr(FrozenImageEncoder, "features", dying)
    with pytest.raises(KeyboardInterrupt):
        encoded(tmp_path / "again", images)
    # A piece that was cut off while it was written is made again.
    (tmp_path / "again" / "features-train-00001.safetensors").write_bytes(b"cut")
    resumed = encoded(tmp_path / "again", images)
    assert equal(whole.load(FILE), resumed.load(FILE))
    num_pieces = sum(-(-len(real) // 16) for real in real_sets().values())
    assert len(calls) == 3 + num_pieces - 1


def test_out_of_memory_halves_the_batch_and_says_so(
    tmp_path: Path, images: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = encoded(tmp_path / "whole", images).load(FILE)
    own = FrozenImageEncoder.features

    def small(self: FrozenImageEncoder, image: torch.Tensor, batch_size: int) -> torch.Tensor:
        if batch_size > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(self, image, batch_size)

    monkeypatch.setattr(FrozenImageEncoder, "features", small)
    made = encoded(tmp_path / "small", images)
    assert made.manifest["notes"]["batch_size"] == 16
    torch.testing.assert_close(
        made.load(FILE)["train.feature"], wanted["train.feature"], rtol=1e-4, atol=1e-4
    )


def test_an_encoder_whose_weights_changed_is_refused(tmp_path: Path, images: Artifact) -> None:
    weights = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_resnet").state_dict(), weights)
    made = encoded(tmp_path / "features", images, encoder="timm:test_resnet", weights=str(weights))
    open_encoder(made, None)
    torch.save(timm.create_model("test_resnet").state_dict(), weights)
    with pytest.raises(ArtifactError, match="was made by timm:test_resnet with weights"):
        open_encoder(made, None)
    with pytest.raises(ConfigError, match="wants weights of digest") as error:
        encoded(
            tmp_path / "other",
            images,
            encoder="timm:test_resnet",
            weights=str(weights),
            weights_sha256=made.manifest["notes"]["weights_sha256"],
        )
    assert error.value.key.endswith("weights_sha256")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"encoder": "resnet50"}, "encoder"),
        ({"encoder": "timm:"}, "encoder"),
        ({"encoder": "swav"}, "weights"),
        ({"encoder": "timm:resnet50"}, "weights"),
        ({"weights": "/nowhere/weights.pth"}, "weights"),
        ({"weights_sha256": "abc"}, "weights_sha256"),
        ({"weights_sha256": "g" * 64}, "weights_sha256"),
        ({"encoder": "classifier"}, "image_size"),
        ({"encoder": "classifier", "image_size": None, "weights": "x"}, "weights"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(
    changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as error:
        encoder_settings(**changes).check("stages.f")
    assert error.value.key == f"stages.f.{key}"


@pytest.mark.parametrize("encoder", ["classifier", "efficientnet_lite0"])
def test_classifier_and_encoder_belong_together(encoder: str) -> None:
    settings = encoder_settings(encoder=encoder)
    suppliers: dict[str, Any] = {} if encoder == "classifier" else {"classifier": SimpleNamespace()}
    with pytest.raises(ConfigError) as error:
        STAGE.check_suppliers(settings, suppliers, "stages.f")
    assert error.value.key == "stages.f.inputs.classifier"


@pytest.mark.parametrize(
    "path", sorted((CONFIGS / "image_encoder").glob("*.yaml")), ids=lambda path: path.stem
)
def test_each_encoder_config_fills_the_stage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWAV_WEIGHTS", "INCEPTION_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    config = OmegaConf.create(
        {
            "image_encoder": OmegaConf.load(path),
            "stage": OmegaConf.load(CONFIGS / "stage/pseudo_features.yaml"),
        }
    )
    config.image_encoder.allow_download = True
    values: Any = OmegaConf.to_container(config, resolve=True)
    stage = values["stage"]
    assert stage.pop("stage") == STAGE.kind
    assert (stage.pop("inputs")["classifier"] is None) == (path.stem != "classifier")
    settings = build_settings(PseudoFeaturesSettings, stage, "stages.f")
    assert settings.encoder.partition(":")[0] == path.stem


def test_the_stage_is_the_clients() -> None:
    assert find_stage("pseudo_features", "stages.f").side is Side.CLIENT
