"""Read both data sets, split, partition and pair them; see :mod:`fedsynth.data`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedsynth.data.medmnist import read_medmnist
from fedsynth.data.mitbih import read_beats
from fedsynth.data.pairing import build_pairs
from fedsynth.errors import FedSynthError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.clients.spec import ClientsSettings


def run(settings: ClientsSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Pairs of all clients and splits as tensors, and the data report."""
    images = read_medmnist(context.sources["pneumoniamnist"].path, settings.image_size)
    beats = read_beats(context.sources["mitdb"].path, label_rule=settings.label_rule)  # type: ignore[arg-type]
    try:
        pairs = build_pairs(
            images,
            beats,
            num_clients=settings.num_clients,
            dirichlet_alpha=settings.dirichlet_alpha,
            min_records=settings.min_records_per_client,
            fractions=settings.split_fractions,
            split_seed=settings.split_seed,
            partition_seed=settings.partition_seed,
            pairing_seed=settings.partition_seed,
        )
    except FedSynthError as error:
        keys = ("num_clients", "min_records_per_client", "label_rule", "split_fractions", "split_seed")
        given = ", ".join(f"{key}={getattr(settings, key)}" for key in keys)
        raise type(error)(f"{error} (From stages.{context.name}, where {given}.)") from error
    context.save("pairs.safetensors", pairs.to_tensors())
    (context.output / "data_report.json").write_text(json.dumps(pairs.report, indent=1) + "\n")
    return Outcome(notes={"report": pairs.report})
