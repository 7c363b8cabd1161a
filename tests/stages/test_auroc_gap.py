"""Real minus synthetic AUROC: the difference of the two stages' numbers, pairing, Holm, what cannot be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from tiny_densenet import CLASSES, supplier, tiny_settings
from tiny_stages import artifact, found, run_stage, stage_context, values

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import holm_adjust
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, find_stage

STAGE = find_stage("auroc_gap", "auroc_gap")
NUM = 90
LABEL = torch.arange(NUM) % 3


def classifier(
    folder: Path,
    arm: str,
    *,
    strength: float,
    seed: int = 0,
    seeds: tuple[int, ...] = (1, 2),
    digest: str = "ab",
    label: torch.Tensor = LABEL,
) -> Artifact:
    """The scores of a ``tstr_densenet`` whose logits lean to the truth by ``strength``."""
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(seeds), NUM, 3, generator=stream) + strength * torch.nn.functional.one_hot(
        label, 3
    )
    probability = logits.softmax(2)
    tensors = {
        "test.probability": probability[0], "test.probability_by_seed": probability, "test.label": label,
        "test.patient": torch.arange(NUM) // 2,
    }  # fmt: skip
    path = folder / arm / "output"
    artifact(path, {"scores.safetensors": tensors})
    notes = {"classes": list(CLASSES), "task": "multiclass", "test_sha256": digest * 32}
    return found(path, {"arm": arm, "seeds": list(seeds)}, Outcome(notes=notes))


def gap(folder: Path, real: Artifact, *synthetic: Artifact, **changes: Any) -> Artifact:
    roles = ["synthetic", *(f"synthetic_{number}" for number in range(2, 1 + len(synthetic)))]
    inputs = {"real": real, **dict(zip(roles, synthetic, strict=True))}
    return run_stage(
        "auroc_gap", tiny_settings("auroc_gap", **changes), inputs, stage_context(folder / "gap")
    )


def macro(one: Artifact, seed: int) -> float:
    probability = one.load("scores.safetensors")["test.probability_by_seed"][seed].double()
    return sum(float(roc_auc_score(k == LABEL, probability[:, k])) for k in range(3)) / 3


def test_gaps_are_differences_of_means_over_seeds(tmp_path: Path) -> None:
    real = classifier(tmp_path, "real", strength=2.0, seed=1)
    other = classifier(tmp_path, "made", strength=1.0, seed=2, seeds=(2, 3, 4))
    result = gap(tmp_path, real, other)
    reported = values(result)
    wanted = sum(macro(real, s) for s in range(2)) / 2 - sum(macro(other, s) for s in range(3)) / 3
    assert reported["made", "gap", 42] == pytest.approx(wanted)
    assert reported["made", "gap", 42] == pytest.approx(
        sum(reported["made", f"gap/{name}", 42] for name in CLASSES) / 3
    )
    # The seeds that both have: 2 alone, the second of one and the first of the other.
    by_seed = {seed: value for (_, metric, seed), value in reported.items() if metric == "gap_by_seed"}
    assert by_seed == {2: pytest.approx(macro(real, 1) - macro(other, 0))}
    row = next(row for row in result.manifest["metrics"] if row["metric"] == "gap")
    assert row["ci_low"] < row["value"] < row["ci_high"]
    written = json.loads(result.file("gaps.json").read_text())
    assert written["real"] == "real"
    assert written["gaps"]["made"]["estimate"] == row["value"]
    assert written["gaps"]["made"]["by_seed"] == {"2": pytest.approx(by_seed[2])}
    assert written["auroc"]["made"]["estimate"] == pytest.approx(sum(macro(other, s) for s in range(3)) / 3)


def test_a_classifier_with_the_same_scores_has_no_gap(tmp_path: Path) -> None:
    """One seed each, so that only patients are drawn, and both see the same ones."""
    one = classifier(tmp_path, "real", strength=1.0, seed=3, seeds=(1,))
    other = classifier(tmp_path, "copy", strength=1.0, seed=3, seeds=(1,))
    rows = {row["metric"]: row for row in gap(tmp_path, one, other).manifest["metrics"]}
    assert (rows["gap"]["value"], rows["gap"]["ci_low"], rows["gap"]["ci_high"]) == (0, 0, 0)
    assert rows["p_value"]["value"] == 1


def test_seeds_that_disagree_widen_the_interval(tmp_path: Path) -> None:
    """A system whose seeds differ in quality is known less well than one whose seeds are alike."""
    real = classifier(tmp_path, "real", strength=3.0, seed=1)
    alike = classifier(tmp_path, "alike", strength=1.0, seed=5)
    other = classifier(tmp_path, "apart", strength=1.0, seed=5)
    stored = other.load("scores.safetensors")
    stored["test.probability_by_seed"][1] = torch.rand(NUM, 3, generator=torch.Generator().manual_seed(0))
    made = artifact(tmp_path / "apart2" / "output", {"scores.safetensors": stored})
    apart = found(made.path, other.manifest["settings"], Outcome(notes=other.manifest["notes"]))
    rows = {
        row["arm"]: row
        for row in gap(tmp_path, real, alike, apart).manifest["metrics"]
        if row["metric"] == "gap"
    }
    widths = {arm: row["ci_high"] - row["ci_low"] for arm, row in rows.items()}
    assert widths["apart"] > 1.5 * widths["alike"]


def test_holm_covers_all_synthetic_sets(tmp_path: Path) -> None:
    real = classifier(tmp_path, "real", strength=1.2, seed=1)
    others = [classifier(tmp_path, f"m{k}", strength=1.1 - 0.1 * k, seed=10 + k) for k in range(3)]
    reported = values(gap(tmp_path, real, *others))
    raw = {arm: value for (arm, metric, _), value in reported.items() if metric == "p_value"}
    adjusted = {arm: value for (arm, metric, _), value in reported.items() if metric == "p_holm"}
    assert set(raw) == {"m0", "m1", "m2"}
    assert adjusted == holm_adjust(raw)


def test_a_class_that_is_never_tested_has_no_gap(tmp_path: Path) -> None:
    label = torch.arange(NUM) % 2
    one = classifier(tmp_path, "real", strength=2.0, label=label)
    other = classifier(tmp_path, "made", strength=1.0, seed=4, label=label)
    result = gap(tmp_path, one, other)
    assert math.isnan(values(result)["made", "gap/virus", 42])
    assert math.isfinite(values(result)["made", "gap", 42])
    assert (
        json.loads(result.file("gaps.json").read_text())["gaps"]["made"]["by_class"]["virus"]["estimate"]
        is None
    )


def test_other_test_images_and_damaged_scores_are_refused(tmp_path: Path) -> None:
    real = classifier(tmp_path, "real", strength=1.0)
    with pytest.raises(
        ConfigError, match=r"stages\.made and stages\.real were not tested on the same images"
    ):
        gap(tmp_path, real, classifier(tmp_path, "made", strength=1.0, digest="cd"))
    bad = classifier(tmp_path, "bad", strength=1.0)
    bad = found(bad.path, {"arm": "bad", "seeds": [1, 2, 3]}, Outcome(notes=bad.manifest["notes"]))
    with pytest.raises(ArtifactError, match=r"no test\.probability_by_seed of its 3 seeds"):
        gap(tmp_path, real, bad)


def test_suppliers_are_checked_before_anything_runs() -> None:
    settings, real = tiny_settings("auroc_gap"), supplier("c_real", "real", images="images_a")
    good = supplier("c_made", "made", images="images_a")
    STAGE.check_suppliers(settings, {"real": real, "synthetic": good}, "stages.gap")
    for bad, message in (
        (supplier("c", "made", images="images_b"), r"tested on images_a, .* got c tested on images_b"),
        (supplier("c", "real", images="images_a"), r"whose arm 'real' is also that of real"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            STAGE.check_suppliers(settings, {"real": real, "synthetic": bad}, "stages.gap")
        assert caught.value.key == "stages.gap.inputs.synthetic"
    with pytest.raises(ConfigError, match="num_bootstrap must be"):
        tiny_settings("auroc_gap", num_bootstrap=0)
