"""Joined conditions: rows of length 1 whose square is shared as told; made of one site's images only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_densenet import real_sets, stored, tiny_settings
from tiny_stages import artifact, run_stage, stage_context

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import build_settings
from fedsynth.stages.joined_features.run import join
from fedsynth.stages.joined_features.spec import STAGE, JoinedFeaturesSettings
from fedsynth.stages.tstr_densenet.trained import open_densenet

PATH = "stages.joined"


def settings(**changes: Any) -> JoinedFeaturesSettings:
    return build_settings(JoinedFeaturesSettings, {"classifier_share": 0.5, "batch_size": 8, **changes}, PATH)


@given(st.floats(0.01, 0.99), st.integers(0, 99))
def test_rows_have_length_one_and_the_squares_are_shared(share: float, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    f, g = 5 * torch.randn(4, 6, generator=stream), 0.1 * torch.randn(4, 3, generator=stream)
    joined = join(f, g, share).double()
    assert torch.allclose(joined.square().sum(1), torch.ones(4, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(joined[:, 6:].square().sum(1), torch.full((4,), share).double(), atol=1e-5)
    # Cosines are mixed in the same shares.
    cosine = torch.nn.functional.cosine_similarity
    wanted = (1 - share) * cosine(f[:1], f[1:2]) + share * cosine(g[:1], g[1:2])
    assert torch.allclose(joined[0] @ joined[1], wanted.double(), atol=1e-5)


def test_the_stage_joins_features_with_those_of_the_classifier_centered_on_training_images(
    tmp_path: Path,
) -> None:
    sets = real_sets()
    real = stored(tmp_path / "images", sets)
    classifier = run_stage(
        "tstr_densenet",
        tiny_settings("tstr_densenet", seeds=[1]),
        {"train": real, "images": real},
        stage_context(tmp_path / "tstr_real", 1),
    )
    stream = torch.Generator().manual_seed(0)
    feature = {f"{name}.feature": torch.rand(len(one), 5, generator=stream) for name, one in sets.items()}
    features = artifact(
        tmp_path / "features" / "output", {"features.safetensors": feature}, notes={"encoder": "any"}
    )
    made = run_stage(
        "joined_features",
        settings(classifier_share=0.3),
        {"features": features, "images": real, "classifier": classifier},
        stage_context(tmp_path / "joined"),
    )
    network, found = open_densenet(classifier), made.load("features.safetensors")
    center = network.features(sets["train"].image).mean(0)
    for split, one in sets.items():
        wanted = join(feature[f"{split}.feature"], network.features(one.image) - center, 0.3)
        assert torch.allclose(found[f"{split}.feature"], wanted, atol=1e-5)
    notes = made.manifest["notes"]
    assert notes["encoder"] == "any + classifier"
    assert notes["dim"] == 5 + network.dim
    assert notes["made_of"] == {"features": features.key, "classifier": classifier.key}


def planned(**changes: dict[str, str]) -> dict[str, Any]:
    inputs = {
        "images": {},
        "features": {"images": "images"},
        "classifier": {"images": "images", "train": "images"},
        **changes,
    }
    return {name: SimpleNamespace(name=name, inputs=one) for name, one in inputs.items()}


@pytest.mark.parametrize(
    ("role", "inputs"),
    [
        ("features", {"images": "others"}),
        ("classifier", {"images": "others", "train": "others"}),
        ("classifier", {"images": "images", "train": "synthetic"}),
    ],
)
def test_inputs_of_other_images_are_refused_by_name(role: str, inputs: dict[str, str]) -> None:
    STAGE.check_suppliers(settings(), planned(), PATH)
    with pytest.raises(ConfigError, match=rf"{PATH}\.inputs\.{role}"):
        STAGE.check_suppliers(settings(), planned(**{role: inputs}), PATH)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_that_leaves_one_of_them_out_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"classifier_share must be > 0 and < 1"):
        settings(classifier_share=share)
