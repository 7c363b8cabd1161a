"""No flagged candidate is emitted; counts, refills, rounds and verdicts are those of brute force."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_candidates import (
    CLASSES,
    NUM_TRAIN,
    half_flagged,
    sampler_settings,
    selection_settings,
    tiny_images,
    tiny_inputs,
)
from tiny_selection import by_source, pictures, probability, selected, selection_inputs, told
from tiny_stages import artifact, equal, found, run_stage, stage_context, values
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome
from fedsynth.selection.ranking import NONE
from fedsynth.stages.image_codec.stored import open_codec
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.reidentifier.trained import open_reidentifier
from fedsynth.stages.select_images import run as stage_module
from fedsynth.stages.select_images.emission import emission
from fedsynth.stages.select_images.rounds import Round, Shard, judge, play
from fedsynth.stages.select_images.scoring import CandidateScorer
from fedsynth.stages.select_images.tables import class_table
from fedsynth.stages.select_images.thresholds import Thresholds
from fedsynth.stages.synthesize_images import pieces
from fedsynth.stages.synthesize_images.sampler import CandidateSampler
from fedsynth.stages.tstr_densenet.trained import open_densenet


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return selection_inputs(tmp_path_factory.mktemp("inputs"))


def brute_force(inputs: dict[str, Artifact], threshold: float) -> list[int]:
    """Eq. (1) by hand: for each source the unflagged candidate with the smallest BCE, or -1."""
    images, made = read_image_set(inputs["images"]), pictures(inputs)
    classifier, chosen = open_densenet(inputs["classifier"]), []
    for row in range(len(images)):
        target = classifier.logits(images.image[row : row + 1]).softmax(1)
        predicted = classifier.logits(made[row]).softmax(1)
        loss = -(target * predicted.log() + (1 - target) * (1 - predicted).log()).mean(1)
        p = probability(inputs, torch.full((len(made[row]),), row), made[row])
        passing = [c for c in range(len(loss)) if float(p[c]) <= threshold]
        chosen.append(min(passing, key=lambda c: float(loss[c])) if passing else -1)
    return chosen


def test_the_set_is_that_of_equation_1_by_hand(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    made = by_source(selected(tmp_path / "a", inputs, guidance_weights=[]))
    expected = brute_force(inputs, 0.5)
    kept = [row for row, choice in enumerate(expected) if choice >= 0]
    assert 0 < len(kept) < NUM_TRAIN
    assert made.source is not None
    assert made.source.tolist() == kept
    assert torch.equal(made.image, torch.stack([pictures(inputs)[row, expected[row]] for row in kept]))
    assert torch.equal(made.label, tiny_images()["train"].label[kept])
    assert made.patient is None


@pytest.mark.parametrize("policy", ["drop", "class_balanced", "true_mix"])
@pytest.mark.parametrize("scope", ["source", "train"])
def test_no_emitted_image_is_flagged(
    tmp_path: Path, inputs: dict[str, Artifact], policy: str, scope: str
) -> None:
    artifact = selected(
        tmp_path / "a", inputs, when_all_flagged=policy, scope=scope, guidance_weights=[1.0, 0.5, 0.0]
    )
    made, notes = read_image_set(artifact), told(artifact)
    assert made.source is not None
    assert float(probability(inputs, made.source, made.image).max()) <= 0.5
    if scope == "train":
        (limit,) = [
            row["threshold"] for row in notes["thresholds"] if row["compared_with"] == "any training image"
        ]
        pairs = torch.cartesian_prod(torch.arange(NUM_TRAIN), torch.arange(len(made)))
        assert float(probability(inputs, pairs[:, 0], made.image[pairs[:, 1]]).max()) <= limit + 1e-6


def test_a_balanced_refill_has_the_class_counts_of_the_sources(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    artifact = selected(tmp_path / "a", inputs, when_all_flagged="class_balanced", max_per_source=5)
    made, table = read_image_set(artifact), told(artifact)["per_class"]
    assert made.counts() == dict.fromkeys(CLASSES, NUM_TRAIN // 3)
    assert made.source is not None
    assert int(torch.bincount(made.source).max()) > 1
    assert len(made.image.flatten(1).unique(dim=0)) == len(made)
    refilled = sum(row["refilled"] for row in table.values())
    assert refilled == sum(row["dropped"] for row in table.values()) > 0


def test_several_images_a_source_keep_the_mask_and_are_counted_by_class(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    wanted = {"when_all_flagged": "class_balanced", "max_per_source": 5, "images_per_source": 2}
    artifact = selected(tmp_path / "a", inputs, **wanted)
    made, table = read_image_set(artifact), told(artifact)["per_class"]
    assert made.source is not None
    assert float(probability(inputs, made.source, made.image).max()) <= 0.5
    assert all(row["emitted"] + row["missing"] == 2 * row["sources"] for row in table.values())
    unfiltered = selected(tmp_path / "c", inputs, filter="none", release=False, **wanted)
    assert read_image_set(unfiltered).counts() == dict.fromkeys(CLASSES, 2 * NUM_TRAIN // 3)


def test_soft_labels_are_what_the_classifier_says_of_the_released_image(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    hard = read_image_set(selected(tmp_path / "hard", inputs))
    soft = read_image_set(selected(tmp_path / "soft", inputs, labels="soft"))
    for name in ("image", "label", "source"):
        assert torch.equal(getattr(soft, name), getattr(hard, name))
    assert hard.soft_label is None
    assert soft.soft_label is not None
    says = open_densenet(inputs["classifier"]).logits(soft.image).softmax(1)
    torch.testing.assert_close(soft.soft_label, says)


def test_soft_labels_are_averaged_over_the_classifiers_of_all_seeds(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    one = inputs["classifier"]
    weights = one.load("classifier.safetensors")
    other = {name: value.flip(0) if name.endswith("head.bias") else value for name, value in weights.items()}
    other |= {"head.weight": weights["head.weight"].flip(0)}
    files = {"classifier.safetensors": weights, "classifier-7.safetensors": other}
    both = artifact(tmp_path / "both", files, notes=one.manifest["notes"])
    both.manifest["settings"] = one.manifest["settings"] | {"seeds": [42, 7]}
    soft = read_image_set(selected(tmp_path / "soft", inputs | {"classifier": both}, labels="soft"))
    answers = [open_densenet(both, seed=seed).logits(soft.image).softmax(1) for seed in (42, 7)]
    assert not torch.allclose(answers[0], answers[1])
    assert soft.soft_label is not None
    torch.testing.assert_close(soft.soft_label, (answers[0] + answers[1]) / 2)


def test_without_filter_every_source_has_its_best_candidate(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    bare = {role: one for role, one in inputs.items() if role != "reidentifier"}
    artifact = selected(tmp_path / "a", bare, filter="none", release=False)
    expected = brute_force(inputs, 1.0)
    made = by_source(artifact)
    assert torch.equal(
        made.image, torch.stack([pictures(inputs)[row, expected[row]] for row in range(NUM_TRAIN)])
    )
    assert told(artifact)["thresholds"] == told(artifact)["error_rates"] == []
    assert "probability" not in artifact.load("verdicts.safetensors")
    first = by_source(selected(tmp_path / "b", bare, filter="none", release=False, ranking="first"))
    assert torch.equal(first.image, pictures(inputs)[:, 0])


def test_the_released_code_emits_what_the_mask_never_does(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    artifact = selected(tmp_path / "a", inputs, filter="released_code", release=False)
    made = read_image_set(artifact)
    assert len(made) == NUM_TRAIN
    assert made.source is not None
    assert float(probability(inputs, made.source, made.image).max()) > 0.5


def test_batch_statistics_make_verdicts_depend_on_the_company(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    verdicts = [
        selected(tmp_path / mode, inputs, filter="released_code", release=False, batch_norm=mode)
        .load("verdicts.safetensors")["probability"]
        for mode in ("eval", "train")
    ]  # fmt: skip
    assert not torch.allclose(verdicts[0], verdicts[1], atol=1e-3)
    network = open_reidentifier(inputs["reidentifier"]).network.train()
    real = tiny_images()["train"].image[:1].expand(5, -1, -1, -1)
    with torch.no_grad():
        one, other = (network(network.pixels(batch)) for batch in (real, pictures(inputs)[0]))
        expected = network.probability(one, other)
    torch.testing.assert_close(verdicts[1][0], expected, atol=1e-5, rtol=1e-4)


def test_metrics_and_table_count_what_was_emitted(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    artifact = selected(tmp_path / "a", inputs)
    made, numbers, table = read_image_set(artifact), values(artifact), told(artifact)["per_class"]
    assert numbers["made", "kept", 42] == len(made)
    assert numbers["made", "dropped", 42] == NUM_TRAIN - len(made)
    p = probability(inputs, torch.arange(NUM_TRAIN).repeat_interleave(5), pictures(inputs).flatten(0, 1))
    is_flagged = (p > 0.5).reshape(NUM_TRAIN, 5)
    for number, name in enumerate(CLASSES):
        own = tiny_images()["train"].label == number
        assert numbers["made", f"flagged/{name}", 42] == pytest.approx(float(is_flagged[own].float().mean()))
        assert numbers["made", f"all_flagged/{name}", 42] == pytest.approx(
            float(is_flagged[own].all(1).float().mean())
        )
        assert table[name]["emitted"] == made.counts()[name]
        assert sum(table[name]["accepted_by_round"]) + table[name]["dropped"] == table[name]["sources"]


def test_verdicts_show_the_chosen_candidate_and_what_the_networks_said(
    tmp_path: Path, inputs: dict[str, Artifact]
) -> None:
    artifact = selected(tmp_path / "a", inputs, num_shown=4)
    shown, made = artifact.load("verdicts.safetensors"), read_image_set(artifact)
    assert shown["source"].sort().values.tolist() == list(range(NUM_TRAIN))
    source = shown["source"].repeat_interleave(5)
    expected = probability(inputs, source, shown["image"].flatten(0, 1)).reshape(-1, 5)
    torch.testing.assert_close(shown["probability"], expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(shown["flagged"].bool(), shown["probability"] > 0.5)
    assert not bool((shown["chosen"].bool() & shown["flagged"].bool()).any())
    assert made.source is not None
    for row, image in zip(made.source.tolist(), made.image, strict=True):
        (place,) = (shown["source"] == row).nonzero()[:, 0].tolist()
        if int(shown["accepted_in"][place]) == 0:
            assert torch.equal(shown["image"][place][shown["chosen"][place].bool()][0], image)
    assert (
        "private/verdicts.safetensors" not in selected(tmp_path / "b", inputs, num_shown=0).manifest["files"]
    )


def test_a_filter_that_leaves_nothing_says_what_to_lower(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    with pytest.raises(
        DataError, match=r"normal 4 of 4, bacteria 4 of 4.*thresholds 0 .*raise selection.threshold"
    ):
        selected(tmp_path / "a", inputs, threshold_value=0.0)


def test_a_classifier_of_other_classes_is_refused(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    notes = inputs["classifier"].manifest["notes"] | {"classes": ["a", "b", "c"]}
    other = dataclasses.replace(
        inputs["classifier"], manifest=inputs["classifier"].manifest | {"notes": notes}
    )
    with pytest.raises(ConfigError, match="knows the classes a, b, c"):
        selected(tmp_path / "a", {**inputs, "classifier": other})


def test_labels_in_combinations_are_selected_and_counted(tmp_path: Path) -> None:
    given_inputs = tiny_inputs(tmp_path / "given", task="multilabel")
    candidates = run_stage(
        "synthesize_images", sampler_settings(), given_inputs, stage_context(tmp_path / "c")
    )
    half = half_flagged(tmp_path / "half", given_inputs, candidates)
    every = {**given_inputs, "candidates": candidates, "reidentifier": half}
    artifact = selected(tmp_path / "a", every, when_all_flagged="class_balanced", max_per_source=5)
    made = read_image_set(artifact)
    assert made.task == "multilabel"
    assert set(told(artifact)["per_class"]) == {"bacteria", "virus", "bacteria + virus"}
    assert made.source is not None
    assert torch.equal(made.label, tiny_images("multilabel")["train"].label[made.source])


def test_a_run_killed_in_a_later_round_goes_on(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = selected(tmp_path / "whole", inputs)
    assert told(whole)["weights"] == [1.0, 0.5]
    context = stage_context(tmp_path / "killed")
    draw, score = CandidateSampler.draw, CandidateScorer.score

    def dying(*arguments: Any) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(CandidateSampler, "draw", dying)
    with pytest.raises(KeyboardInterrupt):
        stage_module.run(selection_settings(), inputs, context)
    scored: list[int] = []

    def counted(self: CandidateScorer, rows: Tensor, latent: Tensor) -> dict[str, Tensor]:
        scored.extend(rows.tolist())
        return score(self, rows, latent)

    monkeypatch.setattr(CandidateSampler, "draw", draw)
    monkeypatch.setattr(CandidateScorer, "score", counted)
    made = found(context.output, None, stage_module.run(selection_settings(), inputs, context))
    assert len(scored) < NUM_TRAIN  # the first round was not scored again
    for name in ("images.safetensors", "private/images.safetensors", "private/verdicts.safetensors"):
        assert (made.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_processes_share_the_scoring_and_agree(
    tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = selected(tmp_path / "whole", inputs, guidance_weights=[])
    monkeypatch.setattr(pieces, "wait_for_all", lambda context: None)
    one_round = selection_settings(guidance_weights=[])
    first = stage_context(tmp_path / "shared", rank=0, world_size=2)
    # The second process is done with its share when the first one reads.
    ready = dataclasses.replace(first, rank=1)
    with pytest.raises(FileNotFoundError):  # …and waits for that of the first, which no barrier holds up here
        stage_module.run(one_round, inputs, ready)
    made = found(first.output, None, stage_module.run(one_round, inputs, first))
    assert equal(made.load("images.safetensors"), whole.load("images.safetensors"))
    assert stage_module.run(one_round, inputs, ready) == Outcome()


def fake_round(seed: int, rows: Tensor, width: int, weight: float, threshold: float = 0.5) -> Round:
    stream = torch.Generator().manual_seed(seed)
    scores = {
        "loss": torch.rand(len(rows), width, generator=stream),
        "probability": torch.rand(len(rows), width, generator=stream),
    }
    limits = Thresholds(torch.full((1000,), threshold), None, [])
    return judge(selection_settings(), weight, [Shard(Path("x"), rows)], scores, limits, is_last=True)


@given(
    st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 5), st.sampled_from([0.1, 0.3, 0.6]),
    st.sampled_from(["drop", "class_balanced", "true_mix"]), st.integers(1, 4), st.integers(1, 3),
)  # fmt: skip
def test_whatever_the_rounds_nothing_flagged_is_emitted_and_nothing_twice(
    seed: int, num: int, width: int, threshold: float, policy: str, limit: int, per_source: int
) -> None:
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randperm(40, generator=stream)[:num].sort().values
    group = torch.unique(torch.randint(0, 3, (num,), generator=stream), return_inverse=True)[1]
    rounds = [fake_round(seed, rows, width, 1.0, threshold)]
    while len(failing := rounds[-1].failing) and len(rounds) < 3:
        rounds.append(fake_round(seed + len(rounds), failing, width, 1 - len(rounds) / 4, threshold))
    several = 1 if policy == "drop" else per_source
    settings = selection_settings(when_all_flagged=policy, max_per_source=limit, images_per_source=several)
    names = [str(g) for g in range(int(group.max()) + 1)]
    if all(bool((one.chosen == NONE).all()) for one in rounds):
        with pytest.raises(DataError, match="nothing"):
            emission(settings, rounds, group, names, "nothing")
        return
    try:
        made = emission(settings, rounds, group, names, "nothing")
    except DataError as error:
        assert policy == "true_mix"
        assert "leaves no image" in str(error)  # noqa: PT017
        return
    places = list(zip(made.round.tolist(), made.position.tolist(), made.candidate.tolist(), strict=True))
    assert len(set(places)) == len(places)
    for (number, position, candidate), row, weight in zip(
        places, made.source.tolist(), made.weight.tolist(), strict=True
    ):
        assert not bool(rounds[number].flagged[position, candidate])
        assert int(rounds[number].rows[position]) == row
        assert weight == rounds[number].weight
    assert int(torch.bincount(made.source).max()) <= (1 if policy == "drop" else limit)
    table = class_table(rounds, made, group, names)
    assert sum(row["emitted"] for row in table.values()) == len(made)
    for row in table.values():
        assert row["emitted"] == row["sources"] - row["dropped"] + row["refilled"]
        assert row["emitted"] <= row["sources"] * several
    if policy == "drop":
        assert all(sum(row["accepted_by_round"]) == row["emitted"] for row in table.values())


def test_a_mix_with_a_class_that_never_passes_is_refused_by_name() -> None:
    one = fake_round(0, torch.arange(4), 1, 1.0)
    group = (one.chosen == NONE).long()
    assert group.tolist().count(1) in (1, 2, 3)
    with pytest.raises(DataError, match=r"leaves no image: .* sick 0 of"):
        emission(selection_settings(when_all_flagged="true_mix"), [one], group, ["well", "sick"], "nothing")


def test_rounds_stop_as_soon_as_every_image_has_a_choice() -> None:
    rows = torch.arange(3)
    asked: list[tuple[int, float, list[int]]] = []

    def scores(passing: list[bool]) -> dict[str, Tensor]:
        p = torch.tensor([[0.1 if one else 0.9] for one in passing])
        return {"loss": torch.zeros(len(p), 1), "probability": p}

    def again(number: int, weight: float, failing: Tensor) -> tuple[list[Shard], dict[str, Tensor]]:
        asked.append((number, weight, failing.tolist()))
        return [Shard(Path("x"), failing)], scores([row != 2 or number == 2 for row in failing.tolist()])

    limits = Thresholds(torch.full((3,), 0.5), None, [])
    rounds = play(
        [1.2, 1.1, 1.0, 0.9],
        [Shard(Path("x"), rows)],
        lambda shards: scores([True, False, False]),
        again,
        lambda weight, shards, found_scores, is_last: judge(
            selection_settings(), weight, shards, found_scores, limits, is_last=is_last
        ),
    )
    assert asked == [(1, 1.1, [1, 2]), (2, 1.0, [2])]
    assert [one.weight for one in rounds] == [1.2, 1.1, 1.0]


def test_images_of_the_sources_are_what_is_embedded(inputs: dict[str, Artifact]) -> None:
    images = read_image_set(inputs["images"])
    rows = torch.tensor([7, 2, 9])
    scorer = CandidateScorer(
        open_codec(inputs["codec"]), images, rows, open_reidentifier(inputs["reidentifier"]), None,
        against_train=True, batch_statistics=False, batch_size=2, key="k",
    )  # fmt: skip
    exact = open_codec(inputs["codec"]).encode(images.image.float() / 255)[rows][:, None]
    scores = scorer.score(rows, exact)
    # A copy of its source is as much one person as the network can say.
    most = probability(inputs, rows, images.image[rows])
    torch.testing.assert_close(scores["probability"][:, 0], most, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(scores["largest"][:, 0], most, atol=1e-5, rtol=1e-4)


def test_an_image_set_of_choices_needs_no_patients(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    made = read_image_set(selected(tmp_path / "a", inputs))
    assert isinstance(made, ImageSet)
    assert made.guidance is not None
    assert set(made.guidance.tolist()) <= {1.0, 0.5}
