"""AUROC by class and macro: against scikit-learn and resampled records; pairing; what is undefined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedsynth.evaluation import EvaluationError, replicate_differences
from fedsynth.evaluation import macro_auroc as module
from fedsynth.evaluation.macro_auroc import auroc_replicates, both_kinds, class_aurocs, macro_auroc


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scored(
    num: int = 60, classes: int = 3, seeds: int = 2, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores [seed, n, k] with ties that lean to the truth, targets, and patients of one to three images."""
    random = stream(seed)
    target = torch.randint(2, (num, classes), generator=random)
    target[:2] = torch.tensor([[0] * classes, [1] * classes])
    score = torch.randn(seeds, num, classes, generator=random) + target
    patient = torch.arange(num).div(2, rounding_mode="floor") + torch.randint(2, (num,), generator=random)
    return (score * 4).round() / 4, target, patient


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_every_class_is_that_of_scikit_learn(num: int, classes: int, seed: int) -> None:
    score, target, _ = scored(num, classes, seed=seed)
    wanted = [roc_auc_score(target[:, k], score[0, :, k]) for k in range(classes)]
    np.testing.assert_allclose(class_aurocs(score[0], target), wanted, atol=1e-12)
    assert macro_auroc(score[0], target) == pytest.approx(np.mean(wanted), abs=1e-12)


def test_one_against_the_rest_is_scikit_learn_s_macro_ovr() -> None:
    random = stream(4)
    label = torch.arange(90) % 3
    probability = (
        (torch.randn(90, 3, generator=random) + torch.nn.functional.one_hot(label, 3)).softmax(1).double()
    )
    probability /= probability.sum(1, keepdim=True)
    wanted = roc_auc_score(label, probability, multi_class="ovr", average="macro")
    assert macro_auroc(probability, torch.nn.functional.one_hot(label, 3)) == pytest.approx(wanted, abs=1e-12)


def test_classes_of_one_kind_have_no_auroc_and_stay_out_of_the_mean() -> None:
    score, target, patient = scored()
    target[:, 1] = 0
    assert both_kinds(target).tolist() == [True, False, True]
    by_class = class_aurocs(score[0], target)
    assert by_class.isnan().tolist() == [False, True, False]
    assert macro_auroc(score[0], target) == pytest.approx(float(by_class[[0, 2]].mean()))
    made = auroc_replicates({"a": score}, target, patient, generator=stream(), num_replicates=5)["a"]
    torch.testing.assert_close(made[0, 3], made[0, [0, 2]].mean())
    assert np.isnan(macro_auroc(score[0], torch.zeros_like(target)))


def test_replicates_are_the_auroc_of_resampled_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights stand for records repeated as often as their patient was drawn; chunks change nothing."""
    score, target, patient = scored()
    seen: list[torch.Tensor] = []
    weights = module._patient_weights

    def spied(*arguments: object) -> object:
        for one in weights(*arguments):  # type: ignore[arg-type]
            seen.append(one)
            yield one

    monkeypatch.setattr(module, "_patient_weights", spied)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 7 * len(target))
    made = auroc_replicates({"a": score}, target, patient, generator=stream(5), num_replicates=20)["a"]
    weight = torch.cat(seen).long()
    assert len(weight) == len(made) == 21
    for replicate in range(21):
        by_patient = {int(p): set(weight[replicate][patient == p].tolist()) for p in patient.unique()}
        assert all(len(times) == 1 for times in by_patient.values())
        assert sum(next(iter(times)) for times in by_patient.values()) == len(by_patient)
        rows = torch.arange(len(target)).repeat_interleave(weight[replicate])
        wanted = torch.stack([class_aurocs(one[rows], target[rows]) for one in score]).mean(0)
        torch.testing.assert_close(made[replicate, :3], wanted)
    monkeypatch.undo()
    whole = auroc_replicates({"a": score}, target, patient, generator=stream(5), num_replicates=20)["a"]
    assert torch.equal(made, whole)


def test_a_system_differs_in_nothing_from_itself_and_draws_are_shared() -> None:
    score, target, patient = scored()
    made = auroc_replicates({"a": score, "b": score}, target, patient, generator=stream(1), num_replicates=50)
    assert torch.equal(made["a"], made["b"])
    shifted = auroc_replicates(
        {"a": score, "b": 2 * score + 1}, target, patient, generator=stream(1), num_replicates=50
    )
    difference = replicate_differences({"macro": shifted["a"][:, 3]}, {"macro": shifted["b"][:, 3]})["macro"]
    assert (difference.estimate, difference.low, difference.high, difference.p_value) == (0, 0, 0, 1)


def test_resampled_seeds_vary_with_the_variance_of_a_mean_of_draws() -> None:
    """Patients fixed (one image each, all alike by construction): only seeds vary, as means of n draws do."""
    num = 40
    target = torch.stack([torch.arange(num) % 2, 1 - torch.arange(num) % 2], dim=1)
    right, wrong = target.double(), 1.0 - target
    score = torch.stack([right, wrong])  # AUROC 1 and 0, in every resample of patients
    made = auroc_replicates(
        {"a": score},
        target,
        torch.arange(num) // 2,
        generator=stream(2),
        num_replicates=4000,
        resample_seeds=True,
    )["a"][:, 2]
    assert made[0] == 0.5
    assert set(made[1:].tolist()) == {0.0, 0.5, 1.0}
    # Mean of two draws from {0, 1}: variance 1/8; 0.007 is four standard errors over 4,000 replicates.
    assert float(made[1:].var()) == pytest.approx(1 / 8, abs=0.007)
    fixed = auroc_replicates(
        {"a": score}, target, torch.arange(num) // 2, generator=stream(2), num_replicates=20
    )["a"]
    assert (fixed[:, 2] == 0.5).all()


def test_copies_of_the_images_of_a_patient_narrow_nothing() -> None:
    """Three copies of every patient's only image: the replicates of one copy, not those of three times the images."""
    score, target, _ = scored(50, seed=3)
    options = {"num_replicates": 60}
    once = auroc_replicates({"a": score}, target, torch.arange(50), generator=stream(), **options)["a"]
    copied = auroc_replicates(
        {"a": score.repeat(1, 3, 1)},
        target.repeat(3, 1),
        torch.arange(50).repeat(3),
        generator=stream(),
        **options,
    )["a"]
    torch.testing.assert_close(copied, once, equal_nan=True)


def test_bad_scores_targets_and_patients_are_refused() -> None:
    score, target, patient = scored()
    with pytest.raises(EvaluationError, match="same shape"):
        class_aurocs(score[0, :-1], target)
    with pytest.raises(EvaluationError, match="only 0 and 1"):
        macro_auroc(score[0], target + 1)
    with pytest.raises(EvaluationError, match="NaN"):
        macro_auroc(score[0] * float("nan"), target)
    for bad, message in (
        ({"systems": {}}, "at least one system"),
        ({"systems": {"a": score[0]}}, r"scores of 'a' must have shape \[seeds, images, classes\]"),
        ({"systems": {"a": score[:, 1:]}}, "scores of 'a' and target must have the same shape"),
        ({"patient": patient[1:]}, "patient must hold one number an image"),
        ({"num_replicates": 0}, "num_replicates"),
        ({"generator": None}, "torch.Generator"),
    ):
        arguments = {
            "systems": {"a": score},
            "patient": patient,
            "num_replicates": 3,
            "generator": stream(),
            **bad,
        }
        with pytest.raises(EvaluationError, match=message):
            auroc_replicates(arguments.pop("systems"), target, arguments.pop("patient"), **arguments)  # type: ignore[arg-type]
