"""The stage that attacks uploaded prototypes: names, values against the functions, what is refused before it runs."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import OVERRIDES, TRAINER, artifact, run_stage, stage_context, values

from fedsynth.attacks import RecordOwners, nearest_shares
from fedsynth.composition import compose_config, resolved
from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.settings import build_settings
from fedsynth.prototypes.class_prototypes import ClassPrototypes, PrototypeSums
from fedsynth.run_sources import planner_sources
from fedsynth.stages.multimodal.trained import SplitOutputs
from fedsynth.stages.prototype_attack import run as stage
from fedsynth.stages.prototype_attack.spec import PrototypeAttackSettings

NO_PRIVACY = {"mechanism": "none", "clip_radius": 1.0}
MODALITIES = ("audio", "text", "fused")


class FakeClassifier:
    """Three clients whose encoders turn and shift records; two segments a person in training."""

    def __init__(
        self, sizes: tuple[tuple[int, int], ...] = ((6, 2), (4, 4), (2, 8)), clip_radius: float = 0.0
    ):
        self.sizes, self.clip_radius = sizes, clip_radius
        stream = torch.Generator().manual_seed(0)
        cells = [(k, c) for k, row in enumerate(sizes) for c, n in enumerate(row) for _ in range(n)]
        client, label = (torch.tensor(part) for part in zip(*cells, strict=True))
        val_label = torch.arange(12) % 2
        self.about = {
            "train": (label, torch.arange(len(label)) // 2, client),
            "val": (val_label, torch.arange(12), torch.full((12,), -1)),
        }
        self.record = {
            split: torch.randn(len(self.about[split][0]), 5, generator=stream) for split in self.about
        }
        self.map = torch.randn(len(sizes), len(MODALITIES), 5, 4, generator=stream)
        self.uploads: dict[int, ClassPrototypes] = {k: self._sent(k) for k in range(len(sizes))}

    def _sent(self, client: int) -> ClassPrototypes:
        found, sums = self.client_outputs(client, "train"), PrototypeSums(num_classes=2)
        own = found.client == client
        z = {name: embedding[0, own].double() for name, embedding in found.embeddings.items()}
        if self.clip_radius:
            z = {
                name: rows * (self.clip_radius / rows.norm(dim=1, keepdim=True)).clamp_max(1)
                for name, rows in z.items()
            }
        sums.add(z, found.label[own])
        return sums.prototypes()

    def client_outputs(self, client: int, split: str) -> SplitOutputs:
        made = {
            name: (self.record[split] @ self.map[client, m]).unsqueeze(0) for m, name in enumerate(MODALITIES)
        }
        return SplitOutputs(torch.zeros(1, len(self.record[split]), 2), made, *self.about[split])


def encoder(folder: Path, privacy: dict[str, Any] | None = None) -> Artifact:
    made = artifact(folder / "fedmpa" / "output", {})
    made.manifest["settings"] = {"prototype_privacy": privacy or NO_PRIVACY}
    return made


def attacked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    classifier: FakeClassifier,
    privacy: dict[str, Any] | None = None,
) -> Artifact:
    monkeypatch.setattr(stage, "open_classifier", lambda encoder, clients: classifier)
    return run_stage(
        "prototype_attack",
        PrototypeAttackSettings(seed=42, arm="fedmpa", num_bootstrap=100),
        {"clients": artifact(folder / "clients" / "output", {}), "encoder": encoder(folder, privacy)},
        stage_context(folder / "attack"),
    )


def test_every_modality_is_attacked_and_the_strongest_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = attacked(tmp_path, monkeypatch, FakeClassifier())
    found = {
        name: value for (arm, name, seed), value in values(made).items() if (arm, seed) == ("fedmpa", 42)
    }
    assert len(found) == len(made.manifest["metrics"])
    for modality in MODALITIES:
        for name in (
            "nearest_attribution_top1", "nearest_attribution_top5", "base_rate", "client_attribution", "majority_rate",
            "attack_auroc_other_clients", "attack_auroc_val", "inner_product_attack_auroc_val", "num_prototypes",
        ):  # fmt: skip
            assert found[f"{modality}/{name}"] >= 0
        assert found[f"{modality}/num_prototypes"] == 6
        assert found[f"{modality}/majority_rate"] == (6 + 8) / 26
    strongest = made.manifest["notes"]["strongest"]
    by_modality = {
        f"{modality}/attack_auroc_val": found[f"{modality}/attack_auroc_val"] for modality in MODALITIES
    }
    assert found["attack_auroc"] == max(by_modality.values()) == by_modality[strongest["attack_auroc"]]
    assert found["strongest_attack_auroc"] == max(
        value for name, value in found.items() if "/" in name and "auroc" in name
    )


def test_the_stage_reports_what_the_functions_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = FakeClassifier()
    found = values(attacked(tmp_path, monkeypatch, classifier))
    comparisons = stage._see(classifier, None).comparisons["text"]  # type: ignore[arg-type]
    evidence = stage._evidence(classifier.uploads, comparisons, "text")
    # Rows are senders in ascending order, each in its own space.
    z = classifier.record["train"] @ classifier.map[2, 1]
    label, _, client = classifier.about["train"]
    own = (client == 2) & (label == 1)
    torch.testing.assert_close(evidence.distance[2, own].float(), (z[own] - z[own].mean(dim=0)).norm(dim=1))
    shares = nearest_shares(evidence, RecordOwners(label, client, client), 1).share
    assert found["fedmpa", "text/nearest_attribution_top1", 42] == pytest.approx(float(shares.mean()))


def test_a_client_with_one_record_gives_it_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = values(attacked(tmp_path, monkeypatch, FakeClassifier(((1, 1), (1, 1), (1, 1)))))
    for modality in MODALITIES:
        assert found["fedmpa", f"{modality}/exact_match_1", 42] == 1.0
        assert found["fedmpa", f"{modality}/nearest_attribution_top1", 42] == 1.0
        assert found["fedmpa", f"{modality}/attack_auroc_val", 42] == 1.0


@pytest.mark.parametrize(("mechanism", "rate"), [("gaussian", 1.0), ("none", 0.0)])
def test_candidates_are_clipped_as_the_clients_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str, rate: float
) -> None:
    classifier = FakeClassifier(((1, 1), (1, 1), (1, 1)), clip_radius=0.1)  # ε = ∞: clipped, no noise
    found = values(attacked(tmp_path, monkeypatch, classifier, {"mechanism": mechanism, "clip_radius": 0.1}))
    assert found["fedmpa", "fused/exact_match_1", 42] == rate


def test_what_left_no_prototypes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = FakeClassifier()
    classifier.uploads = {}
    with pytest.raises(ArtifactError, match="fedmpa left no prototypes of its clients"):
        attacked(tmp_path, monkeypatch, classifier)


def test_a_split_without_a_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = FakeClassifier()
    classifier.about["val"][0][:] = 1
    with pytest.raises(
        ArtifactError, match="cannot attack the prototypes of fedmpa: Class 0 has 0 reference"
    ):
        attacked(tmp_path, monkeypatch, classifier)


@cache
def _composed(federated: str) -> dict[str, Any]:
    added = [
        "+stage@stages.prototype_attack=prototype_attack",
        "stages.prototype_attack.inputs.encoder=fusion_encoder",
        "stages.prototype_attack.arm=system",
    ]
    return resolved(compose_config(["experiment=feddp_pald", f"federated={federated}", *OVERRIDES, *added]))


def planned(federated: str, **inputs: str) -> Any:
    stages = {name: dict(stage) for name, stage in _composed(federated)["stages"].items()}
    changed = stages["prototype_attack"]
    changed["inputs"] = {**changed["inputs"], **inputs}
    plan = plan_stages(stages, TRAINER, planner_sources({}))
    return next(one.settings for one in plan if one.name == "prototype_attack")


def test_a_training_with_prototypes_can_be_planned() -> None:
    made = planned("fedmpa")
    assert dataclasses.asdict(made) == {"seed": 42, "arm": "system", "num_bootstrap": 20}


def test_a_training_without_prototypes_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"whose training \(fedavg\) sends none") as caught:
        planned("fedavg")
    assert caught.value.key == "stages.prototype_attack.inputs.encoder"


def test_other_suppliers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"stages\.prototype_attack\.inputs\.encoder must"):
        planned("fedmpa", encoder="encode")


@pytest.mark.parametrize(
    ("name", "value"), [("num_bootstrap", 0), ("seed", -1), ("arm", ""), ("arm", "fused/fedmpa")]
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    given = {"seed": 42, "arm": "fedmpa", "num_bootstrap": 20, name: value}
    with pytest.raises(ConfigError, match=f"stages.attack.{name} must be"):
        build_settings(PrototypeAttackSettings, given, "stages.attack")
