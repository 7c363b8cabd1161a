"""What one process, or each of two, does in a tiny training of the denoiser; run as a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from tiny_latent_images import TINY_NETWORK, codec_artifact, images_artifact, stage_settings
from tiny_stages import run_stage, stage_context

from fedsynth.pipeline.ranks import Ranks
from fedsynth.stages.diadm.module import DiADM

WORDS = (*TINY_NETWORK, "stages.diadm.condition=class", "image_network.num_validation_images=7")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = Ranks.from_environment()
    ranks.connect()
    rows: list[list[float]] = []
    step = DiADM.training_step

    def recorded(self: DiADM, batch: dict[str, torch.Tensor], batch_index: int) -> Any:
        rows.append(batch["latent"][:, 0, 0, 0].tolist())
        return step(self, batch, batch_index)

    DiADM.training_step = recorded  # type: ignore[method-assign]
    images = images_artifact(folder / f"inputs {ranks.rank}")
    inputs = {"images": images, "codec": codec_artifact(folder / f"inputs {ranks.rank}", images)}
    place: dict[str, Any] = {"rank": ranks.rank, "world_size": ranks.world_size}
    context = stage_context(folder / "diadm", trainer={"strategy": "ddp"}, **place)
    made = run_stage("diadm", stage_settings("diadm", *WORDS), inputs, context)
    ranks.broadcast(None)  # both are done with the files
    weights = made.load("denoiser.safetensors") if ranks.is_first else {}
    finite = all(bool(tensor.isfinite().all()) for tensor in weights.values())
    history = json.loads((folder / "diadm" / "output" / "history.json").read_text())
    ranks.disconnect()
    print(
        json.dumps(
            {"rows": rows, "history": history, "finite": finite, "files": sorted(made.manifest["files"])}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
