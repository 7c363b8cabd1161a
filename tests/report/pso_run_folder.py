"""Fake runs of PSO-secure sharing: every stage the report reads, files written by the stages' own functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import save_file

from fedsynth.attacks.residual_risk import wilson_proportion
from fedsynth.attacks.singling_out import isolation_curve, radius_grid
from fedsynth.stages.audit_images.singling_out import curve_tensors
from fedsynth.stages.audit_images.table import Row, proportion_row
from fedsynth.stages.cross_validation.ranks import rank_summary
from run_folders import metric, write_run

PAPER_FILE = Path(__file__).parents[2] / "configs" / "paper" / "pso_secure.yaml"
CLASSES = ("normal", "bacteria", "virus")
SIZE = 12
#: AUROC of the classifier of each arm.
SCORES = {
    "real": 0.965, "vae_reconstruction": 0.96, "edm2": 0.91, "edm2_ag": 0.925, "diadm": 0.94,
    "diadm_features": 0.955, "diadm_features_filtered": 0.945,
}  # fmt: skip
FILTERED = "diadm_features_filtered"
GENERATORS = tuple(SCORES)[2:]


def paper_config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(PAPER_FILE.read_text())
    return loaded


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Gray images [n, 1, h, w]; the first pixel numbers them."""
    images = np.random.default_rng(seed).integers(0, 255, (count, 1, SIZE, SIZE), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(count) % 256
    return images


class ImageFolder:
    """One fake run while it is written: artifacts on disk, stages and config for ``run.json``."""

    def __init__(self, log_dir: Path, seed: int, *, simulated: bool) -> None:
        self.log_dir, self.seed, self.simulated = log_dir, seed, simulated
        self.config: dict[str, Any] = {}
        self.entries: dict[str, Any] = {}

    def add(
        self,
        name: str,
        kind: str,
        inputs: Mapping[str, str] | None = None,
        *,
        metrics: Sequence[dict[str, Any]] = (),
        notes: dict[str, Any] | None = None,
        files: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """A stage and its artifact; a file is tensors or, by its name, JSON."""
        path = Path("artifacts") / name / str(self.seed)
        folder = self.log_dir / path
        folder.mkdir(parents=True)
        key = f"{self.seed}-{name}".encode().hex().ljust(64, "0")[:64]
        manifest = {
            "kind": kind, "key": key, "simulated": self.simulated, "settings": settings, "metrics": list(metrics),
            "notes": notes or {},
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(manifest))
        for file, content in (files or {}).items():
            (folder / file).parent.mkdir(exist_ok=True)
            if file.endswith(".json"):
                (folder / file).write_text(json.dumps(content))
            else:
                save_file({key: np.ascontiguousarray(value) for key, value in content.items()}, folder / file)
        self.config[name] = {"stage": kind, "inputs": dict(inputs or {}), **settings}
        self.entries[name] = {
            "kind": kind, "key": key, "path": str(path), "status": "computed", "seconds": 1.0,
            "sensitivity": "private", "side": "auditor",
        }  # fmt: skip

    def add_images(self, name: str = "images", site: int | None = None) -> None:
        files = {"images.safetensors": {"train.image": pictures(30), "train.label": np.arange(30) % 3}}
        self.add(
            name,
            "xray_images",
            notes={"classes": CLASSES},
            files=files,
            site=site,
            dataset="kermany",
            image_size=28,
        )

    def add_networks(self) -> None:
        """Encoder, codec and the denoisers with their candidates."""
        self.add("features", "pseudo_features", {"images": "images"}, encoder="efficientnet_lite0")
        self.add("codec", "image_codec", {"images": "images"})
        history = [{"epoch": e, "train/loss": 1 / (1 + e), "val/loss": 1.2 / (1 + e)} for e in range(5)]
        for arm in GENERATORS[:4]:
            condition = {"edm2": "none", "edm2_ag": "none", "diadm": "feature"}.get(arm, "feature")
            inputs = {"images": "images", "codec": "codec"} | (
                {"features": "features"} if condition == "feature" else {}
            )
            self.add(f"{arm}_net", "diadm", inputs, condition=condition, files={"history.json": history})
            guidance = "earlier" if arm == "edm2_ag" else "none"
            self.add(
                f"{arm}_candidates",
                "synthesize_images",
                {**inputs, "denoiser": f"{arm}_net"},
                guidance=guidance,
            )

    def add_selection(
        self, arm: str, images: str = "images", candidates: str | None = None, *, fault: str | None = None
    ) -> None:
        """Unfiltered unless the arm says so; then normals are flagged far more often."""
        is_filtered = arm.endswith("filtered")
        base = arm.removesuffix("_filtered")
        inputs = {
            "images": images,
            "candidates": candidates or f"{base}_candidates",
            "denoiser": f"{base}_net",
        }
        inputs |= {"reidentifier": "reidentifier"} if is_filtered else {}
        shares = {"normal": (0.75, 0.5), "bacteria": (0.25, 0.0), "virus": (0.125, 0.0)}
        table = {
            name: {
                "sources": 10, "flagged_share": flagged if is_filtered else 0.0,
                "all_flagged_share": every if is_filtered else 0.0, "all_flagged_first_round": int(10 * every),
                "accepted_by_round": [5, 2] if name == "normal" and is_filtered else [10, 0],
                "dropped": 3 if name == "normal" and is_filtered else 0, "refilled": 2 if is_filtered else 0,
            }
            for name, (flagged, every) in shares.items()
        }  # fmt: skip
        dropped = 3.0 if is_filtered else 0.0
        rows = [
            metric(arm, "kept", 30 - dropped, self.seed), metric(arm, "dropped", dropped, self.seed),
            metric(arm, "refilled", 0.0, self.seed), metric(arm, "rounds", 2.0, self.seed),
        ]  # fmt: skip
        threshold = {"compared_with": "own source", "class": "all", "rule": "fpr", "value": 0.1, "threshold": 0.62,
                     "fpr": 0.098, "fnr": 0.31}  # fmt: skip
        # Of normals nearly every pair of others is flagged, though the rate over all classes is that asked for.
        rates = [
            {"pairs": pairs, "class": name, "threshold": 0.62, "fpr": fpr + shift, "fnr": 0.3, "two_persons": 80,
             "one_person": 20 if name == "all" else 5}
            for pairs, shift in (("validation", 0.0), ("test", 0.01))
            for name, fpr in (("all", 0.098), ("normal", 0.34), ("virus", 0.11))
        ]  # fmt: skip
        private = {"per_class": table, "thresholds": [threshold] if is_filtered else [], "weights": [1.2, 1.0],
                   "error_rates": rates if is_filtered else [], "filter_fault": fault}  # fmt: skip
        notes = {"classes": CLASSES, "weights_allowed": [1.2, 1.0, 0.7], "private": private}
        made = {"train.image": pictures(27, 1), "train.label": np.arange(27) % 3}
        files = {
            "images.safetensors": made,
            "private/images.safetensors": {"train.source": np.arange(27)},
            "private/verdicts.safetensors": verdicts(is_filtered=is_filtered),
        }
        self.add(arm, "select_images", inputs, metrics=rows, notes=notes, files=files, arm=arm,
                 filter="mask" if is_filtered else "none")  # fmt: skip

    def add_classifier(
        self, arm: str, train: str, images: str = "images", name: str = "", score: float | None = None
    ) -> None:
        value = SCORES[arm] if score is None else score
        rows = [
            metric(arm, "test/auroc", value + shift, seed, (value - 0.02, value + 0.02))
            for seed, shift in ((0, -0.002), (1, 0.0), (2, 0.002))
        ]
        history = [{"epoch": e, "train/loss": 0.5 / (1 + e), "val/loss": 0.6 / (1 + e)} for e in range(5)]
        inputs = {"train": train, "images": images}
        self.add(
            name or f"tstr_{arm}",
            "tstr_densenet",
            inputs,
            metrics=rows,
            arm=arm,
            files={"history.json": history},
        )

    def add_site_test(self, arm: str, classifier: str, images: str, name: str, score: float) -> None:
        """What `add_classifier` says of its own site, of another."""
        rows = [
            metric(arm, "test/auroc", score + shift, seed, (score - 0.02, score + 0.02))
            for seed, shift in ((0, -0.002), (1, 0.0), (2, 0.002))
        ]
        self.add(name, "site_test", {"classifier": classifier, "images": images}, metrics=rows, arm=arm)

    def add_gap(self) -> None:
        rows = []
        for arm in tuple(SCORES)[1:]:
            gap = SCORES["real"] - SCORES[arm]
            rows += [metric(arm, "gap", gap, 0, (gap - 0.01, gap + 0.01)), metric(arm, "p_holm", 0.04, 0)]
        inputs = {"real": "tstr_real"} | {f"synthetic_{arm}": f"tstr_{arm}" for arm in tuple(SCORES)[1:]}
        self.add("auroc_gap", "auroc_gap", inputs, metrics=rows)

    def add_reidentifier(self, *, cannot_tell: bool = False) -> None:
        rng = np.random.default_rng(3)
        is_same = np.arange(200) % 5 == 0
        probability = np.clip(0.35 * is_same + rng.random(200) * 0.6, 0, 1).astype(np.float32)
        points = [
            {"rule": "fpr", "value": 0.1, "threshold": 0.62, "configured": True, "fnr": [0.3, 0.2, 0.4],
             "fpr": [0.1, 0.08, 0.12], "test_fnr": [0.31, 0.25, 0.38], "test_fpr": [0.098, 0.08, 0.12]},
            {"rule": "youden", "value": None, "threshold": 0.5, "configured": False, "fnr": [0.2, 0.1, 0.3],
             "fpr": [0.2, 0.1, 0.3], "test_fnr": [0.2, 0.1, 0.3], "test_fpr": [0.25, 0.2, 0.3]},
        ]  # fmt: skip
        rows = [
            metric("reidentifier", "test/auroc", 0.93, 0, (0.91, 0.95)),
            metric("reidentifier", "test/ece", 0.041, 0),
        ]
        pairs = {"is_same": is_same.astype(np.uint8), "probability": probability}
        self.add("reidentifier", "reidentifier", {"images": "images"}, metrics=rows,
                 notes={"operating_points": points, "cannot_tell": cannot_tell},
                 files={"test_pairs.safetensors": pairs})  # fmt: skip

    def add_audit(self, arm: str, released: str, *, is_saturated: bool = False) -> None:
        rows = []
        for suffix, scale in (("", 1.0), ("/pixel_pca", 40.0)):
            values = {
                "frechet/train": 0.25 * scale, "frechet/test": 0.5 * scale, "frechet/train_equal": 0.75 * scale,
                "frechet/floor": 0.125 * scale, "irs/alpha": 0.4, "irs/inf": 0.6, "irs/inf_a": 1.5, "irs/inf_test": 0.4,
                "irs/saturated_share": float(is_saturated and not suffix), "prdc/precision": 0.8, "prdc/recall": 0.7,
                "prdc/density": 0.9, "prdc/coverage": 0.85,
            }  # fmt: skip
            rows += [metric(arm, name + suffix, value, 0) for name, value in values.items()]
        inputs = {"released": released, "images": "images", "features": "features"}
        spaces = {"efficientnet_lite0": {"is_primary": True}, "pixel_pca": {"is_primary": False}}
        table = [row.as_note() for row in audit_rows(is_leak=arm == "vae_reconstruction")]
        self.add(f"audit_{arm}", "audit_images", inputs, metrics=rows, notes={"table": table, "spaces": spaces},
                 files={"isolation.safetensors": isolation()}, arm=arm)  # fmt: skip

    def add_cross_validation(self, num_folds: int = 10, arms: Sequence[str] = tuple(SCORES)) -> None:
        rng = np.random.default_rng(0)
        fold = rng.normal(0, 0.003, num_folds)
        scores = {arm: (SCORES[arm] + fold + rng.normal(0, 0.002, num_folds)).tolist() for arm in arms}
        ranks = rank_summary(scores, 0.05)
        self.add("cross_validation", "cross_validation", {"images": "images"},
                 files={"folds.json": {"scores": scores, "ranks": ranks}})  # fmt: skip


def verdicts(*, is_filtered: bool) -> dict[str, np.ndarray]:
    """Four sources a class with eight candidates; of the first source all are flagged."""
    flagged = np.zeros((12, 8), dtype=np.uint8)
    chosen = np.zeros((12, 8), dtype=np.uint8)
    if is_filtered:
        flagged[:, ::2] = 1
        flagged[0] = 1
    chosen[1:, 3] = 1
    held = {
        "source_image": pictures(12), "label": np.repeat([0, 1, 2], 4),
        "image": pictures(96, 2).reshape(12, 8, 1, SIZE, SIZE),
        "flagged": flagged, "chosen": chosen, "kept": (np.arange(12) != 11).astype(np.uint8),
    }  # fmt: skip
    if is_filtered:
        held["probability"] = np.where(flagged == 1, 0.9, 0.1).astype(np.float32)
    return held


def audit_rows(*, is_leak: bool) -> list[Row]:
    """A few rows of the audit's table: of a leak nearly every image points at its source."""
    space = "efficientnet_lite0"
    hits = wilson_proportion(95.0 if is_leak else 2.0, 100)
    control = wilson_proportion(30.0, 100)
    return [
        proportion_row(hits, test="T1", space=space, quantity="self-retrieval rate of released images", chance=0.01,
                       note="median rank 3", metric="self_retrieval/rate"),
        proportion_row(hits, test="T2", space=space, quantity="balls around released images", chance=0.37,
                       note="chance is that of the largest weights", metric="isolation/isolating"),
        Row("T3", space, "residual risk of released images", 0.5 if is_leak else 0.0, 0.4 if is_leak else -0.1, 0.6, 0.3,
            "", "residual_risk/estimate"),
        Row("T3", space, "residual risk of training images themselves", 1.0, 0.9, 1.0, 0.3, "", "c"),
        proportion_row(control, test="T4", space=space, quantity="balls around real images of other people", chance=0.37,
                       note="", metric="control"),
    ]  # fmt: skip


@cache
def isolation() -> dict[str, np.ndarray]:
    """Curves as the audit stores them: training images themselves isolate, others do not."""
    stream = torch.Generator().manual_seed(0)
    train, control, other = (torch.randn(40, 3, generator=stream, dtype=torch.float64) for _ in range(3))
    sets = {"released": other + 0.3, "positive": train, "negative": other}
    radius = radius_grid(control, 6)
    found = {
        f"efficientnet_lite0/{name}.{quantity}": values.numpy()
        for name, points in sets.items()
        for quantity, values in curve_tensors(isolation_curve(points, train, control, radius)).items()
    }
    return found | {"reidentifier/released.largest_similarity": np.linspace(0, 1, 40)}


def write_image_run(
    log_dir: Path,
    seed: int = 42,
    *,
    simulated: bool = False,
    paper: dict[str, Any] | None = None,
    stages: Sequence[str] = ("classifiers", "audits", "reidentifier", "cross_validation"),
    num_folds: int = 10,
) -> Path:
    """One run with the generators of Table 1, the best one also filtered.

    Args:
        log_dir: Where artifacts and runs are written.
        seed: Of the run.
        simulated: Whether the data is said to be simulated.
        paper: Instead of the published values.
        stages: Which parts are there besides images and selections.
        num_folds: Of the cross-validation.
    """
    run = ImageFolder(log_dir, seed, simulated=simulated)
    run.add_images()
    run.add_networks()
    if "reidentifier" in stages:
        run.add_reidentifier()
    made = {"train.image": pictures(30, 4), "train.label": np.arange(30) % 3}
    run.add("vae_reconstruction", "vae_reconstruction", {"images": "images", "codec": "codec"},
            files={"images.safetensors": made}, notes={"classes": CLASSES})  # fmt: skip
    for arm in GENERATORS:
        run.add_selection(arm)
    if "classifiers" in stages:
        for arm in SCORES:
            run.add_classifier(arm, "images" if arm == "real" else arm)
        run.add_gap()
    if "audits" in stages:
        for arm in tuple(SCORES)[1:]:
            run.add_audit(arm, arm, is_saturated=arm == "diadm_features")
    if "cross_validation" in stages:
        run.add_cross_validation(num_folds)
    return finish_image_run(run, paper_config() if paper is None else paper)


def write_sites_run(log_dir: Path, *, num_sites: int = 3, codec: str = "unshuffle") -> Path:
    """Real, reconstructed and filtered sets of every site, and their union, tested on every site.

    On its own site a classifier is tested where it is trained, on others by stages for that; the union is trained with
    images of all sites.
    """
    run = ImageFolder(log_dir, 42, simulated=True)
    run.add_images("images_all")
    names = [f"images_{letter}" for letter in "abc"[:num_sites]]
    for index, name in enumerate(names):
        run.add_images(name, site=index)
        run.add(f"codec_{index}", "image_codec", {"images": name}, codec={"name": codec})
        made = {"images.safetensors": {"train.image": pictures(30, 4), "train.label": np.arange(30) % 3}}
        inputs = {"images": name, "codec": f"codec_{index}"}
        run.add(f"copies_{index}", "vae_reconstruction", inputs, files=made, notes={"classes": CLASSES})
        run.add(f"net_{index}", "diadm", {"images": name}, condition="class")
        run.add(f"candidates_{index}", "synthesize_images", {"images": name, "denoiser": f"net_{index}"})
        inputs = {"images": name, "candidates": f"candidates_{index}", "reidentifier": "reidentifier"}
        run.add(f"released_{index}", "select_images", inputs, filter="mask", arm=f"{FILTERED}_site_{index}")
    roles = ("first", "second", "third")[:num_sites]
    run.add("shared", "data_sharing", {role: f"released_{index}" for index, role in enumerate(roles)})
    run.add_classifier("data_sharing", "shared", "images_all", "tstr_shared", 0.5)
    sets = {"real": ("images", 0.9), "vae_reconstruction": ("copies", 0.9), FILTERED: ("released", 0.88)}
    for base, (prefix, own) in sets.items():
        for index, name in enumerate(names):
            arm, classifier = f"{base}_site_{index}", f"tstr_{prefix}_{index}"
            trained_on = name if base == "real" else f"{prefix}_{index}"
            run.add_classifier(arm, trained_on, name, classifier, own)
            for at, other in enumerate(names):
                if at != index:
                    run.add_site_test(arm, classifier, other, f"test_{prefix}_{index}_on_{at}", own - 0.1)
    for at, name in enumerate(names):
        run.add_site_test("data_sharing", "tstr_shared", name, f"test_shared_on_{at}", 0.87)
    return finish_image_run(run, paper_config())


def finish_image_run(run: ImageFolder, paper: dict[str, Any]) -> Path:
    return write_run(
        run.log_dir,
        experiment="pso_secure",
        run_id=f"run-{run.seed}",
        seed=run.seed,
        stages=run.entries,
        config={"seed": run.seed, "data": {"dataset": "kermany"}, "stages": run.config, "paper": paper},
        simulated=run.simulated,
        finished=True,
    )
