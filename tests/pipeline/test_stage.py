"""Kinds of stages: found by folder or by module; marks follow the strictest input."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from bench import toy

from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Sensitivity, Stage, StageContext, always, find_stage, inherited

PRIVATE, RELEASED, PUBLIC = Sensitivity.PRIVATE, Sensitivity.RELEASED, Sensitivity.PUBLIC
STAGES = Path(__file__).parents[2] / "src" / "fedsynth" / "stages"
KINDS = sorted(path.parent.name for path in STAGES.glob("*/spec.py"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_folder_of_stages_holds_the_kind_it_is_named_after(kind: str) -> None:
    found = find_stage(kind, "stages.x")
    assert isinstance(found, Stage)
    assert found.kind == kind
    assert found.runs.startswith(f"fedsynth.stages.{kind}.")


def test_a_dotted_kind_is_a_module() -> None:
    assert find_stage(toy("publish")["stage"], "stages.x").kind == "publish"


@pytest.mark.parametrize(
    "kind", ["latent_dpm", "toystages.nothing", "no_package.at_all", "json.decoder", "", ".."]
)
def test_an_unknown_kind_is_refused_with_key_value_and_known_kinds(kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_stage(kind, "stages.mix")
    message = str(caught.value)
    assert message.startswith(f"stages.mix.stage must name a kind of stage, got {kind!r}")
    assert all(known in message for known in KINDS)


def test_a_stage_whose_own_import_is_missing_is_not_called_unknown() -> None:
    with pytest.raises(ConfigError, match=r"stages\.x\.stage=.*cannot be loaded.*a_package_nobody_has"):
        find_stage("toystages.needs_absent_package", "stages.x")


@pytest.mark.parametrize("first", Sensitivity)
@pytest.mark.parametrize("second", Sensitivity)
def test_the_strictest_input_decides(first: Sensitivity, second: Sensitivity) -> None:
    order = [PUBLIC, RELEASED, PRIVATE]
    assert inherited(None, {"a": first, "b": second}) is max(first, second, key=order.index)


def test_what_reads_nothing_is_public() -> None:
    assert inherited(None, {}) is PUBLIC


def test_a_fixed_mark_ignores_the_inputs() -> None:
    for mark, fed in product(Sensitivity, Sensitivity):
        assert always(mark)(None, {"a": fed}) is mark


def test_loading_a_stage_gives_its_function() -> None:
    from toystages.behavior import run

    assert find_stage("toystages.total", "stages.x").load() is run


def context(folder: Path, rank: int = 0) -> StageContext:
    return StageContext(
        "toy",
        "k" * 64,
        folder,
        folder,
        {},
        {},
        loggers=lambda part: SimpleNamespace(),
        rank=rank,
        world_size=2,
    )


def test_saved_tensors_come_back_equal_even_if_they_share_memory(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"all": base, "transposed": base.T, "column": base[:, 1]}
    context(tmp_path).save("t.safetensors", tensors)
    artifact = Artifact("toy", "k", tmp_path, PUBLIC, {"files": {"t.safetensors": {}}})
    loaded = artifact.load("t.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_only_the_first_rank_saves(tmp_path: Path) -> None:
    context(tmp_path, rank=1).save("t.safetensors", {"x": torch.zeros(1)})
    assert list(tmp_path.iterdir()) == []


def test_stages_cannot_be_changed_once_made() -> None:
    stage = find_stage("toystages.total", "stages.x")
    with pytest.raises(AttributeError):
        stage.kind = "other"  # type: ignore[misc]
    assert replace(stage, kind="other").kind == "other"
