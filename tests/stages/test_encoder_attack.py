"""Attacks on the encoder's outputs: closed forms, the exact tie of two of them, who the non-members are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tiny_stages import artifact, run_stage, settings, stage_context, tiny_pairs, values
from tiny_systems import analysis_settings, planned

from fedsynth.attacks import membership_attack
from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.fingerprint import canonical
from fedsynth.stages.encoder_attack.run import ARM, Outputs, attack_intervals, masks
from fedsynth.stages.fusion_encoder.network import build_network, load_network, predict

ATTACKS = ("loss", "confidence", "entropy")


@pytest.fixture
def encoder(tmp_path: Path) -> Artifact:
    """An untrained encoder, stored as the stage would."""
    torch.manual_seed(0)
    made = canonical(settings("fusion_encoder"))
    network = build_network(made)
    return artifact(
        tmp_path / "fusion_encoder" / "output",
        {"model.safetensors": network.state_dict()},
        stage_settings=settings("fusion_encoder"),
    )


def attacked(folder: Path, clients: Artifact, encoder: Artifact, **changes: int) -> Artifact:
    return run_stage(
        "encoder_attack",
        analysis_settings("encoder_attack", **changes),
        {"clients": clients, "encoder": encoder},
        stage_context(folder / "attack"),
    )


def outputs(size: int, seed: int, scale: float) -> Outputs:
    stream = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(size, 2, generator=stream, dtype=torch.float64)
    return Outputs(logits.softmax(dim=1), torch.randint(2, (size,), generator=stream))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 15.0, 300.0])
def test_confidence_and_entropy_tie_exactly(scale: float) -> None:
    found = attack_intervals(
        outputs(90, 1, scale), outputs(70, 2, scale), 50, torch.Generator().manual_seed(0)
    )
    assert found["confidence"] == found["entropy"]  # bit for bit, interval included
    assert found["loss"] != found["confidence"]


def test_estimates_are_those_of_the_attack(tmp_path: Path, clients: Artifact, encoder: Artifact) -> None:
    made = attacked(tmp_path, clients, encoder)
    pairs, network, found = tiny_pairs(), load_network(encoder), values(made)

    def probability(name: str, shown: list[bool]) -> torch.Tensor:
        split = getattr(pairs, name)
        return predict(network, split.image, split.ecg, torch.tensor(shown)).logits.double().softmax(1)

    for suffix, shown in (("", [True, True]), ("_image_only", [True, False])):
        for shift, name in (("", "val"), ("_test_shift", "test")):
            wanted = membership_attack(
                member_probability=probability("train", shown),
                member_label=pairs.train.label,
                non_member_probability=probability(name, shown),
                non_member_label=getattr(pairs, name).label,
            )
            for attack in ATTACKS:
                value = found[(f"{ARM}{suffix}{shift}", f"{attack}/attack_auroc", 42)]
                assert value == pytest.approx(getattr(wanted, f"{attack}_auroc"), abs=1e-12)


def test_every_auroc_lies_in_its_interval(tmp_path: Path, clients: Artifact, encoder: Artifact) -> None:
    rows = attacked(tmp_path, clients, encoder, num_bootstrap=300).manifest["metrics"]
    assert len(rows) == 4 * 5
    for row in rows:
        assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1
    plain = {row["arm"]: row["value"] for row in rows if row["metric"] == "attack_auroc"}
    assert plain == {row["arm"]: row["value"] for row in rows if row["metric"] == "loss/attack_auroc"}


def test_non_members_that_are_members_cannot_be_told_apart(tmp_path: Path, encoder: Artifact) -> None:
    pairs = tiny_pairs()
    same = dataclasses.replace(pairs, val=pairs.train, test=pairs.train)
    clients = artifact(tmp_path / "same" / "output", {"pairs.safetensors": same.to_tensors()})
    for (_, _, _), value in values(attacked(tmp_path, clients, encoder)).items():
        assert value == pytest.approx(0.5, abs=1e-12)


def test_perfectly_memorized_records_are_all_recognized() -> None:
    sure = Outputs(torch.tensor([[0.0, 1.0]] * 5, dtype=torch.float64), torch.ones(5, dtype=torch.int64))
    unsure = Outputs(torch.full((8, 2), 0.5, dtype=torch.float64), torch.zeros(8, dtype=torch.int64))
    found = attack_intervals(sure, unsure, 10, torch.Generator().manual_seed(0))
    assert {tuple(found[attack]) for attack in ATTACKS} == {(1.0, 1.0, 1.0)}


def test_an_encoder_is_shown_what_it_was_trained_with() -> None:
    assert {name: mask.tolist() for name, mask in masks({"modalities": ["ecg"]}).items()} == {
        "": [False, True]
    }
    assert set(masks({"modalities": ["image", "ecg"]})) == {"", "_image_only"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_bootstrap", 0),
        ("inputs.encoder", "encode"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(f"encoder_attack.{key}", value)
    assert str(caught.value).startswith(f"stages.encoder_attack.{key} must ")
