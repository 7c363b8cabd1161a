"""What each of two processes, or one, finds out about the trained stages; run as a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "stages"))

import lightning as L
import torch
from safetensors.torch import load_file
from tiny_stages import artifact, run_stage, settings, stage_context, tiny_latents

from fedsynth.data.batches import tensor_loader
from fedsynth.pipeline.ranks import Ranks
from fedsynth.stages.pretrain_xray.module import XrayPretraining
from fedsynth.stages.training import placement


def validated(ranks: Ranks, folder: Path) -> dict[str, float]:
    """Validation metrics of a fixed encoder on 31 images, shared unevenly by two processes."""
    torch.manual_seed(0)
    module = XrayPretraining(
        positive_weight=[1.0, 2.0, 5.0], backbone="conv", image_channels=[4, 8], token_dim=8,
        normalization="batch", learning_rate=1e-3, weight_decay=0.0,
    )  # fmt: skip
    stream = torch.Generator().manual_seed(1)
    data = {
        "image": torch.randn(31, 1, 8, 8, generator=stream),
        "label": torch.randint(2, (31, 3), generator=stream),
    }
    loader = tensor_loader(
        data, batch_size=4, shuffle=False, seed=0, rank=ranks.rank, world_size=ranks.world_size, pad=False
    )
    context = stage_context(folder, rank=ranks.rank, world_size=ranks.world_size)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        use_distributed_sampler=False, **placement(context, {"strategy": "ddp"}),
    )  # fmt: skip
    (found,) = trainer.validate(module, loader, verbose=False)
    return {name: float(value) for name, value in found.items()}


def trained(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Steps and losses of the stages whose batches are shared; 35 samples, so that nothing divides evenly."""
    latents = tiny_latents()
    mixture = {"latent": latents["train.latent"][:35], "label": latents["train.label"][:35]}
    inputs = folder / f"inputs {ranks.rank}"
    samples = artifact(inputs / "samples" / "output", {"samples.safetensors": mixture})
    real = artifact(inputs / "encode" / "output", {"latents.safetensors": latents})
    found = {}
    for kind, name, given in (
        ("latent_ddpm", "latent_ddpm", {"mixture": samples}),
        ("tstr_mlp", "tstr_diffusion", {"train": samples, "latents": real}),
    ):
        context = stage_context(
            folder / kind, 20, trainer={"strategy": "ddp"}, rank=ranks.rank, world_size=ranks.world_size
        )
        made = run_stage(kind, settings(name), given, context)
        ranks.broadcast(None)  # both are done with the checkpoints
        checkpoint = next((folder / kind / "checkpoints").glob("*.ckpt"))
        state = torch.load(checkpoint, weights_only=True)
        found[kind] = {"steps": state["global_step"], "files": sorted(made.manifest["files"])}
    history = json.loads((folder / "latent_ddpm" / "output" / "history.json").read_text())
    weights = load_file(folder / "latent_ddpm" / "output" / "denoiser.safetensors")
    found["losses"] = [row["train/loss"] for row in history]
    found["finite"] = all(bool(tensor.isfinite().all()) for tensor in weights.values())
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks.from_environment()
    ranks.connect()
    result = {"validated": validated(ranks, folder / "validated"), "trained": trained(ranks, folder)}
    ranks.disconnect()
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
