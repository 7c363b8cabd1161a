"""A filter that recognizes nobody releases nothing; one that is only looked at says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from tiny_candidates import CLASSES, NUM_TRAIN
from tiny_selection import selected, selection_inputs, told
from tiny_stages import artifact
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set import read_image_set
from fedsynth.stages.select_images.recognition import equal_probabilities, missed_everybody
from fedsynth.stages.select_images.scoring import CandidateScorer
from fedsynth.stages.select_images.thresholds import Thresholds


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return selection_inputs(tmp_path_factory.mktemp("inputs"))


def held_out(missed: int, num: int) -> dict[str, Tensor]:
    """So many pairs of one person, of which so many lie below 0.5, and as many of two, all of the first class."""
    probability = torch.full((num,), 0.9)
    probability[:missed] = 0.1
    return {
        "probability": torch.cat([probability, torch.linspace(0.0, 0.4, num)]),
        "is_same": torch.cat([torch.ones(num), torch.zeros(num)]).long(),
        "label": torch.zeros(2 * num).long(),
    }


def with_calibration(
    folder: Path, inputs: dict[str, Artifact], calibration: dict[str, Tensor]
) -> dict[str, Artifact]:
    network = inputs["reidentifier"]
    files = {name: network.load(name) for name in network.manifest["files"]}
    made = artifact(folder / "output", {**files, "calibration.safetensors": calibration},
                    notes=network.manifest["notes"])  # fmt: skip
    return {**inputs, "reidentifier": made}


BLIND = {**held_out(50, 100), "probability": torch.full((200,), 0.5)}
#: What chose the thresholds, the rule, and what the message must name.
FAULTS = {
    "equal": (BLIND, "youden", None, "all 200 validation pairs the probability 0.5"),
    "missed": (
        held_out(199, 200), "fixed", 0.5,
        r"0\.5 \(all\) misses 99\.5% of 200 validation pairs of one person \(FNR, 95 % interval 97\.2% to 99\.9%\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_recognizes_nobody_is_refused_before_scoring(
    tmp_path: Path, inputs: dict[str, Artifact], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration, rule, value, said = FAULTS[name]
    given = with_calibration(tmp_path / "network", inputs, calibration)
    monkeypatch.setattr(CandidateScorer, "score", lambda *_: pytest.fail("a candidate was scored"))
    with pytest.raises(DataError, match=said) as refused:
        selected(tmp_path / "a", given, threshold_rule=rule, threshold_value=value)
    for part in ("recognizes almost nobody", "reidentification.max_epochs", "reidentification.loss",
                 "selection.release=false"):  # fmt: skip
        assert part in str(refused.value)


def test_what_stays_with_the_client_may_be_looked_at_with_a_warning(
    tmp_path: Path, inputs: dict[str, Artifact], caplog: pytest.LogCaptureFixture
) -> None:
    calibration, rule, value, _ = FAULTS["missed"]
    given = with_calibration(tmp_path / "network", inputs, calibration)
    with caplog.at_level(logging.WARNING):
        made = selected(tmp_path / "a", given, threshold_rule=rule, threshold_value=value, release=False)
    assert len(read_image_set(made))
    assert "recognizes almost nobody" in caplog.text
    assert "99.5% of 200" in told(made)["filter_fault"]
    assert "99.5%" not in str({**made.manifest["notes"], "private": None}), "rates stay private"


def test_a_filter_that_recognizes_some_and_a_set_without_filter_pass(
    tmp_path: Path, inputs: dict[str, Artifact], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert told(selected(tmp_path / "a", inputs))["filter_fault"] is None
        given = with_calibration(tmp_path / "network", inputs, BLIND)
        unfiltered = selected(tmp_path / "b", given, filter="none")
    assert len(read_image_set(unfiltered)) == NUM_TRAIN
    assert "recognizes" not in caplog.text


def filter_at(limits: dict[str, float], train: float | None = None) -> Thresholds:
    rows = [
        {"compared_with": "own source", "class": name, "threshold": limit} for name, limit in limits.items()
    ]
    return Thresholds(torch.tensor(list(limits.values())), train, rows)


def test_only_what_is_sure_is_a_fault() -> None:
    # Missed m of m: the Wilson interval starts at m / (m + 1.96²), which is 0.95 at m = 72.99.
    assert missed_everybody(held_out(72, 72), filter_at({"all": 0.5}), CLASSES) is None
    assert missed_everybody(held_out(73, 73), filter_at({"all": 0.5}), CLASSES) is not None
    # 95 % missed are not more than 95 %.
    assert missed_everybody(held_out(950, 1000), filter_at({"all": 0.5}), CLASSES) is None
    # The lower of the two thresholds flags: what exceeds it among all training images is caught too.
    assert missed_everybody(held_out(200, 200), filter_at({"all": 0.5}, train=0.05), CLASSES) is None
    assert missed_everybody(held_out(200, 200), filter_at({"all": 0.5}, train=0.8), CLASSES) is not None


def test_one_class_that_nobody_is_recognized_in_is_enough() -> None:
    seen, blind = held_out(0, 100), held_out(100, 100)
    blind["label"] = blind["label"] + 1
    pairs = {name: torch.cat([seen[name], blind[name]]) for name in seen}
    fault = missed_everybody(pairs, filter_at({"normal": 0.5, "bacteria": 0.5}), CLASSES)
    assert fault is not None
    assert "(bacteria) misses 100.0% of 100" in fault
    assert "normal" not in fault
    # One threshold for both recognizes half of them.
    assert missed_everybody(pairs, filter_at({"all": 0.5}), CLASSES) is None


def test_one_other_probability_is_enough_to_tell() -> None:
    assert equal_probabilities(BLIND) is not None
    other = BLIND["probability"].clone()
    other[7] = 0.501
    assert equal_probabilities({**BLIND, "probability": other}) is None
