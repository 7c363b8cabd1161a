"""Thresholds of the identity filter: their error rates class by class, and the persons they are chosen on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_candidates import (
    CLASSES,
    NUM_TRAIN,
    tiny_images,
)
from tiny_selection import probability, selected, selection_inputs, told
from tiny_stages import artifact, values
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.evaluation.checks import EvaluationError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.select_images.thresholds import error_rates_by_class


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return selection_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("by", ["all", "class"])
def test_error_rates_by_class_are_those_of_counting(
    tmp_path: Path, inputs: dict[str, Artifact], by: str
) -> None:
    artifact = selected(tmp_path / "a", inputs, threshold_rule="fpr", threshold_value=0.1, threshold_by=by)
    limits = {row["class"]: row["threshold"] for row in told(artifact)["thresholds"]}
    rows = {(row["pairs"], row["class"]): row for row in told(artifact)["error_rates"]}
    names = CLASSES if by == "class" else ("all", *CLASSES)
    assert set(rows) == {(pairs, name) for pairs in ("validation", "test") for name in names}
    for pairs, file in (("validation", "calibration"), ("test", "test_pairs")):
        held = inputs["reidentifier"].load(f"{file}.safetensors")
        for name in names:
            own = torch.tensor(
                [name == "all" or CLASSES[number] == name for number in held["label"].tolist()]
            )
            limit, row = limits["all" if by == "all" else name], rows[pairs, name]
            assert row["threshold"] == limit
            for rate, kind, is_error in (("fpr", 0, True), ("fnr", 1, False)):
                p = held["probability"][own & (held["is_same"] == kind)].tolist()
                assert row[rate] == pytest.approx(sum((value > limit) == is_error for value in p) / len(p))
                assert row[f"{rate}_low"] <= row[rate] <= row[f"{rate}_high"]
                assert row["one_person" if kind else "two_persons"] == len(p)
    if by == "all":  # the rate holds for all pairs together, which chose it, and not for every class
        assert rows["validation", "all"]["fpr"] <= 0.1 < max(rows["test", name]["fpr"] for name in names)


def test_a_class_without_pairs_has_no_rate() -> None:
    pairs = {
        "probability": torch.tensor([0.2, 0.8]),
        "is_same": torch.tensor([0, 0]),
        "label": torch.tensor([[1, 0]] * 2),
    }
    (ill, well) = error_rates_by_class({"test": pairs}, {"ill": 0.5, "well": 0.5}, ["ill", "well"])
    assert (ill["fpr"], ill["two_persons"], ill["fnr"], ill["one_person"]) == (0.5, 2, None, 0)
    assert (well["fpr"], well["two_persons"]) == (None, 0)


def test_thresholds_by_class_have_the_rate_asked_for_in_each(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    artifact = selected(
        tmp_path / "a", inputs, threshold_rule="fpr", threshold_value=0.1, threshold_by="class"
    )
    rows = {row["class"]: row for row in told(artifact)["thresholds"]}
    assert tuple(rows) == CLASSES
    assert all(row["fpr"] <= 0.1 for row in rows.values())
    made = read_image_set(artifact)
    assert made.source is not None
    p = probability(inputs, made.source, made.image)
    for name, number in zip(CLASSES, range(3), strict=True):
        assert float(p[made.label == number].max()) <= rows[name]["threshold"]


def test_without_filter_no_threshold_is_in_the_way(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    # A class without pairs: no threshold of its own, which the filter refuses and a set without one never needs.
    held = inputs["reidentifier"].load("calibration.safetensors")
    one_class = {name: values[held["label"] == 0] for name, values in held.items()}
    files = {name: inputs["reidentifier"].load(name) for name in inputs["reidentifier"].manifest["files"]}
    poor = artifact(
        tmp_path / "poor" / "output", {**files, "calibration.safetensors": one_class},
        notes=inputs["reidentifier"].manifest["notes"],
    )  # fmt: skip
    given = {**inputs, "reidentifier": poor}
    by_class = {"threshold_rule": "fpr", "threshold_value": 0.1, "threshold_by": "class"}
    with pytest.raises(EvaluationError, match="Class bacteria has 0 held-out pairs"):
        selected(tmp_path / "a", given, **by_class)
    made = selected(tmp_path / "b", given, filter="none", release=False, **by_class)
    assert len(read_image_set(made)) == NUM_TRAIN
    # Nobody judged: no share of flagged candidates is claimed, not even 0.
    assert not [name for _, name, _ in values(made) if "flagged" in name]
    assert all(row["flagged_share"] is None for row in told(made)["per_class"].values())


def test_an_identity_network_that_knows_the_held_out_is_refused(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    def network(name: str, patients: Tensor | None) -> Artifact:
        files = {file: inputs["reidentifier"].load(file) for file in inputs["reidentifier"].manifest["files"]}
        del files["patients.safetensors"]
        if patients is not None:
            files["patients.safetensors"] = {"train": patients}
        notes = inputs["reidentifier"].manifest["notes"]
        return artifact(tmp_path / name / "output", files, notes=notes)

    held_out = tiny_images()["val"].patient
    assert held_out is not None
    given = {**inputs, "reidentifier": network("of_all", torch.cat([torch.arange(NUM_TRAIN), held_out[:3]]))}
    with pytest.raises(DataError, match="of_all was trained on 3 patients whom images holds out in val"):
        selected(tmp_path / "a", given)
    unfiltered = selected(tmp_path / "b", given, filter="none", release=False)
    assert told(unfiltered)["held_out_persons_are_strangers"] is None
    unknown = selected(tmp_path / "c", {**inputs, "reidentifier": network("unknown", None)})
    assert told(unknown)["held_out_persons_are_strangers"] is False
    assert told(selected(tmp_path / "d", inputs))["held_out_persons_are_strangers"] is True
