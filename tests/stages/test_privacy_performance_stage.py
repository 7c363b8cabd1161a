"""One system scored: participants, inference by softmax and prototypes, attacks, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from tiny_classifier import HISTORY, StoredAnswers, answers, bank, planned, planned_stage
from tiny_stages import artifact, run_stage, stage_context, values

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.evaluation import normalized_privacy_score, privacy_performance_score
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.multimodal.trained import SplitOutputs
from fedsynth.stages.privacy_performance import run as module
from fedsynth.stages.privacy_performance.decisions import AnsweredSplit

ARM = "one"


class Scoring:
    """Runs the stage on stored answers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch, self.number = folder, monkeypatch, 0

    def __call__(self, classifier: StoredAnswers, **changes: Any) -> Artifact:
        self.monkeypatch.setattr(module, "open_classifier", lambda encoder, clients: classifier)
        self.number += 1
        folder = self.folder / str(self.number)
        inputs = {name: artifact(folder / name / "output", {}) for name in ("clients", "encoder")}
        settings = dataclasses.replace(planned()["score"], **{"target_uar": 0.8, **changes})
        return run_stage("privacy_performance", settings, inputs, stage_context(folder / "score"))


@pytest.fixture
def score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scoring:
    return Scoring(tmp_path, monkeypatch)


def numbers(made: Artifact) -> dict[str, float]:
    found = values(made)
    assert {(arm, seed) for arm, _, seed in found} == {(ARM, 42)}
    return {metric: value for (_, metric, _), value in found.items()}


