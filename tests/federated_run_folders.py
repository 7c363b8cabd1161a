"""Fake runs of federated systems: every stage the report reads, with numbers that follow from the arm's name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from run_folders import metric, write_run

PAPER_FILE = Path(__file__).parents[1] / "configs" / "paper" / "fedmpa.yaml"
SYSTEMS = ("centralized", "fedprox", "fedavg", "fedproto", "fedgpd", "fedmpa", "local", "fedavg_weighted")
ABLATIONS = (
    "fedmpa_no_repulsion", "fedmpa_no_pull", "fedmpa_plain_cross_entropy", "fedmpa_cross_entropy_only",
    "fedmpa_softmax_only", "fedmpa_fedavg_weights", "fedmpa_no_momentum", "fedmpa_no_bank_ema",
)  # fmt: skip
SCALING = tuple(f"{base}_clients_{count}" for base in ("fedavg", "fedmpa") for count in (4, 16, 64))
PRIVATE = ("fedmpa_dp", "fedproto_dp")
ALL = (*SYSTEMS, *ABLATIONS, *SCALING, *PRIVATE)
ROUNDS = 10


def uar_of(arm: str, seed: int = 42) -> float:
    """Between 0.66 and 0.9, another one for every arm."""
    return round(0.9 - 0.01 * ALL.index(arm) + 0.002 * (seed - 42), 4)


def auroc_of(arm: str) -> float:
    return round(0.48 + 0.004 * ALL.index(arm), 4)


def paper_config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(PAPER_FILE.read_text())
    return loaded


def strategy_of(arm: str) -> dict[str, Any]:
    """The settings of the strategy that trains the arm."""
    names = ("fedmpa", "fedproto", "fedprox", "fedgpd", "local")
    name = next((name for name in names if arm.startswith(name)), "fedavg")
    repelled = 0.0 if arm in ("fedmpa_no_repulsion", "fedmpa_cross_entropy_only") else 0.07
    numbers = {
        "repulsion_weights": [repelled] * 3,
        "pull_weights": [0.07, 0.07, 0.08], "bank_momentum": 0.9, "aggregation": "similarity", "sensitivity": 2.0,
        "server_momentum": 0.9, "server_learning_rate": 1.0,
    }  # fmt: skip
    return {"name": name, **(numbers if name == "fedmpa" else {})}


def score_metrics(arm: str, seed: int, *, has_segments: bool) -> list[dict[str, Any]]:
    """What ``privacy_performance`` measures of one system."""
    uar, auroc = uar_of(arm, seed), auroc_of(arm)
    rho = 1 - 2 * abs(auroc - 0.5)
    values = {
        "test/accuracy": uar - 0.01, "test/precision": uar - 0.05, "test/sensitivity": uar - 0.02,
        "test/specificity": uar + 0.02, "test/f1": uar - 0.03, "test/uar": uar, "attack_auroc": auroc,
        "attack_auroc_true_class": auroc + 0.02, "attack_auroc_val": auroc - 0.01, "privacy_score": rho,
        "pps": 2 * uar * rho / (uar + rho),
    }  # fmt: skip
    rows = [
        metric(arm, name, value, seed, (value - 0.06, min(1.0, value + 0.05)))
        for name, value in values.items()
    ]
    if has_segments:
        rows += [metric(arm, f"segment/{name}", value - 0.1, seed) for name, value in values.items()]
    if arm != "fedprox":  # which never reaches the target
        rows.append(metric(arm, "rounds_to_uar", 3.0 + ALL.index(arm), seed))
    rows += [
        metric(arm, "bytes_up_per_round", 1.25e6, seed),
        metric(arm, "bytes_down_per_round", 1536.0, seed),
    ]
    rows.append(metric(arm, "num_models", 4.0 if arm in ("fedproto", "local", "fedproto_dp") else 1.0, seed))
    if arm.startswith("fedmpa") and arm != "fedmpa_softmax_only":
        rows.append(metric(arm, "test/rerouted_share", 0.125, seed))
    return rows


def contrast_metrics(baseline: str, seed: int) -> list[dict[str, Any]]:
    """What ``system_contrast`` measures of FedMPA against one baseline."""
    change = uar_of("fedmpa", seed) - uar_of(baseline, seed)
    rows = []
    for name in ("uar", "pps"):
        rows.append(metric(baseline, f"difference/{name}", change, seed, (change - 0.03, change + 0.03)))
        rows += [
            metric(baseline, f"p_value/{name}", 0.01, seed),
            metric(baseline, f"p_holm/{name}", 0.07, seed),
        ]
    return rows


def leakage_metrics(arm: str, modalities: Sequence[str]) -> list[dict[str, Any]]:
    """What ``prototype_attack`` measures of one system: less of a noisy one."""
    strength = 0.1 if arm.endswith("_dp") else 0.4
    rows = []
    for index, name in enumerate(modalities):
        for what, guess in (
            ("nearest_attribution_top1", 0.25), ("client_attribution", 0.4), ("attack_auroc_other_clients", 0.5),
            ("attack_auroc_val", 0.5),
        ):  # fmt: skip
            value = guess + strength * 0.5 + 0.05 * index
            rows.append(metric(arm, f"{name}/{what}", value, None, (value - 0.05, value + 0.04)))
        rows += [metric(arm, f"{name}/base_rate", 0.25), metric(arm, f"{name}/majority_rate", 0.4)]
        rows.append(metric(arm, f"{name}/inner_product_attack_auroc_val", 0.55))
        matched = 0.0 if arm.endswith("_dp") else 1.0
        rows += [metric(arm, f"{name}/exact_match_10+", 0.0), metric(arm, f"{name}/exact_match_1", matched)]
    return rows


@dataclass(frozen=True)
class Schedule:
    """Of every system of a fake run."""

    rounds: int = 10
    local_epochs: int = 2
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4


PAPER_SCHEDULE = Schedule(30, 5, 8, 1e-5, 0.0)
#: Arms of the full method whose loss has no class weights.
UNWEIGHTED = ("fedmpa_plain_cross_entropy", "fedmpa_cross_entropy_only")


class FederatedFolder:
    """One fake run while it is written: artifacts on disk, stages and config for ``run.json``."""

    def __init__(self, log_dir: Path, seed: int, *, simulated: bool, is_speech: bool) -> None:
        self.log_dir, self.seed, self.simulated, self.is_speech = log_dir, seed, simulated, is_speech
        self.config: dict[str, Any] = {}
        self.entries: dict[str, Any] = {}

    def add(
        self, name: str, config: dict[str, Any], history: list[dict[str, Any]] | None = None, **manifest: Any
    ) -> None:
        """A stage and its artifact."""
        kind, path = config["stage"], Path("artifacts") / name / str(self.seed)
        key = f"{self.seed}-{name}".encode().hex().ljust(64, "0")[:64]
        folder = self.log_dir / path
        folder.mkdir(parents=True)
        whole = {
            "kind": kind,
            "key": key,
            "simulated": self.simulated,
            "settings": {"seed": self.seed},
            **manifest,
        }
        (folder / "manifest.json").write_text(json.dumps(whole))
        if history is not None:
            (folder / "history.json").write_text(json.dumps(history))
        self.config[name] = config
        self.entries[name] = {"kind": kind, "key": key, "path": str(path), "status": "computed", "seconds": 1.0,
                              "sensitivity": "private", "side": "auditor"}  # fmt: skip

    def add_clients(self) -> None:
        self.add("clients", {"stage": "speech_clients" if self.is_speech else "clients", "num_clients": 4})

    def add_encoder(self, arm: str, schedule: Schedule) -> None:
        """Trains one system: its UAR rises by round; noisy prototypes have a ledger."""
        is_central = arm == "centralized"
        config = {
            "stage": "speech_classifier" if self.is_speech else "fusion_encoder", "inputs": {"clients": "clients"},
            "training": "centralized" if is_central else "federated", "strategy": strategy_of(arm),
            "local_epochs": schedule.local_epochs, "batch_size": schedule.batch_size,
            "learning_rate": schedule.learning_rate, "weight_decay": schedule.weight_decay,
            "class_weighting": "client" if arm.startswith("fedmpa") and arm not in UNWEIGHTED else "none",
            "trainer": {"max_epochs": schedule.rounds},
        }  # fmt: skip
        end = uar_of(arm, self.seed)
        rows = [
            {"epoch": row, "val/uar": end - 0.3 * math.exp(-row / 4)}
            for row in range(ROUNDS * (schedule.local_epochs if is_central else 1))
        ]
        entry = {
            "mechanism": "Gaussian", "epsilon": 4.0, "delta": 1e-5, "adjacency": "replace_one",
            "covered": "prototypes", "not_covered": ["weights"],
        }  # fmt: skip
        self.add(arm, config, rows, ledger=[entry] if arm in PRIVATE else [])

    def add_score(self, arm: str, encoder: str) -> None:
        inference = "hybrid" if arm.startswith("fedmpa") and encoder == arm else "softmax"
        config = {
            "stage": "privacy_performance", "arm": arm, "inputs": {"clients": "clients", "encoder": encoder},
            "inference": inference, "confidence_threshold": 0.6, "target_uar": 0.8,
        }  # fmt: skip
        sizes = (163, 56, 56) if self.is_speech else (4708, 524, 624)
        notes = {
            "definitions": {"uar": "mean of sensitivity and specificity of the predicted class"},
            "num_participants": dict(zip(("train", "val", "test"), sizes, strict=True)),
        }
        rows = score_metrics(arm, self.seed, has_segments=self.is_speech)
        self.add(f"score_{arm}", config, metrics=rows, notes=notes)

    def add_leakage(self, arm: str) -> None:
        modalities = ("audio", "text", "fused") if self.is_speech else ("image", "ecg", "fused")
        config = {"stage": "prototype_attack", "arm": arm, "inputs": {"clients": "clients", "encoder": arm}}
        self.add(f"leakage_{arm}", config, metrics=leakage_metrics(arm, modalities))

    def add_contrast(self, baselines: Sequence[str]) -> None:
        config = {
            "stage": "system_contrast",
            "inputs": {"candidate": "score_fedmpa", "baseline": f"score_{baselines[0]}"},
        }
        rows = [row for arm in baselines for row in contrast_metrics(arm, self.seed)]
        self.add("contrast_systems", config, metrics=rows, notes={"candidate": "fedmpa"})


def write_federated_run(
    log_dir: Path,
    seed: int = 42,
    *,
    simulated: bool = True,
    is_speech: bool = True,
    arms: Sequence[str] = ALL,
    schedule: Schedule | None = None,
    paper: dict[str, Any] | None = None,
) -> Path:
    """One run with a score for every arm, leakage of those with prototypes, and a contrast of FedMPA with the systems.

    Args:
        log_dir: Where artifacts and runs are written.
        seed: Of the run.
        simulated: Whether the data is said to be simulated.
        is_speech: E-DAIC, else X-ray and ECG.
        arms: Of ``ALL``.
        schedule: Of every arm.
        paper: Instead of the published values of FedMPA.
    """
    run = FederatedFolder(log_dir, seed, simulated=simulated, is_speech=is_speech)
    run.add_clients()
    for arm in arms:
        encoder = "fedmpa" if arm == "fedmpa_softmax_only" else arm
        if encoder == arm:
            run.add_encoder(arm, schedule or Schedule())
        run.add_score(arm, encoder)
        if arm in ("fedmpa", "fedproto", *PRIVATE):
            run.add_leakage(arm)
    baselines = [arm for arm in arms if arm in SYSTEMS and arm != "fedmpa"]
    if "fedmpa" in arms and baselines:
        run.add_contrast(baselines)
    data = {"label_rule": "phq_binary"} if is_speech else {"label_rule": "n_vs_rest", "image_size": 28}
    return write_run(
        log_dir,
        experiment="fedmpa",
        run_id=f"run-{seed}",
        seed=seed,
        stages=run.entries,
        config={
            "seed": seed, "data": data, "stages": run.config, "paper": paper_config() if paper is None else paper,
            "trainer": {"accelerator": "cpu"},
        },
        simulated=simulated,
        finished=True,
    )  # fmt: skip
