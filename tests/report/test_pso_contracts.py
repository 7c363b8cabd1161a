"""What the stages really write is what the report reads: one small selection and one small audit, run for real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))

from tiny_audited import (
    audit_settings,
    made_set,
    real_sets,
    reidentifier,
    settings_of,
    small_encoder,
    stored_images,
)
from tiny_candidates import half_flagged, sampler_settings, selection_settings, tiny_images, tiny_inputs
from tiny_stages import run_stage, stage_context

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.report import collect_records
from fedsynth.report.pso_isolation import read_isolation
from fedsynth.report.pso_verdicts import read_verdicts
from fedsynth.report.runs import Run, StageResult
from fedsynth.report.section import Material
from fedsynth.report.sections.pso_images import by_class
from fedsynth.report.sections.pso_quality import image_quality_section
from fedsynth.report.sections.pso_selection import selection_section
from fedsynth.report.sections.pso_singling_out import singling_out_section

CONFIG = {
    "images": {"stage": "xray_images"},
    "features": {"stage": "pseudo_features", "inputs": {"images": "images"}, "encoder": "efficientnet_lite0"},
    "made": {"stage": "select_images", "filter": "mask", "arm": "made",
             "inputs": {"images": "images", "candidates": "candidates", "reidentifier": "reidentifier"}},
    "audit": {"stage": "audit_images", "arm": "made",
              "inputs": {"images": "images", "released": "made", "features": "features"}},
}  # fmt: skip


def material(name: str, kind: str, artifact: Artifact) -> Material:
    """A run of one stage that was really run."""
    stage = StageResult(
        name, kind, "k", artifact.path, "computed", 1.0, "private", "auditor", artifact.manifest
    )
    info = {"experiment": "e", "run_id": "r", "seed": 42, "config": {"stages": CONFIG}, "stages": {}}
    run = Run(artifact.path, info, {name: stage})
    return Material((run,), tuple(collect_records([run])))


@pytest.fixture(scope="module")
def selection(tmp_path_factory) -> Material:
    folder = tmp_path_factory.mktemp("selection")
    inputs = tiny_inputs(folder)
    inputs["candidates"] = run_stage(
        "synthesize_images", sampler_settings(), inputs, stage_context(folder / "drawn")
    )
    inputs["reidentifier"] = half_flagged(folder / "half", inputs, inputs["candidates"])
    made = run_stage("select_images", selection_settings(), inputs, stage_context(folder / "made"))
    return material("made", "select_images", made)


@pytest.fixture(scope="module")
def audit(tmp_path_factory) -> Material:
    folder = tmp_path_factory.mktemp("audit")
    inputs = {"images": stored_images(folder / "images", "xray_images", **real_sets())}
    settings = small_encoder(folder)
    features = run_stage("pseudo_features", settings, inputs, stage_context(folder / "features"))
    inputs["features"] = settings_of(features, settings)
    inputs["reidentifier"] = reidentifier(folder / "reidentifier")
    train = real_sets()["train"]
    copies = made_set(train.image, torch.arange(len(train)), train)
    inputs["released"] = stored_images(folder / "made", "select_images", train=copies)
    found = run_stage("audit_images", audit_settings(), inputs, stage_context(folder / "audit"))
    return material("audit", "audit_images", found)


def test_verdicts_and_classes_of_a_real_selection_are_shown(selection):
    stage = selection.runs[0].stages["made"]
    rows = read_verdicts(stage)
    classes = tiny_images()["train"].classes
    assert [row.label for row in rows] == [name for name in classes for _ in range(2)]
    assert all(not (row.flagged & row.chosen).any() for row in rows)
    assert sum(int(row.flagged.sum()) for row in rows) > 0
    assert all(row.probability is not None for row in rows)
    assert set(by_class(stage)) <= set(classes)
    section = selection_section(selection)
    assert [figure.name for figure in section.figures] == ["pso_verdicts"]
    for name, counts in stage.notes["per_class"].items():
        assert f"| {name} | {counts['sources']} | {100 * counts['flagged_share']:.1f}" in section.text
    assert f"| {stage.notes['thresholds'][0]['threshold']:.3f} |" in section.text


def test_every_row_of_a_real_audit_is_shown_once(audit):
    stage = audit.runs[0].stages["audit"]
    section = singling_out_section(audit)
    lines = [line for line in section.text.splitlines() if line.startswith("| ")]
    assert (
        len(lines) == len(stage.notes["table"]) + 2 * 2
    )  # two tables, each with a heading and the line below it
    assert "▲" in section.text  # training images, released, are found out
    assert all(f"- **{space}**: {use}" in section.text for space, use in stage.notes["uses"].items())
    assert "A bound of 1 says nothing." in section.text
    curves = read_isolation(stage)
    assert set(curves) >= set(stage.notes["spaces"])
    assert all(curve.isolating.tolist() == curve.positive.tolist() for curve in curves.values())
    assert [figure.name for figure in section.figures] == ["pso_isolation"]


def test_every_space_of_a_real_audit_has_a_row(audit):
    notes = audit.runs[0].stages["audit"].notes
    text = image_quality_section(audit).text
    assert all(f"| {name} | **" in text for name in notes["spaces"])
    assert all(f"| {name} | 60 of 60 |" in text for name in notes["spaces"])  # IRS stands beside its n