def pooled(one: SplitOutputs, model: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean probability of class 1 and label by participant, the slow way."""
    probability = one.logits[model].double().softmax(dim=1)[:, 1]
    people = one.group.unique()
    means = torch.stack([probability[one.group == number].mean() for number in people])
    return means, torch.stack([one.label[one.group == number][0] for number in people])


def attack(
    split: Mapping[str, SplitOutputs], others: str, *, by_label: bool = False, model: int = 0
) -> float:
    scores = []
    for name in ("train", others):
        probability, label = pooled(split[name], model)
        own = torch.where(label == 1, probability, 1 - probability)
        scores.append(own if by_label else torch.maximum(probability, 1 - probability))
    is_member = torch.arange(sum(map(len, scores))) < len(scores[0])
    return float(roc_auc_score(is_member, torch.cat(scores)))


def test_participants_are_the_unit_and_segments_stand_beside_them(score: Scoring) -> None:
    given = answers()
    found = numbers(score(StoredAnswers(given)))
    probability, label = pooled(given["test"])
    assert found["test/uar"] == pytest.approx(balanced_accuracy_score(label, probability > 0.5))
    assert found["attack_auroc"] == pytest.approx(attack(given, "test"))
    assert found["attack_auroc_true_class"] == pytest.approx(attack(given, "test", by_label=True))
    assert found["attack_auroc_val"] == pytest.approx(attack(given, "val"))
    segments = given["test"].logits[0].argmax(dim=1)
    assert found["segment/test/uar"] == pytest.approx(balanced_accuracy_score(given["test"].label, segments))
    confidence = [given[name].logits[0].double().softmax(1).amax(1) for name in ("train", "test")]
    is_member = torch.arange(sum(map(len, confidence))) < len(confidence[0])
    assert found["segment/attack_auroc"] == pytest.approx(roc_auc_score(is_member, torch.cat(confidence)))


def test_every_row_satisfies_the_formulas_of_the_paper(score: Scoring) -> None:
    for models in (1, 2):
        found = numbers(score(StoredAnswers(answers(models=models))))
        for prefix in ("", "segment/"):
            rho = normalized_privacy_score(found[f"{prefix}attack_auroc"])
            assert found[f"{prefix}privacy_score"] == rho
            assert found[f"{prefix}pps"] == privacy_performance_score(found[f"{prefix}test/uar"], rho)


def test_records_that_stand_alone_have_one_level(score: Scoring) -> None:
    made = score(StoredAnswers(answers(segments=1)))
    assert not [name for name in numbers(made) if name.startswith("segment/")]
    assert made.manifest["notes"]["num_participants"] == made.manifest["notes"]["num_records"]


def test_estimates_lie_in_their_intervals_and_counts_are_noted(score: Scoring) -> None:
    made = score(StoredAnswers(answers()), num_bootstrap=400)
    rows = {row["metric"]: row for row in made.manifest["metrics"]}
    for name in (
        "test/accuracy",
        "test/uar",
        "test/f1",
        "attack_auroc",
        "attack_auroc_val",
        "segment/test/uar",
    ):
        assert rows[name]["ci_low"] <= rows[name]["value"] <= rows[name]["ci_high"]
        assert rows[name]["ci_low"] < rows[name]["ci_high"]
    assert rows["num_models"]["ci_low"] is None
    notes = made.manifest["notes"]
    assert notes["num_participants"] == {"train": 16, "val": 8, "test": 12}
    assert notes["num_records"]["test"] == 12 + 12 + 0  # 1, 2, 3, 1, 2, 3, …
    assert {"uar", "attack_auroc", "attack_auroc_val", "privacy_score", "pps"} <= set(notes["definitions"])


def test_personal_models_are_averaged_and_have_members_of_their_own(score: Scoring) -> None:
    given = answers(models=2)
    found = numbers(score(StoredAnswers(given)))
    assert found["num_models"] == 2
    uar, auroc = [], []
    for model in (0, 1):
        probability, label = pooled(given["test"], model)
        uar.append(balanced_accuracy_score(label, probability > 0.5))
        train = given["train"]
        own = dataclasses.replace(
            train,
            **{
                name: value[:, train.client == model] if name == "logits" else value[train.client == model]
                for name, value in vars(train).items()
                if name != "embeddings"
            },
        )
        auroc.append(attack({**given, "train": own}, "test", model=model))
    assert found["test/uar"] == pytest.approx(sum(uar) / 2)
    assert found["attack_auroc"] == pytest.approx(sum(auroc) / 2)


def test_a_threshold_of_zero_is_the_softmax_and_only_what_prototypes_decide_changes(score: Scoring) -> None:
    classifier = StoredAnswers(answers(seed=3), bank())
    softmax = score(classifier)
    hybrid = score(classifier, inference="hybrid", confidence_threshold=0.0)
    assert numbers(hybrid).pop("test/rerouted_share") == 0
    assert numbers(softmax).items() <= numbers(hybrid).items()
    assert "test/rerouted_share" not in numbers(softmax)
    half = score(classifier, inference="hybrid", confidence_threshold=0.8)
    scores, plain = half.load("scores.safetensors"), softmax.load("scores.safetensors")
    sure = plain["test.probability"].amax(dim=2) >= 0.8
    assert 0 < int(sure.sum()) < sure.numel()
    assert torch.equal(scores["test.rerouted"], ~sure)
    assert torch.equal(scores["test.prediction"][sure], plain["test.prediction"][sure])
    assert numbers(half)["test/rerouted_share"] == pytest.approx(float((~sure).double().mean()))
    # The attack asks the softmax, whoever decides.
    for name in ("attack_auroc", "attack_auroc_true_class", "attack_auroc_val", "privacy_score"):
        assert numbers(half)[name] == numbers(softmax)[name]


def test_prototype_inference_takes_the_nearest_to_the_mean_embedding(score: Scoring) -> None:
    given = answers(seed=4)
    for modalities in (None, ["fused"]):
        made = score(StoredAnswers(given, bank()), inference="prototype", margin_modalities=modalities)
        test, found = given["test"], made.load("scores.safetensors")
        people = test.group.unique()
        for row, number in enumerate(people):
            means = [
                test.embeddings[name][0, test.group == number].double().mean(0)
                for name in modalities or test.embeddings
            ]
            # Prototypes at -1 and +1 in every dimension: the sign of the sum decides.
            assert int(found["test.prediction"][0, row]) == int(sum(mean.sum() for mean in means) > 0)
        assert numbers(made)["test/rerouted_share"] == 1
    assert made.manifest["notes"]["margin_modalities"] == ["fused"]


def test_a_class_without_prototype_is_never_the_nearest(score: Scoring) -> None:
    made = score(StoredAnswers(answers(), bank(known=(0,))), inference="prototype")
    assert not made.load("scores.safetensors")["test.prediction"].any()
    assert math.isnan(numbers(made)["test/precision"])


def test_a_bank_of_the_fused_embedding_alone_decides_by_it(score: Scoring) -> None:
    given = answers(seed=5)
    alone = score(StoredAnswers(given, bank(modalities=("fused",))), inference="prototype")
    asked = score(StoredAnswers(given, bank()), inference="prototype", margin_modalities=["fused"])
    assert numbers(alone) == numbers(asked)


def test_pooled_distances_and_distances_of_pooled_embeddings_differ_by_the_variance() -> None:
    one = answers(seed=6)["test"]
    found = AnsweredSplit.of(one, bank()).by_participant()
    means = {
        name: torch.stack(
            [z[:, one.group == number].double().mean(1) for number in one.group.unique()], dim=1
        )
        for name, z in one.embeddings.items()
    }
    of_means = sum(
        (z.unsqueeze(2) - bank().mean[name].double()).square().sum(-1) for name, z in means.items()
    )
    excess = found.distance - of_means
    assert (excess >= -1e-9).all()
    torch.testing.assert_close(excess[..., 0], excess[..., 1])


def test_training_numbers_come_from_the_history(score: Scoring) -> None:
    found = numbers(score(StoredAnswers(answers())))
    assert found["rounds_to_uar"] == 2
    assert (found["bytes_up_per_round"], found["bytes_down_per_round"]) == pytest.approx((380 / 3, 190 / 3))
    assert "rounds_to_uar" not in numbers(score(StoredAnswers(answers()), target_uar=0.9))
    pooled_history = [{"epoch": 0.0, "val/uar": 0.9}]
    assert "bytes_up_per_round" not in numbers(score(StoredAnswers(answers(), history=pooled_history)))


def test_saturated_softmax_outputs_do_not_tie(score: Scoring) -> None:
    # Logits of ±30: in float32 every confident record has probability 1.
    made = score(StoredAnswers(answers(scale=15.0)))
    probability = made.load("scores.safetensors")["segment/train.probability"].amax(dim=2)
    assert len(probability.unique()) > len(probability.float().unique())


def test_stored_systems_repeat_bit_for_bit(score: Scoring) -> None:
    classifier = StoredAnswers(answers(), bank())
    first, second = (score(classifier, inference="hybrid").manifest["metrics"] for _ in range(2))
    assert repr(first) == repr(second)  # NaN equals itself


def test_inference_by_prototypes_needs_prototypes(score: Scoring) -> None:
    with pytest.raises(ConfigError, match=r"stages\.score\.inference must be softmax .* got hybrid"):
        score(StoredAnswers(answers()), inference="hybrid")
    with pytest.raises(ConfigError, match=r"margin_modalities must be among fused, .* got \['audio'\]"):
        score(
            StoredAnswers(answers(), bank(modalities=("fused",))),
            inference="hybrid",
            margin_modalities=["audio"],
        )


def test_unsound_classifiers_are_refused(score: Scoring) -> None:
    given = answers()
    three = dataclasses.replace(given["test"], logits=given["test"].logits.repeat(1, 1, 2)[:, :, :3])
    with pytest.raises(ArtifactError, match="logits of two classes"):
        score(StoredAnswers({**given, "test": three}))
    flipped = given["val"].label.clone()
    flipped[(given["val"].group == 101).nonzero()[0, 0]] = 0
    with pytest.raises(ArtifactError, match=r"label must be the same .* participant 101 differ"):
        score(StoredAnswers({**given, "val": dataclasses.replace(given["val"], label=flipped)}))
    with pytest.raises(ArtifactError, match="one for each of its 2 clients, got 3"):
        score(StoredAnswers(answers(models=3)))
    with pytest.raises(ArtifactError, match=r"logged no val/uar"):
        score(StoredAnswers(given, history=[{"epoch": 0.0, "val/loss": 1.0}]))
    diverged = dataclasses.replace(given["test"], logits=given["test"].logits * math.nan)
    with pytest.raises(ArtifactError, match="NaN"):
        score(StoredAnswers({**given, "test": diverged}))


def test_rounds_without_a_validation_are_passed_over(score: Scoring) -> None:
    rows = [{"epoch": 0.0}, *HISTORY[1:]]
    assert numbers(score(StoredAnswers(answers(), history=rows)))["rounds_to_uar"] == 2


def test_a_trained_encoder_is_scored_with_its_own_bank(tmp_path: Path, clients: Artifact) -> None:
    settings = planned("fedmpa", score__inference="hybrid", score__confidence_threshold=1.0)
    encoder = run_stage(
        "fusion_encoder",
        settings["fusion_encoder"],
        {"clients": clients},
        stage_context(tmp_path / "encoder"),
    )
    encoder.manifest.update(kind="fusion_encoder", simulated=True)
    inputs = {"clients": clients, "encoder": encoder}
    made = run_stage("privacy_performance", settings["score"], inputs, stage_context(tmp_path / "score"))
    found = numbers(made)
    # Nobody is certain after one round: the prototypes decide on all pairs, each of which stands alone.
    assert found["test/rerouted_share"] == 1
    assert made.manifest["notes"]["num_records"] == {"train": 30, "val": 12, "test": 14}
    assert found["bytes_up_per_round"] > found["bytes_down_per_round"] > 0  # no bank in the first round
    assert found["pps"] == privacy_performance_score(found["test/uar"], found["privacy_score"])


@pytest.mark.parametrize("strategy", ["fedproto", "fedgpd", "fedmpa"])
@pytest.mark.parametrize("inference", ["hybrid", "prototype"])
def test_strategies_with_a_bank_may_ask_it(strategy: str, inference: str) -> None:
    assert planned(strategy, score__inference=inference)["score"].inference == inference


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "local", "centralized"])
@pytest.mark.parametrize("inference", ["hybrid", "prototype"])
def test_others_have_none_to_ask_which_is_said_before_training(strategy: str, inference: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"stages\.score\.inference must be softmax for fusion_encoder, .*\({strategy}\)"
    ):
        planned(strategy, score__inference=inference)
    assert planned(strategy)["score"].inference == "softmax"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("inference", "margin", "must be one of softmax, hybrid, prototype"),
        ("confidence_threshold", 1.5, "must be ≥ 0 and ≤ 1"),
        ("margin_modalities", [], "must name at least one"),
        ("margin_modalities", ["fused", "fused"], "must name at least one modality, each once"),
        ("margin_modalities", ["video"], "must be one of image"),
        ("target_uar", 0.0, "must be > 0|must be ≤ 1"),
        ("num_bootstrap", 0, "must be ≥ 1"),
        ("arm", "a/b", "must be a name without"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.score\.{key} ({message})") as caught:
        planned(**{f"score__{key}": value})
    assert caught.value.key == f"stages.score.{key}"


def test_inputs_of_another_kind_or_training_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"score\.inputs\.encoder must name a stage of kind fusion_encoder or speech"
    ):
        planned(score__inputs__encoder="clients")
    with pytest.raises(
        ConfigError, match=r"score\.inputs\.clients must name a stage of kind clients or speech"
    ):
        planned(score__inputs__clients="fusion_encoder")
    with pytest.raises(ConfigError, match=r"stages\.score\.inputs\.clients must be clients, .* got more"):
        planned(more=planned_stage("clients"), score__inputs__clients="more")
