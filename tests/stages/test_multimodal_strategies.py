"""Every strategy in the stage that trains an encoder: what it sends, stores, costs, and what it is equal to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_federations import (
    NOISE,
    PERSONAL,
    SYSTEMS,
    WITH_PROTOTYPES,
    history,
    of_client,
    strategy,
    system_settings,
    train_system,
)
from tiny_stages import OVERRIDES, TRAINER, artifact, equal, tiny_pairs, values
from torch import Tensor

from fedsynth.composition import compose_config, resolved
from fedsynth.errors import BudgetError, ConfigError
from fedsynth.federated.state import average_states
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import find_stage
from fedsynth.privacy.prototype_release import PrototypeMechanism
from fedsynth.prototypes.class_prototypes import ClassPrototypes, pooled_prototypes
from fedsynth.run import Run
from fedsynth.run_sources import planner_sources
from fedsynth.stages.fusion_encoder.spec import FusionEncoderSettings

ROUNDS = 2
PATH = "stages.fusion_encoder"
MODEL = "model.safetensors"
DIMENSIONS = {"image": 8, "ecg": 8, "fused": 4}
SHARED = {"fedproto": ["fused"], "fedgpd": ["fused"], "fedmpa": ["ecg", "fused", "image"]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("strategies") / "clients" / "output"
    return artifact(folder, {"pairs.safetensors": tiny_pairs().to_tensors()})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, stored: Artifact) -> Any:
    """A system by name, trained once."""
    return cache(lambda system: train_system(tmp_path_factory.mktemp(system), stored, system, rounds=ROUNDS))


def num_bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


# -- files, curves, traffic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_leaves_the_files_that_its_parts_call_for(trained: Any, system: str) -> None:
    wanted = {MODEL, "history.json"}
    wanted |= {"prototypes.safetensors", "uploads.safetensors"} if system in WITH_PROTOTYPES else set()
    wanted |= {"client_models.safetensors"} if system in {*WITH_PROTOTYPES, *PERSONAL} else set()
    wanted |= set() if system in PERSONAL else {"scores.safetensors"}
    assert set(trained(system).manifest["files"]) == wanted


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_is_validated_in_every_round(trained: Any, system: str) -> None:
    rows = history(trained(system))
    local_epochs = system_settings(system).local_epochs
    assert len(rows) == (ROUNDS * local_epochs if system == "centralized" else ROUNDS)
    for row in rows:
        assert {"val/loss", "val/auroc", "val/uar", "train/loss"} <= set(row)
        assert 0 <= row["val/uar"] <= 1
    chosen = min(range(len(rows)), key=lambda index: rows[index]["val/loss"])
    assert trained(system).manifest["notes"]["epoch" if system == "centralized" else "round"] == chosen + 1


@pytest.mark.parametrize("system", [system for system in SYSTEMS if system != "centralized"])
def test_traffic_is_the_size_of_what_is_sent(trained: Any, system: str) -> None:
    model = 0 if system in PERSONAL else num_bytes(trained(system).load(MODEL))
    means = sum(2 * DIMENSIONS[name] * 4 for name in SHARED.get(system, []))
    counts = 2 * 8 * len(SHARED.get(system, []))
    first, second = history(trained(system))
    assert (
        first["traffic/bytes_up"]
        == second["traffic/bytes_up"]
        == pytest.approx(model + means + counts, rel=1e-6)
    )
    assert first["traffic/bytes_down"] == pytest.approx(model, rel=1e-6), "there is no bank yet"
    assert second["traffic/bytes_down"] == pytest.approx(model + means, rel=1e-6)


def test_pooled_records_are_sent_in_no_round(trained: Any) -> None:
    assert not any(name.startswith("traffic") for row in history(trained("centralized")) for name in row)


# -- prototypes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", WITH_PROTOTYPES)
def test_prototypes_are_those_of_the_modalities_that_the_strategy_aligns(trained: Any, system: str) -> None:
    bank = ClassPrototypes.from_tensors(trained(system).load("prototypes.safetensors"))
    assert sorted(bank.modalities) == SHARED[system]
    assert {name: mean.shape[1] for name, mean in bank.mean.items()} == {
        name: DIMENSIONS[name] for name in SHARED[system]
    }
    assert all(count.tolist() == [15, 15] for count in bank.count.values())


@pytest.mark.parametrize("system", ["fedproto", "fedgpd"])
def test_a_bank_without_memory_is_the_pooled_prototypes_of_the_round(trained: Any, system: str) -> None:
    uploads = trained(system).load("uploads.safetensors")
    sent = [ClassPrototypes.from_tensors(of_client(uploads, client)) for client in (0, 1)]
    assert [one.count["fused"].tolist() for one in sent] == [[9, 9], [6, 6]]
    pooled = pooled_prototypes(sent, "count").to_tensors()
    assert equal(pooled, trained(system).load("prototypes.safetensors"))


def test_an_encoder_of_one_modality_has_no_prototypes_of_the_other(tmp_path: Path, stored: Artifact) -> None:
    made = train_system(tmp_path, stored, "fedmpa", rounds=1, modalities=["ecg"])
    bank = ClassPrototypes.from_tensors(made.load("prototypes.safetensors"))
    assert sorted(bank.modalities) == ["ecg", "fused"]


# -- what strategies are equal to -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "numbers", "other"),
    [
        ("fedprox", {"proximal_weight": 0.0}, "fedavg"),
        ("fedgpd", {"distillation_weight": 0.0}, "fedavg"),
        (
            "fedmpa",
            {
                "pull_weights": [0.0] * 3,
                "repulsion_weights": [0.0] * 3,
                "aggregation": "records",
                "server_momentum": 0.0,
            },
            "fedavg",
        ),
        ("fedproto", {"pull_weight": 0.0}, "local"),
    ],
)  # fmt: skip
def test_a_strategy_whose_own_part_is_off_is_the_plain_one(
    tmp_path: Path, stored: Artifact, trained: Any, system: str, numbers: dict[str, Any], other: str
) -> None:
    made, plain = train_system(tmp_path, stored, system, numbers, rounds=ROUNDS), trained(other)
    file = "client_models.safetensors" if other == "local" else MODEL
    assert equal(made.load(file), plain.load(file))
    shared = ("train/loss", "val/loss", "val/uar")
    assert [[row[name] for name in shared] for row in history(made)] == [
        [row[name] for name in shared] for row in history(plain)
    ]
    assert not equal(trained(system).load(file), plain.load(file)), "and with it, it is not"


def test_the_stored_fedmpa_model_of_a_first_round_is_the_record_weighted_average_of_what_was_sent(
    tmp_path: Path, stored: Artifact
) -> None:
    made = train_system(tmp_path, stored, "fedmpa", rounds=1)
    sent = made.load("client_models.safetensors")
    wanted = average_states([of_client(sent, client) for client in (0, 1)], [18, 12])
    for name, tensor in made.load(MODEL).items():
        torch.testing.assert_close(tensor, wanted[name], atol=1e-6, rtol=1e-6)


def test_personal_models_differ_and_the_stored_network_is_where_all_began(trained: Any) -> None:
    began = trained("local").load(MODEL)
    assert equal(began, trained("fedproto").load(MODEL))
    models = trained("local").load("client_models.safetensors")
    first, second = of_client(models, 0), of_client(models, 1)
    assert first.keys() == second.keys() == began.keys()
    assert not equal(first, second)
    assert not equal(first, began)
    reported = values(trained("local"))
    assert {arm for arm, _, _ in reported} == {"client_0", "client_1"}


def test_a_client_that_never_took_part_keeps_the_model_that_all_start_from(
    tmp_path: Path, stored: Artifact
) -> None:
    # One of two clients a round, one round: the other one never trains.
    made = train_system(tmp_path, stored, "local", rounds=1, participation=0.5)
    began, models = made.load(MODEL), made.load("client_models.safetensors")
    assert sorted(equal(of_client(models, client), began) for client in (0, 1)) == [False, True]


# -- without a best round --------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["fedmpa", "local"])
def test_without_validation_the_last_round_is_kept_whole(
    tmp_path: Path, stored: Artifact, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsynth.stages.multimodal.module import MultimodalClassifier

    def no_number(module: Any, batch: Any, batch_index: int) -> None:
        module.log("val/loss", torch.tensor(math.nan))

    monkeypatch.setattr(MultimodalClassifier, "validation_step", no_number)
    best = train_system(tmp_path / "best", stored, system, rounds=ROUNDS)
    last = train_system(tmp_path / "last", stored, system, rounds=ROUNDS, checkpoint="last")
    assert best.manifest["notes"]["round"] == last.manifest["notes"]["round"] == ROUNDS
    assert set(best.manifest["files"]) == set(last.manifest["files"])
    for file in {*best.manifest["files"]} - {"history.json", "scores.safetensors"}:
        assert equal(best.load(file), last.load(file)), file


# -- the ledger -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_noise_one_entry_says_that_nothing_is_guaranteed(trained: Any, system: str) -> None:
    (entry,) = trained(system).manifest["ledger"]
    assert entry["epsilon"] == "inf"
    said = " ".join(entry["not_covered"])
    assert ("FedAvg updates" in said) == (system not in {*PERSONAL, "centralized"})
    assert ("mean embedding of every class" in said) == (system in WITH_PROTOTYPES)
    assert ("pooled at one place" in said) == (system == "centralized")


def test_noisy_prototypes_of_fedmpa_are_one_entry_and_its_weights_another(
    tmp_path: Path, stored: Artifact
) -> None:
    made = train_system(tmp_path, stored, "fedmpa", rounds=ROUNDS, prototype_privacy=NOISE)
    noisy, rest = made.manifest["ledger"]
    assert (noisy["epsilon"], noisy["delta"]) == (4.0, 1e-5)
    assert rest["epsilon"] == "inf"
    assert "FedAvg updates" in " ".join(rest["not_covered"])
    assert "mean embedding of every class" not in " ".join(rest["not_covered"])
    stage = find_stage("fusion_encoder", "fusion_encoder")
    assert stage.price(system_settings("fedmpa", prototype_privacy=NOISE)) == (math.inf, 0.0)


@pytest.mark.parametrize(
    ("system", "modalities", "num_modalities"),
    [
        ("fedmpa", ["image", "ecg"], 3),
        ("fedmpa", ["ecg"], 2),
        ("fedgpd", ["image", "ecg"], 1),
        ("fedproto", ["image", "ecg"], 1),
    ],
)
def test_the_ledger_states_the_noise_that_is_added(
    tmp_path: Path,
    stored: Artifact,
    system: str,
    modalities: list[str],
    num_modalities: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[tuple[int, float]] = []
    noise_std = PrototypeMechanism.noise_std

    def seen(mechanism: PrototypeMechanism, count: int) -> float:
        applied.append((count, noise_std(mechanism, count)))
        return applied[-1][1]

    monkeypatch.setattr(PrototypeMechanism, "noise_std", seen)
    made = train_system(tmp_path, stored, system, prototype_privacy=NOISE, modalities=modalities)
    numbers = {name: value for name, value in NOISE.items() if name not in ("mechanism", "secure_noise")}
    wanted = PrototypeMechanism(**numbers, num_rounds=ROUNDS, num_modalities=num_modalities)
    entry = made.manifest["ledger"][0]
    # Nine records of each class at one client, six at the other.
    assert entry["noise_std_range"] == pytest.approx([noise_std(wanted, 9), noise_std(wanted, 6)])
    assert entry["num_releases"] == 4 * ROUNDS * num_modalities
    assert {count for count, _ in applied} == {6, 9}
    for count, std in applied:
        assert std == pytest.approx(noise_std(wanted, count))


def test_noise_that_leaves_nothing_to_send_is_refused_before_training(
    tmp_path: Path, stored: Artifact
) -> None:
    with pytest.raises(ConfigError, match="min_class_records=10 leaves no prototype to send"):
        train_system(tmp_path, stored, "fedmpa", prototype_privacy={**NOISE, "min_class_records": 10})
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    "limit", [{"limit_train_batches": 1}, {"fast_dev_run": True}, {"overfit_batches": 1}]
)
def test_noise_for_all_records_is_not_added_to_means_of_some(
    tmp_path: Path, stored: Artifact, limit: dict[str, Any]
) -> None:
    ((name, value),) = limit.items()
    with pytest.raises(
        ConfigError, match=f"trainer.{name}={value} cannot be combined with noisy prototypes"
    ) as caught:
        train_system(tmp_path, stored, "fedproto", trainer=limit, prototype_privacy=NOISE)
    assert caught.value.key == f"trainer.{name}"


def test_noise_that_covers_the_training_is_all_that_fedproto_publishes(
    tmp_path: Path, stored: Artifact
) -> None:
    covering = {**NOISE, "covers": "training"}
    made = train_system(
        tmp_path / "covering",
        stored,
        "fedproto",
        rounds=ROUNDS,
        prototype_privacy=covering,
        checkpoint="last",
    )
    (entry,) = made.manifest["ledger"]
    assert (entry["epsilon"], entry["delta"]) == (4.0, 1e-5)
    stage = find_stage("fusion_encoder", "fusion_encoder")
    assert stage.price(system_settings("fedproto", prototype_privacy=covering)) == (4.0, 1e-5)
    # Taking the encoders as given is no guarantee for their training, which used the very records.
    assert stage.price(system_settings("fedproto", prototype_privacy=NOISE)) == (math.inf, 0.0)
    given = train_system(tmp_path / "given", stored, "fedproto", rounds=1, prototype_privacy=NOISE)
    assert [entry["epsilon"] for entry in given.manifest["ledger"]] == [4.0, "inf"]
    assert stage.price(system_settings("local")) is None


def test_noise_differs_between_trainings_and_is_the_same_when_one_is_repeated(
    tmp_path: Path, stored: Artifact
) -> None:
    def uploads(folder: str, key: str, **privacy: Any) -> dict[str, Tensor]:
        made = train_system(
            tmp_path / folder, stored, "fedproto", rounds=1, key=key, prototype_privacy={**NOISE, **privacy}
        )
        return made.load("uploads.safetensors")

    first, again, other = (uploads(f, k * 64) for f, k in (("a", "a"), ("b", "a"), ("c", "b")))
    assert equal(first, again)
    assert not equal(first, other)
    clipped = uploads("d", "a" * 64, epsilon=math.inf)
    assert all(float(t.norm(dim=1).max()) <= 0.5 for name, t in clipped.items() if "/mean/" in name)
    assert all(not torch.equal(t, clipped[name]) for name, t in first.items() if "/mean/" in name)
    few = uploads("e", "a" * 64, min_class_records=7)
    assert few["1/count/fused"].tolist() == [0, 0], "six records of each class are too few"
    assert few["0/count/fused"].tolist() == [9, 9]


# -- plans ----------------------------------------------------------------------------------------------------


def plan(*words: str) -> set[str]:
    """Names of the planned stages of ``experiment=feddp_pald``, made tiny."""
    config = resolved(compose_config(["experiment=feddp_pald", *OVERRIDES, *words]))
    return {planned.name for planned in plan_stages(config["stages"], TRAINER, planner_sources({}))}


@pytest.mark.parametrize("name", ["fedprox", "fedgpd", "fedmpa"])
def test_strategies_with_a_global_model_can_train_the_encoder_of_the_other_paper(name: str) -> None:
    assert {"encode", "release", "synthesize"} <= plan(f"federated={name}")


@pytest.mark.parametrize("name", PERSONAL)
def test_personal_models_are_refused_where_one_encoder_is_needed(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(f"federated={name}")
    assert caught.value.key == "stages.encode.inputs.encoder"
    message = str(caught.value)
    assert message.startswith("stages.encode.inputs.encoder=fusion_encoder must be trained into one model")
    assert f"under strategy {name} every client keeps its own" in message
    assert "federated=fedavg" in message


def test_groups_that_exclude_each_other_are_refused_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match="dp_sgd needs the strategy fedavg, got fedmpa"):
        plan("federated=fedmpa", "privacy=dp_sgd")
    with pytest.raises(ConfigError, match="mechanism must be none unless clients send prototypes"):
        plan("federated=fedavg", "privacy=dp_prototypes")
    with pytest.raises(ConfigError, match="covers=training cannot hold with fedmpa"):
        plan("federated=fedmpa", "privacy=dp_prototypes", "privacy.prototypes.covers=training")


@cache
def planned_encoder(words: tuple[str, ...] = ()) -> dict[str, Any]:
    return resolved(compose_config(["experiment=feddp_pald", *OVERRIDES, *words]))["stages"]["fusion_encoder"]


def build(system: str, words: tuple[str, ...] = (), **changes: Any) -> FusionEncoderSettings:
    """The settings of the encoder as the planner checks them; ``a__b`` stands for ``a.b``."""
    known = {field.name for field in fields(FusionEncoderSettings)}
    values_ = {name: value for name, value in planned_encoder(words).items() if name in known}
    values_["training"] = "centralized" if system == "centralized" else "federated"
    values_["strategy"] = strategy("fedavg" if system == "centralized" else system)
    for path, value in changes.items():
        name, _, part = path.partition("__")
        values_[name] = {**values_[name], part: value} if part else value
    return build_settings(FusionEncoderSettings, values_, PATH)


def refused(system: str, words: tuple[str, ...] = (), **changes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(system, words, **changes)
    return caught.value


@pytest.mark.parametrize("name", ["fedprox", "fedproto", "fedgpd", "fedmpa", "local"])
def test_dp_sgd_is_refused_with_any_strategy_but_fedavg(name: str) -> None:
    assert build("fedavg", ("privacy=dp_sgd",))
    error = refused(name, ("privacy=dp_sgd",))
    assert error.key == f"{PATH}.strategy.name"
    assert f"dp_sgd needs the strategy fedavg, got {name}" in str(error)


def test_dp_sgd_is_refused_with_class_weights_and_says_where_they_are_set() -> None:
    error = refused("fedavg", ("privacy=dp_sgd",), class_weighting="client")
    assert error.key == f"{PATH}.class_weighting"
    assert str(error).endswith("Say federated.class_weighting=none.")


@pytest.mark.parametrize("system", ["fedavg", "centralized", "fedprox", "fedbn", "local"])
def test_noise_on_prototypes_is_refused_where_there_are_none(system: str) -> None:
    error = refused(system, prototype_privacy=NOISE)
    assert error.key == f"{PATH}.prototype_privacy.mechanism"
    assert "must be none unless clients send prototypes, got gaussian" in str(error)


@pytest.mark.parametrize("system", ["fedgpd", "fedmpa"])
def test_noise_cannot_cover_training_whose_weights_are_sent(system: str) -> None:
    assert build(system, prototype_privacy=NOISE)
    error = refused(system, prototype_privacy={**NOISE, "covers": "training"}, checkpoint="last")
    assert error.key == f"{PATH}.prototype_privacy.covers"
    assert f"covers=training cannot hold with {system}" in str(error)


def test_noise_cannot_cover_the_choice_of_a_round() -> None:
    covering = {**NOISE, "covers": "training"}
    assert build("fedproto", prototype_privacy=covering, checkpoint="last")
    error = refused("fedproto", prototype_privacy=covering, checkpoint="best")
    assert error.key == f"{PATH}.checkpoint"
    assert f"{PATH}.checkpoint must be last with prototype_privacy.covers=training, got best" in str(error)
    assert "federated.checkpoint=last" in str(error)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"strategy__pull_weights": [0.1, 0.1]}, "strategy.pull_weights"),
        ({"strategy__repulsion_weights": [1.0]}, "strategy.repulsion_weights"),
        ({"strategy__server_momentum": 1}, "strategy.server_momentum"),
        ({"strategy__name": "fedsum"}, "strategy.name"),
        ({"strategy__name": ["fedavg"]}, "strategy.name"),
        ({"class_weighting": "global"}, "class_weighting"),
        ({"prototype_privacy__mechanism": "laplace"}, "prototype_privacy.mechanism"),
        ({"prototype_privacy__epsilon": 0}, "prototype_privacy.epsilon"),
        ({"prototype_privacy__epsilon": 1e7}, "prototype_privacy.epsilon"),
        ({"prototype_privacy__delta": 1.0}, "prototype_privacy.delta"),
        ({"prototype_privacy__clip_radius": 0}, "prototype_privacy.clip_radius"),
        ({"prototype_privacy__min_class_records": 0}, "prototype_privacy.min_class_records"),
        ({"prototype_privacy__covers": "all"}, "prototype_privacy.covers"),
    ],
)
def test_what_cannot_be_is_refused_under_its_key_with_the_value_got(
    changes: dict[str, Any], key: str
) -> None:
    error = refused("fedmpa", **changes)
    (value,) = changes.values()
    assert error.key == f"{PATH}.{key}"
    assert str(error).startswith(f"{PATH}.{key} must ")
    assert (f"{value:g}" if isinstance(value, float) else str(value)) in str(error)


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"strategy__momentum": 0.9}, "strategy.momentum"), ({"prototype_privacy__sigma": 1}, "prototype_privacy.sigma")],
)  # fmt: skip
def test_an_unknown_number_of_a_strategy_is_refused(changes: dict[str, Any], key: str) -> None:
    assert str(refused("fedmpa", **changes)).startswith(f"{PATH}.{key} is not a known key.")


def test_a_budget_counts_what_noisy_prototypes_cost() -> None:
    words = [
        "experiment=feddp_pald/centralized", "federated=fedproto", "privacy=dp_prototypes", "~stages.encode",
        "privacy.prototypes.covers=training", "privacy.epsilon=4", "federated.checkpoint=last",
    ]  # fmt: skip
    Run(compose_config([*words, "privacy.budget=4"])).check()
    with pytest.raises(BudgetError, match="fusion_encoder 4 = 4"):
        Run(compose_config([*words, "privacy.budget=3.9"])).check()
    with pytest.raises(BudgetError, match="fusion_encoder releases without guarantee"):
        Run(compose_config([*words, "privacy.budget=4", "privacy.prototypes.covers=means"])).check()
