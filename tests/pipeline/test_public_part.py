"""Private files of a released artifact: no server gets them in any way, clients and auditors do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import plan, run, toy
from toystages.keeper import SECRET

from fedsynth.errors import ArtifactError, PrivateInputError
from fedsynth.pipeline.public_part import SHOWN, has_private_part, public_manifest
from fedsynth.pipeline.stage import Sensitivity, Side


def stages(**reader: Any) -> dict[str, Any]:
    return {
        "measure": toy("measure"),
        "keeper": toy("keeper", inputs={"numbers": "measure"}),
        "reader": toy("reader", inputs={"release": "keeper"}, **reader),
    }


def read(root: Path, **reader: Any) -> dict[str, Any]:
    artifact = run(root, stages(**reader))["reader"]["artifact"]
    found: dict[str, Any] = json.loads(artifact.file("result.json").read_text())
    return found


def test_a_server_gets_nothing_private_in_any_way(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found["seen"] == {"numbers.safetensors": {"shown": [1]}}
    assert found["refused"] == [
        ["alone.safetensors", "ArtifactError"],
        ["private/numbers.safetensors", "PrivateInputError"],
    ]
    assert found["files"] == ["manifest.json", "numbers.safetensors"]
    assert str(SECRET) not in json.dumps(found)
    assert found["manifest"]["notes"] == {"count": 1}
    assert set(found["manifest"]) == {*SHOWN, "metrics", "notes", "files"}


def test_an_auditor_gets_everything(tmp_path: Path) -> None:
    found = read(tmp_path, as_auditor=True)
    assert found["seen"]["numbers.safetensors"] == {"shown": [1], "origin": [SECRET]}
    assert found["seen"]["alone.safetensors"] == {"origin": [SECRET]}
    assert found["refused"] == []
    assert found["manifest"]["notes"]["private"] == {"origin": SECRET}
    assert found["manifest"]["metrics"][0]["value"] == SECRET


def test_the_stored_artifact_is_whole_after_a_server_has_read_it(tmp_path: Path) -> None:
    done = run(tmp_path, stages())
    again = run(tmp_path, stages())
    assert again["keeper"]["status"] == "cached"
    assert has_private_part(again["keeper"]["artifact"])
    assert not list((tmp_path / "reader").glob("*.partial"))
    assert done["reader"]["artifact"].manifest["inputs"] == {"release": again["keeper"]["artifact"].key}


def test_what_an_auditor_makes_of_private_files_does_not_reach_a_server() -> None:
    # Of `publish`, which keeps nothing, an auditor's result is as released as before.
    planned = {one.name: one for one in plan(stages(as_auditor=True))}
    assert planned["keeper"].sensitivity is Sensitivity.RELEASED
    assert (planned["reader"].side, planned["reader"].sensitivity) == (Side.AUDITOR, Sensitivity.PRIVATE)
    with pytest.raises(PrivateInputError, match=r"stages\.total .* comes from 'reader'"):
        plan(stages(as_auditor=True) | {"total": toy("total", inputs={"release": "reader"})})


def test_private_files_must_be_declared(tmp_path: Path) -> None:
    careless = stages() | {"keeper": toy("careless", inputs={"numbers": "measure"})}
    with pytest.raises(ArtifactError, match=r"stages\.keeper wrote private files .* keeps_private=True"):
        run(tmp_path, careless)
    assert not list((tmp_path / "keeper").glob("*/manifest.json"))


def test_a_private_tensor_never_hides_a_public_one(tmp_path: Path) -> None:
    artifact = run(tmp_path, stages())["keeper"]["artifact"]
    private = artifact.path / "private" / "numbers.safetensors"
    private.unlink()
    private.hardlink_to(artifact.path / "numbers.safetensors")
    with pytest.raises(ArtifactError, match=r"holds shown in numbers\.safetensors and in private"):
        artifact.load("numbers.safetensors")


def test_an_entry_nobody_thought_of_stays_with_the_clients() -> None:
    manifest = {
        "files": {"a": {}, "private/b": {}},
        "notes": {"private": 1},
        "of_the_future": SECRET,
        "kind": "k",
    }
    shown = public_manifest(manifest)
    assert shown == {"kind": "k", "metrics": [], "notes": {}, "files": {"a": {}}}


def test_a_plan_knows_what_inputs_are_made_of() -> None:
    (reader,) = (one for one in plan(stages()) if one.name == "reader")
    assert reader.suppliers["release"].suppliers["numbers"].name == "measure"
