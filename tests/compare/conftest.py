"""Fake run folders for comparisons: few stages, values that can be recomputed by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedsynth.report.runs import Run, load_run
from run_folders import metric, write_run

DP_LEDGER = {
    "mechanism": "analytic Gaussian",
    "delta": 1e-5,
    "adjacency": "replace_one",
    "covered": "clipped shard means",
    "not_covered": ["class counts"],
    "composition": "parallel over disjoint shards",
}
PAPER = {
    "title": "An Invented Paper",
    "values": [
        {"stage": "fusion_encoder", "arm": "both", "metric": "test/auroc", "mean": 0.75, "std": 0.5, "place": "Table 9"},
        {
            "stage": "tstr_mixture", "arm": "dp_mixture", "metric": "test/auroc", "mean": 0.625, "place": "Table 8",
            "when": {"privacy.epsilon": 4.0},
        },
    ],
}  # fmt: skip


def chain(suffix: str, epsilon: float, arm: str) -> dict[str, dict[str, Any]]:
    """A release and the classifier trained on its mixture, as config stages."""
    return {
        f"release{suffix}": {"stage": "release", "inputs": {"latents": "encode"}, "epsilon": epsilon},
        f"mix{suffix}": {"stage": "mix", "inputs": {"release": f"release{suffix}"}},
        f"tstr_mixture{suffix}": {
            "stage": "tstr_mlp",
            "inputs": {"train": f"mix{suffix}", "latents": "encode"},
            "arm": arm,
        },
    }


class Lab:
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
        finished: bool = True,
        code: str = "code-1",
        digest: str = "ab" * 32,
        shift: float = 0.0,
        keep: tuple[str, ...] | None = None,
        settings: dict[str, Any] | None = None,
        extra: dict[str, dict[str, Any]] | None = None,
        command: str = "",
        edit: Callable[[dict[str, dict[str, Any]]], None] | None = None,
    ) -> Run:
        """One run. ``settings``: dotted config keys; ``keep``: stages that were reached; ``shift``: added to AUROCs."""
        run_id = run_id or f"run-{seed}-{epsilon:g}"
        config = self._config(experiment, seed, epsilon, settings or {}, extra or {})
        manifests = {
            name: self._manifest(name, stage, seed, simulated, code, digest, shift + (seed - 42) / 100)
            for name, stage in config["stages"].items()
            if keep is None or name in keep
        }
        if edit is not None:
            edit(manifests)
        entries = {}
        for name, manifest in manifests.items():
            history = manifest.pop("_history", None)
            key = f"{experiment}-{run_id}-{name}".encode().hex().ljust(64, "0")[:64]
            path = Path("artifacts") / name / f"{experiment.replace('/', '-')}-{run_id}"
            manifest["key"] = key
            (self.log_dir / path).mkdir(parents=True)
            (self.log_dir / path / "manifest.json").write_text(json.dumps(manifest))
            if history is not None:
                (self.log_dir / path / "history.json").write_text(json.dumps(history))
            entries[name] = {
                "kind": manifest["kind"],
                "key": key,
                "path": str(path),
                "status": "computed",
                "seconds": 1.0,
            }
        folder = write_run(
            self.log_dir,
            experiment=experiment,
            run_id=run_id,
            seed=seed,
            stages=entries,
            config=config,
            simulated=simulated,
            finished=finished,
            created=created,
            command=command,
        )
        (folder / "config").mkdir()
        return load_run(folder, log_dir=self.log_dir)

    def _config(
        self,
        experiment: str,
        seed: int,
        epsilon: float,
        settings: dict[str, Any],
        extra: dict[str, dict[str, Any]],
    ) -> dict[str, Any]:
        config: dict[str, Any] = {
            "experiment_name": experiment,
            "run_id": "anything",
            "seed": seed,
            "paths": {"log_dir": f"/somewhere/{seed}"},
            "data": {"num_clients": 3, "dirichlet_alpha": 0.5, "split_seed": 7},
            "model": {"normalization": "batch"},
            "federated": {"strategy": {"name": "fedavg"}},
            "privacy": {"epsilon": epsilon},
            "paper": PAPER,
        }
        for key, value in settings.items():
            *parents, leaf = key.split(".")
            section = config
            for name in parents:
                section = section[name]
            section[leaf] = value
        config["stages"] = {
            "clients": {"stage": "clients", **config["data"]},
            "fusion_encoder": {"stage": "fusion_encoder", "inputs": {"clients": "clients"}, "seed": seed},
            "encode": {"stage": "encode", "inputs": {"clients": "clients", "encoder": "fusion_encoder"}},
            "tstr_real": {
                "stage": "tstr_mlp",
                "inputs": {"train": "encode", "latents": "encode"},
                "arm": "real",
            },
            **chain("", config["privacy"]["epsilon"], "dp_mixture"),
            "audit": {
                "stage": "audit",
                "inputs": {"latents": "encode", "release": "release", "mixture": "mix", "synthetic": "mix"},
            },
            **extra,
        }
        return config

    def _manifest(
        self,
        name: str,
        stage: dict[str, Any],
        seed: int,
        simulated: bool,
        code: str,
        digest: str,
        shift: float,
    ) -> dict[str, Any]:
        kind = stage["stage"]
        settings = {key: value for key, value in stage.items() if key not in ("stage", "inputs")}
        manifest: dict[str, Any] = {
            "kind": kind,
            "side": "client",
            "sensitivity": "private",
            "simulated": simulated,
            "settings": settings,
            "key_parts": {"code": f"{code}-{kind}", "settings": settings, "trainer": {}},
            "inputs": {},
            "metrics": [],
            "ledger": [],
            "uncovered": [],
            "data": [],
            "notes": {},
        }
        if kind == "clients":
            manifest["data"] = [{"name": "fake_images", "file": "fake.npz", "sha256": digest}]
        elif kind == "fusion_encoder":
            manifest["metrics"] = [
                metric("both", "test/auroc", 0.5 + shift, seed),
                metric("both", "test/f1", 0.25, seed),
                metric("both", "val/auroc", 0.875, seed),
                *(metric(f"client_{k}", "test/auroc", 0.5 + k / 10, seed) for k in range(3)),
            ]
            manifest["uncovered"] = ["FedAvg updates <of every client>"]
            manifest["_history"] = [
                {"epoch": r, "val/loss": 1 / (1 + r), "val/auroc": None if r == 1 else 0.5 + r / 10 + shift}
                | {f"client/{k}/train_loss": 0.5 + k - 0.1 * r for k in range(3)}
                for r in range(4)
            ]
        elif kind == "release":
            mechanism = {"mechanism": "none", "epsilon": "inf"} if stage["epsilon"] == float("inf") else {}
            manifest["ledger"] = [{**DP_LEDGER, "stage": name, "epsilon": stage["epsilon"], **mechanism}]
        elif kind == "tstr_mlp":
            base = {"real": 0.9}.get(stage["arm"], 0.7)
            manifest["metrics"] = [
                metric(stage["arm"], "test/auroc", base + shift + step, index)
                for index, step in enumerate((-0.05, 0.0, 0.05))
            ]
        elif kind == "audit":
            manifest["metrics"] = [
                metric("positive", "coverage", 0.25 + shift),
                metric("membership_private", "attack_auroc", 0.55 + shift),
                metric("membership_nonprivate", "attack_auroc", 0.65 + shift),
            ]
        return manifest


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """An empty log directory that fake runs are written to."""
    return Lab(tmp_path / "logs")


@dataclass(frozen=True)
class Visit:
    """What a browser made of a page."""

    dom: str
    console: list[str]
    log: str


class Browser:
    """Headless Chromium; every visit has a fresh profile."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder = program, folder

    def visit(self, page: Path, *, dark: bool = False, fragment: str = "") -> Visit:
        profile = self.folder / f"profile-{len(list(self.folder.iterdir()))}"
        profile.mkdir()
        command = [
            self.program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1200,900", "--virtual-time-budget=10000",
            "--enable-logging=stderr", "--v=0", "--dump-dom", f"{page.as_uri()}{fragment}",
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
        console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
        return Visit(result.stdout, console, result.stderr)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A real browser: $CHROMIUM, or the first of the usual names on the path."""
    names = [os.environ.get("CHROMIUM") or "", "chromium", "chromium-browser", "google-chrome"]
    program = next((found for name in names if name and (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium found (chromium, chromium-browser, google-chrome); set CHROMIUM=/path/to/it")
    return Browser(program, tmp_path_factory.mktemp("browser"))
