"""The sources of candidates as a training set: exactly their rows, in their order; of the same site only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_densenet import real_sets, stored
from tiny_stages import artifact, run_stage, stage_context

from fedsynth.errors import ConfigError
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.image_set_kinds import IMAGE_SETS
from fedsynth.stages.source_images.spec import STAGE, SourceImagesSettings


def test_the_set_holds_the_rows_of_all_shards_in_order(tmp_path: Path) -> None:
    real = real_sets()
    shards = [torch.tensor([5, 2, 30]), torch.tensor([7])]
    candidates = artifact(
        tmp_path / "candidates" / "output",
        {
            f"candidates-{number:05}.safetensors": {
                "source": rows,
                "latent": torch.full((len(rows), 2, 1, 4, 4), torch.nan).half(),
            }
            for number, rows in enumerate(shards)
        },
    )
    made = run_stage(
        "source_images",
        SourceImagesSettings(),
        {"images": stored(tmp_path / "images", real), "candidates": candidates},
        stage_context(tmp_path / "sources"),
    )
    found, wanted = read_image_set(made), real["train"].rows(torch.cat(shards))
    assert torch.equal(found.image, wanted.image)
    assert torch.equal(found.label, wanted.label)
    assert torch.equal(found.patient, wanted.patient)  # type: ignore[arg-type]
    assert found.source is not None
    assert found.source.tolist() == [5, 2, 30, 7]
    assert made.manifest["notes"]["counts"]["train"] == wanted.counts()


def test_candidates_of_another_site_are_refused() -> None:
    suppliers = {
        "images": SimpleNamespace(name="images_a", inputs={}),
        "candidates": SimpleNamespace(name="candidates_b", inputs={"images": "images_b"}),
    }
    with pytest.raises(ConfigError, match=r"stages\.sources\.inputs\.candidates"):
        STAGE.check_suppliers(SourceImagesSettings(), suppliers, "stages.sources")


def test_a_classifier_can_be_trained_on_it() -> None:
    assert STAGE.kind in IMAGE_SETS
