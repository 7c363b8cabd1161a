"""Tiny inputs for the stages, artifacts made by hand, and a way to run one stage without the pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import torch
from safetensors.torch import save_file
from tiny_data import SIDE
from torch import Tensor

from fedsynth.composition import compose_config, resolved
from fedsynth.data.paired import GLOBAL, PairedClients, PairedSplit, PairingStatistics
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.fingerprint import canonical
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.stage import Outcome, Sensitivity, StageContext, find_stage
from fedsynth.run_sources import planner_sources

DIM = 4
TRAINER = {"accelerator": "cpu", "devices": 1, "num_threads": 1, "deterministic": True}
OVERRIDES = (
    "model.image_channels=[4,8]", "model.signal_channels=[4,8]", "model.signal_kernels=[5,3]",
    "model.token_dim=8", "model.num_heads=2", f"model.latent_dim={DIM}", "federated.batch_size=8",
    "federated.local_epochs=2", "diffusion.num_timesteps=20", "diffusion.width=16", "diffusion.num_blocks=1",
    "diffusion.time_embedding_dim=8", "diffusion.num_sampling_steps=5", "diffusion.num_mixture_samples=64",
    "diffusion.num_synthetic_per_class=10", "diffusion.batch_size=16", "evaluation.num_bootstrap=20",
    "evaluation.num_attack_repetitions=2", "evaluation.classifier_seeds=[1,2]", "evaluation.nearest_k=2",
    f"stages.clients.image_size={SIDE}",
    "privacy.num_shards=2", "privacy.min_shard_size=2", "data.num_clients=2", "data.min_records_per_client=2",
    "stages.pretrain_xray.batch_size=16", "stages.tstr_real.batch_size=16",
    "stages.tstr_diffusion.batch_size=16",
)  # fmt: skip


@cache
def _planned() -> dict[str, Any]:
    config = resolved(compose_config(["experiment=feddp_pald", *OVERRIDES]))
    plan = plan_stages(config["stages"], TRAINER, planner_sources({}))
    return {planned.name: planned.settings for planned in plan}


def settings(stage: str, **changes: Any) -> Any:
    """The settings of a stage of ``experiment=feddp_pald``, made tiny."""
    return dataclasses.replace(_planned()[stage], **changes)


def artifact(
    folder: Path,
    files: Mapping[str, Mapping[str, Tensor]],
    *,
    stage_settings: Any = None,
    notes: Mapping[str, Any] | None = None,
) -> Artifact:
    """An artifact with these tensors, made by hand."""
    folder.mkdir(parents=True)
    for name, tensors in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        save_file({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, folder / name)
    return found(folder, stage_settings, Outcome(notes=dict(notes or {})))


def found(folder: Path, stage_settings: Any, outcome: Outcome, kind: str = "") -> Artifact:
    manifest = {
        "kind": kind,
        "simulated": False,
        "files": {str(path.relative_to(folder)): {} for path in folder.rglob("*") if path.is_file()},
        "settings": canonical(stage_settings) if stage_settings is not None else {},
        "notes": outcome.notes,
        "metrics": [vars(metric) for metric in outcome.metrics],
        "ledger": outcome.ledger,
    }
    return Artifact(folder.parent.name, "0" * 64, folder, Sensitivity.PRIVATE, manifest)


@contextmanager
def no_loggers(part: str) -> Iterator[list[Any]]:
    yield []


def stage_context(folder: Path, max_epochs: int = 1, **changes: Any) -> StageContext:
    """A context below ``folder``; ``trainer`` entries are laid over the defaults."""
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)
    trainer = {**TRAINER, "max_epochs": max_epochs, **changes.pop("trainer", {})}
    return StageContext(
        **{
            "name": folder.name, "key": "0" * 64, "output": output, "scratch": folder, "trainer": trainer,
            "sources": {}, "loggers": no_loggers, **changes,
        }
    )  # fmt: skip


def run_stage(
    kind: str, stage_settings: Any, inputs: Mapping[str, Artifact], context: StageContext
) -> Artifact:
    """Run a stage and take what it wrote for an artifact."""
    outcome = find_stage(kind, kind).load()(stage_settings, inputs, context)
    return found(context.output, stage_settings, outcome, kind)


def values(made: Artifact) -> dict[tuple[str, str, int], float]:
    """``{(arm, metric, seed): value}``; no metric twice."""
    rows = {(row["arm"], row["metric"], row["seed"]): row["value"] for row in made.manifest["metrics"]}
    assert len(rows) == len(made.manifest["metrics"])
    return rows


def stock_trainer(folder: Path, **arguments: Any) -> L.Trainer:
    """A Trainer as anyone would make it, but quiet."""
    return L.Trainer(
        **{
            "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False,
            "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
            "default_root_dir": folder, "use_distributed_sampler": False, **arguments,
        }
    )  # fmt: skip


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Same names, same bits."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def tiny_split(num: int, stream: torch.Generator, client: Tensor | None = None) -> PairedSplit:
    """Pairs whose image and beat both shift with the class; classes alternate."""
    label = torch.arange(num) % 2
    shift = label.float().view(-1, 1, 1)
    return PairedSplit(
        image=torch.randn(num, 1, 8, 8, generator=stream) + shift[..., None],
        ecg=torch.randn(num, 1, 24, generator=stream) + shift,
        label=label,
        client=torch.full((num,), GLOBAL) if client is None else client,
        image_id=torch.arange(num),
        beat_id=torch.arange(num),
        record_id=torch.full((num,), 100),
    )


def tiny_pairs() -> PairedClients:
    """Two clients with 18 and 12 pairs; 12 validation and 14 test pairs."""
    stream = torch.Generator().manual_seed(0)
    client = torch.tensor([0] * 18 + [1] * 12)
    one = torch.tensor(1.0, dtype=torch.float64)
    return PairedClients(
        tiny_split(30, stream, client),
        tiny_split(12, stream),
        tiny_split(14, stream),
        PairingStatistics(0 * one, one, 0 * one, one),
        {},
    )


def tiny_latents(num_per_cell: int = 12) -> dict[str, Tensor]:
    """Latents of two clients and two classes, as ``encode`` stores them; classes lie apart."""
    stream = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    for name, clients in (("train", (0, 1)), ("val", (GLOBAL,)), ("test", (GLOBAL,))):
        cells = torch.cartesian_prod(torch.tensor(clients), torch.arange(2)).repeat_interleave(
            num_per_cell, 0
        )
        client, label = cells.unbind(1)
        tensors[f"{name}.latent"] = torch.randn(len(cells), DIM, generator=stream) + 4 * label.unsqueeze(1)
        tensors[f"{name}.label"], tensors[f"{name}.client"] = label.clone(), client.clone()
        tensors[f"{name}.record_id"] = torch.arange(len(cells))
    return tensors
