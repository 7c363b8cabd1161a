"""Replicates of whole systems: equality with explicit resampling, personal models, pairing, speed."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from fedsynth.evaluation import (
    EvaluationError,
    ScoredSplit,
    ScoredSystem,
    auroc,
    decision_metrics,
    normalized_privacy_score,
    privacy_performance_score,
    replicate_intervals,
    system_replicates,
)
from fedsynth.evaluation.participant_bootstrap import draw_participants
from fedsynth.evaluation.scored_system import ATTACKS


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def split(whom: list[int], seed: int, *, models: int = 1, clients: int = 2) -> ScoredSplit:
    """Label and client of a participant follow from its number; scores have ties."""
    participant, stream = torch.tensor(whom), generator(seed)
    scores = {
        name: torch.randint(5, (models, len(whom)), generator=stream).double() / 4
        for name in ("max_probability", "true_class")
    }
    return ScoredSplit(participant, participant % 2, participant // 2 % clients, scores)


def system(models: int = 1, *, segments: int = 2, seed: int = 0, rerouted: bool = False) -> ScoredSystem:
    numbers = [list(range(first, last)) * segments for first, last in ((0, 12), (20, 26), (30, 40))]
    train, val, test = (split(whom, 3 * seed + row, models=models) for row, whom in enumerate(numbers))
    stream = generator(100 + seed)
    prediction = torch.randint(2, (models, len(test.label)), generator=stream)
    decided = torch.rand(prediction.shape, generator=stream) < 0.3
    return ScoredSystem(train, val, test, prediction, decided if rerouted else None)


def members(one: ScoredSystem, model: int) -> torch.Tensor:
    everyone = torch.ones_like(one.train.client, dtype=torch.bool)
    return everyone if one.num_models == 1 else one.train.client == model


@pytest.mark.parametrize("models", [1, 2])
def test_replicates_equal_metrics_of_explicitly_resampled_participants(models: int) -> None:
    one = system(models, rerouted=True)
    found = system_replicates({"a": one}, generator=generator(5), num_replicates=20)["a"]
    draws = draw_participants(
        train_client=torch.arange(12) // 2 % 2,
        num_val=6,
        num_test=10,
        num_replicates=20,
        generator=generator(5),
    )
    weights = [torch.cat(parts).long() for parts in zip(*draws, strict=True)]
    for replicate in range(21):
        rows = {
            name: torch.cat(
                [
                    (getattr(one, name).participant == number).nonzero()[:, 0].repeat(int(times))
                    for number, times in zip(
                        getattr(one, name).participant.unique(), weight[replicate], strict=True
                    )
                ]
            )
            for name, weight in zip(("train", "val", "test"), weights, strict=True)
        }
        test = rows["test"]
        by_model = [decision_metrics(one.prediction[m, test], one.test.label[test]) for m in range(models)]
        wanted = {name: sum(value[name] for value in by_model) / models for name in by_model[0]}
        wanted["rerouted_share"] = float(one.rerouted[:, test].double().mean())  # type: ignore[index]
        for metric, (score, name) in ATTACKS.items():
            areas = []
            for model in range(models):
                inside = rows["train"][members(one, model)[rows["train"]]]
                high = one.train.attack_score[score][model, inside]
                low = getattr(one, name).attack_score[score][model, rows[name]]
                areas.append(auroc(torch.cat([high, low]), torch.arange(len(high) + len(low)) < len(high)))
            wanted[metric] = sum(areas) / models
        wanted["privacy_score"] = normalized_privacy_score(wanted["attack_auroc"])
        wanted["pps"] = privacy_performance_score(wanted["uar"], wanted["privacy_score"])
        got = {name: float(value[replicate]) for name, value in found.items()}
        assert got == pytest.approx(wanted, abs=1e-12, nan_ok=True)


def test_nothing_is_rerouted_where_prototypes_cannot_decide() -> None:
    found = system_replicates({"a": system()}, generator=generator(0), num_replicates=3)["a"]
    assert "rerouted_share" not in found
    everywhere = dataclasses.replace(system(), rerouted=torch.ones(1, 20, dtype=torch.bool))
    share = system_replicates({"a": everywhere}, generator=generator(0), num_replicates=3)["a"][
        "rerouted_share"
    ]
    assert (share == 1).all()


def test_segments_of_a_participant_count_together() -> None:
    # Copies of a participant's records change neither metrics nor intervals; drawing records would narrow them.
    one = system(segments=1)
    copies = {
        name: ScoredSplit(
            part.participant.repeat(4), part.label.repeat(4), part.client.repeat(4),
            {key: value.repeat(1, 4) for key, value in part.attack_score.items()},
        )
        for name, part in (("train", one.train), ("val", one.val), ("test", one.test))
    }  # fmt: skip
    many = ScoredSystem(**copies, prediction=one.prediction.repeat(1, 4))
    found = system_replicates({"one": one, "many": many}, generator=generator(1), num_replicates=50)
    for name, value in found["one"].items():
        torch.testing.assert_close(value, found["many"][name], equal_nan=True)


def test_equal_personal_models_are_one_model_but_for_their_members() -> None:
    one = system(1)
    twice = dataclasses.replace(
        one,
        **{
            name: dataclasses.replace(
                getattr(one, name),
                attack_score={k: v.repeat(2, 1) for k, v in getattr(one, name).attack_score.items()},
            )
            for name in ("train", "val", "test")
        },
        prediction=one.prediction.repeat(2, 1),
    )
    found = system_replicates({"one": one, "twice": twice}, generator=generator(2), num_replicates=40)
    for name in ("accuracy", "uar", "f1"):
        torch.testing.assert_close(found["one"][name], found["twice"][name], equal_nan=True)
    # Both clients have six participants with as many records: the mean over their members is that over all.
    torch.testing.assert_close(found["one"]["attack_auroc"], found["twice"]["attack_auroc"])


def test_only_records_of_its_own_client_are_members_of_a_personal_model() -> None:
    one = system(2)
    other = 1 - one.train.client  # what model k says of records of the other client
    changed = {name: score.clone() for name, score in one.train.attack_score.items()}
    for score in changed.values():
        score[other, torch.arange(len(other))] = 99.0
    strangers = dataclasses.replace(one, train=dataclasses.replace(one.train, attack_score=changed))
    found = system_replicates({"a": one, "b": strangers}, generator=generator(3), num_replicates=5)
    for name, value in found["a"].items():
        torch.testing.assert_close(value, found["b"][name], equal_nan=True)


def test_all_systems_see_the_draws_they_would_see_alone() -> None:
    one, other = system(seed=0), system(seed=9)
    both = system_replicates({"a": one, "b": other}, generator=generator(4), num_replicates=30)
    alone = system_replicates({"b": other}, generator=generator(4), num_replicates=30)
    for name, value in alone["b"].items():
        assert torch.equal(value.nan_to_num(-1), both["b"][name].nan_to_num(-1))


def test_a_perfect_attack_has_no_privacy_and_a_perfect_classifier_full_recall() -> None:
    one = system()
    train = dataclasses.replace(
        one.train, attack_score={k: torch.full_like(v, 9.0) for k, v in one.train.attack_score.items()}
    )
    perfect = dataclasses.replace(one, train=train, prediction=one.test.label.unsqueeze(0))
    found = replicate_intervals(
        system_replicates({"a": perfect}, generator=generator(6), num_replicates=50)["a"]
    )
    assert (found["attack_auroc"].low, found["privacy_score"].high, found["pps"].high) == (1.0, 0.0, 0.0)
    assert found["uar"].low == found["uar"].high == 1.0


def test_two_thousand_replicates_of_five_thousand_members_take_less_than_two_seconds() -> None:
    stream = generator(7)

    def many(size: int) -> ScoredSplit:
        scores = {name: torch.rand(1, size, generator=stream, dtype=torch.float64)
                  for name in ("max_probability", "true_class")}  # fmt: skip
        number = torch.arange(size)
        return ScoredSplit(number, number % 2, number % 4, scores)

    large = ScoredSystem(many(5000), many(500), many(600), torch.randint(2, (1, 600), generator=stream))
    start = time.process_time()
    system_replicates({"a": large}, generator=stream, num_replicates=2000)
    # CPU time of this process, so that other programs do not matter; 0.5 s on one core of 2020.
    assert time.process_time() - start < 2


def test_unsound_splits_are_refused() -> None:
    good = split([1, 2, 3], 0)
    for change, message in (
        ({"label": good.label[:2]}, "one number per record"),
        ({"label": good.label + 1}, "label must hold only 0 and 1"),
        ({"attack_score": {"max_probability": good.attack_score["true_class"]}}, "must hold max_prob"),
        ({"attack_score": {k: v[:, :2] for k, v in good.attack_score.items()}}, r"shape \[models, 3\]"),
        ({"attack_score": {k: v.float() for k, v in good.attack_score.items()}}, "must be float64"),
        ({"attack_score": {k: v * torch.nan for k, v in good.attack_score.items()}}, "NaN"),
    ):  # fmt: skip
        with pytest.raises(EvaluationError, match=message):
            dataclasses.replace(good, **change)  # type: ignore[arg-type]


def test_unsound_systems_are_refused() -> None:
    good = system(2)
    three = {name: v.repeat(2, 1)[:3] for name, v in good.test.attack_score.items()}
    for change, message in (
        ({"prediction": good.prediction[:, :3]}, "must have shape"),
        ({"prediction": good.prediction[:1]}, "scores of"),
        ({"rerouted": torch.zeros(1, 3, dtype=torch.bool)}, "must have shape"),
        ({"prediction": good.prediction + 1}, "predictions must be 0 or 1"),
        ({"test": dataclasses.replace(good.test, attack_score=three)}, r"scores of \[2, 3\] models"),
    ):  # fmt: skip
        with pytest.raises(EvaluationError, match=message):
            dataclasses.replace(good, **change)
    with pytest.raises(EvaluationError, match="one for each of its 2 clients, got 3"):
        system(3)


def test_systems_of_other_participants_cannot_be_drawn_together() -> None:
    one = system()
    moved = dataclasses.replace(one.test, participant=one.test.participant + 1)
    for change, message in (
        ({"test": moved}, r"test participants of 'b' .* got 10 and 10, of which 9 are the same"),
        ({"train": dataclasses.replace(one.train, client=1 - one.train.client)}, "must have the clients"),
        ({"val": dataclasses.replace(one.val, label=1 - one.val.label)}, "must have the labels"),
    ):  # fmt: skip
        with pytest.raises(EvaluationError, match=message):
            system_replicates(
                {"a": one, "b": dataclasses.replace(one, **change)}, generator=generator(0), num_replicates=2
            )
    with pytest.raises(EvaluationError, match="at least one system"):
        system_replicates({}, generator=generator(0))
