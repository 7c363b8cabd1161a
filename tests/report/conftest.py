"""Fake run folders for the report: artificial values, easy to recompute by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from run_folders import metric, write_run

PAPER = {
    "title": "An Invented Paper",
    "reference": "arXiv:0000.00000",
    "values": [
        {
            "stage": "fusion_encoder",
            "arm": "both",
            "metric": "test/auroc",
            "mean": 0.75,
            "std": 0.5,
            "place": "Table 9",
        },
        {
            "stage": "tstr_diffusion",
            "arm": "dp_diffusion",
            "metric": "test/auroc",
            "mean": 0.625,
            "std": None,
            "place": "Table 9",
            "when": {"stages.release.epsilon": 4.0},
        },
    ],
}
LEDGER = {
    "stage": "release",
    "mechanism": "analytic Gaussian",
    "epsilon": 4.0,
    "delta": 1e-5,
    "adjacency": "replace_one",
    "covered": "clipped shard means",
    "not_covered": ["class counts", "covariances"],
    "num_releases": 40,
    "sensitivity_range": [0.1, 0.3],
    "noise_std_range": [0.11, 0.33],
    "composition": "parallel over disjoint shards",
}


class FakeLab:
    """Writes run folders below one log directory."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir

    def run(
        self,
        seed: int = 42,
        *,
        run_id: str | None = None,
        experiment: str = "fake",
        created: str | None = None,
        epsilon: float = 4.0,
        simulated: bool = False,
        stages: tuple[str, ...] | None = None,
        edit: Callable[[dict[str, dict[str, Any]]], None] | None = None,
        config: dict[str, Any] | None = None,
        finished: bool = True,
    ) -> Path:
        """One run; ``stages`` narrows it, ``edit`` changes the manifests before they are written."""
        run_id = run_id or f"run-{seed}"
        manifests = self._manifests(seed, epsilon, simulated)
        if stages is not None:
            manifests = {name: value for name, value in manifests.items() if name in stages}
        if edit is not None:
            edit(manifests)
        entries = {}
        for name, manifest in manifests.items():
            key = f"{run_id}-{name}".encode().hex().ljust(64, "0")[:64]
            path = Path("artifacts") / name / f"{run_id}-{name}"
            manifest["key"] = key
            files = manifest.pop("_files")
            self._write(self.log_dir / path, manifest, files)
            entries[name] = {
                "kind": manifest["kind"],
                "key": key,
                "path": str(path),
                "status": "cached" if name == "clients" else "computed",
                "seconds": 1.25,
                "sensitivity": manifest["sensitivity"],
                "side": manifest["side"],
            }
        names = list(self._manifests(seed, epsilon, simulated))
        default = {
            "seed": seed,
            "data": {"split_seed": 7},
            "paper": PAPER,
            "stages": {name: ({"epsilon": epsilon} if name == "release" else {}) for name in names},
        }
        return write_run(
            self.log_dir,
            experiment=experiment,
            run_id=run_id,
            seed=seed,
            stages=entries,
            config=config or default,
            simulated=simulated,
            finished=finished,
            created=created,
        )

    def _write(self, path: Path, manifest: dict[str, Any], files: dict[str, Any]) -> None:
        path.mkdir(parents=True)
        for name, content in files.items():
            if name.endswith(".json"):
                (path / name).write_text(json.dumps(content))
            else:
                save_file({key: np.ascontiguousarray(value) for key, value in content.items()}, path / name)
        (path / "manifest.json").write_text(json.dumps(manifest))

    def _manifests(self, seed: int, epsilon: float, simulated: bool) -> dict[str, dict[str, Any]]:
        rng = np.random.default_rng(seed)
        shift = (seed - 42) / 100  # seeds 42, 43, 44 -> 0, .01, .02

        def manifest(kind: str, side: str, sensitivity: str, **extra: Any) -> dict[str, Any]:
            settings = extra.pop("settings", {})
            settings = {"seed": seed, **settings}
            return {
                "stage": kind,
                "kind": kind,
                "side": side,
                "sensitivity": sensitivity,
                "simulated": simulated,
                "settings": settings,
                "key_parts": {"code": "code-1", "settings": settings, "trainer": {"max_epochs": 8}},
                "inputs": {},
                "metrics": [],
                "ledger": [],
                "uncovered": [],
                "data": [],
                "notes": {},
                "seconds": 1.0,
                "commit": "c0ffee",
                "_files": {},
                **extra,
            }

        clients = [
            {
                "images_by_class": {"0": 40 * (k + 1), "1": 300 - 50 * k},
                "beats_by_class": {"0": 500 - 60 * k, "1": 100 + 80 * k},
                "records": [100 + k, 200 + k],
            }
            for k in range(5)
        ]
        data_report = {
            "clients": clients,
            "splits": {
                "train": {
                    "images_by_class": {"0": 600, "1": 1000},
                    "beats_by_class": {"0": 1900, "1": 1300},
                    "beat_uses": {"max": 2, "mean": 1.1},
                    "record_uses": {"max": 30, "mean": 12.0},
                    "records": [100, 101, 102],
                }
            },
            "dropped_beats": {"window leaves the record": 3},
            "borrowed_beats": [],
        }
        rounds = [
            {"epoch": r, "val/loss": 0.7 * 0.8**r, "val/auroc": 1 - 0.4 * 0.7**r, "train/loss": 0.6 * 0.7**r}
            | {f"client/{k}/train_loss": (0.6 + 0.05 * k) * 0.75**r for k in range(5)}
            for r in range(8)
        ]
        epochs = [{"epoch": e, "train/loss": 0.9 / (1 + e), "val/loss": 1 / (1 + e)} for e in range(60)]
        label = np.arange(120) % 3 != 0

        def scores(strength: float, seeds: int) -> dict[str, np.ndarray]:
            logits = strength * (label - 0.5) + rng.normal(size=(seeds, len(label)))
            probability = (1 / (1 + np.exp(-2 * logits))).astype(np.float32)
            return {
                "test.probability": probability[0] if seeds == 1 else probability,
                "test.label": label.astype(int),
            }

        def latents(n: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
            classes = np.arange(n) % 2
            points = rng.normal(size=(n, 8)) * spread * np.linspace(1.5, 0.2, 8)
            points[:, 0] += 4 * classes
            return points.astype(np.float32), classes

        real, real_label = latents(300, 1.0)
        mixture, mixture_label = latents(200, 1.2)
        synthetic, synthetic_label = latents(200, 0.7)
        sources = [
            {
                "name": "fake_images",
                "file": "fake.npz",
                "sha256": "ab" * 32,
                "md5": "cd" * 16,
                "known": None if simulated else False,
                "simulated": simulated,
                "licence": "CC BY 4.0",
            }
        ]

        def tstr(arm: str, strength: float, values: tuple[float, float, float]) -> dict[str, Any]:
            rows = [metric(arm, "test/auroc", v + shift, s) for s, v in zip((1, 2, 3), values, strict=True)]
            rows += [metric(arm, "test/f1", v, s) for s, v in zip((1, 2, 3), (0.5, 0.5, 0.5), strict=True)]
            files = {"scores.safetensors": scores(strength, 3)}
            return manifest("tstr_mlp", "auditor", "private", metrics=rows, _files=files)

        return {
            "clients": manifest("clients", "client", "private", data=sources, notes={"report": data_report}),
            "fusion_encoder": manifest(
                "fusion_encoder",
                "client",
                "private",
                metrics=[
                    metric("both", "test/auroc", 0.5 + shift, seed, (0.25, 0.75)),
                    metric("both", "test/mcc", None if seed == 42 else 0.5, seed),
                    metric("both", "val/auroc", 0.875, seed),
                ],
                uncovered=["FedAvg model parameters"],
                _files={"history.json": rounds, "scores.safetensors": scores(2.0, 1)},
            ),
            "encode": manifest(
                "encode",
                "client",
                "private",
                _files={
                    "latents.safetensors": {
                        "train.latent": real,
                        "train.label": real_label,
                        "test.latent": real[:50],
                        "test.label": real_label[:50],
                    }
                },
            ),
            "release": manifest(
                "release",
                "client",
                "released",
                settings={"epsilon": epsilon},
                ledger=[LEDGER | {"epsilon": epsilon}],
                uncovered=["clip radius"],
                notes={
                    "noise_std": [[[0.5, 0.25], [0.125, 0.0]] for _ in range(5)],
                    "counts": [[[10, 20], [40, 0]] for _ in range(5)],
                },
            ),
            "mix": manifest(
                "mix",
                "server",
                "released",
                _files={"samples.safetensors": {"latent": mixture, "label": mixture_label}},
            ),
            "latent_ddpm": manifest("latent_ddpm", "server", "released", _files={"history.json": epochs}),
            "synthesize": manifest(
                "synthesize",
                "server",
                "released",
                _files={"samples.safetensors": {"latent": synthetic, "label": synthetic_label}},
            ),
            "tstr_real": tstr("real", 2.5, (0.8, 0.9, 1.0)),
            "tstr_diffusion": tstr("dp_diffusion", 1.2, (0.5, 0.6, 0.7)),
            "audit": manifest(
                "audit",
                "auditor",
                "private",
                metrics=[
                    metric("negative", "recall", 0.25),
                    metric("membership_private", "attack_auroc", 0.5, None, (0.49, 0.51)),
                ],
                _files={
                    "distances.safetensors": {
                        "train": rng.gamma(20, 0.3, 400).astype(np.float32),
                        "held_out": rng.gamma(20, 0.305, 400).astype(np.float32),
                    }
                },
            ),
        }


@pytest.fixture(scope="session")
def make_lab() -> type[FakeLab]:
    """For fixtures that outlive a test: ``make_lab(log_dir)``."""
    return FakeLab


@pytest.fixture
def lab(tmp_path: Path) -> FakeLab:
    """An empty log directory that fake runs are written to."""
    return FakeLab(tmp_path / "logs")
