"""Every number of the audit of one released image set."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedsynth.errors import ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.stages.audit_images.agreement import torchmetrics_fid
from fedsynth.stages.audit_images.dp_control import dp_space, private_delta
from fedsynth.stages.audit_images.fidelity import fidelity
from fedsynth.stages.audit_images.independence import uses
from fedsynth.stages.audit_images.records import AuditRecords, gather
from fedsynth.stages.audit_images.reidentification import SPACE, embed, reidentification
from fedsynth.stages.audit_images.singling_out import singling_out
from fedsynth.stages.audit_images.spaces import Space, open_spaces
from fedsynth.stages.audit_images.spec import AuditImagesSettings
from fedsynth.stages.audit_images.table import Row
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.pseudo_features.spec import CLASSIFIER
from fedsynth.stages.reidentifier.trained import check_strangers

log = logging.getLogger(__name__)
SCOPE = (
    "Balls in a few feature spaces and one re-identification network were tried. A test that finds nothing says nothing "
    "of other predicates, spaces or networks, and is no guarantee; one that finds something shows that the release "
    "points at single training images."
)


def run(settings: AuditImagesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Fidelity and diversity in each space, then re-identification and the singling-out tests T1 to T5."""
    records = gather(settings, inputs, context)
    _check_sizes(records, settings, context)
    if "reidentifier" in inputs:
        strangers = check_strangers(inputs["reidentifier"], inputs["images"], context.name)
        records.notes["held_out_unknown_to_reidentifier"] = strangers
    spaces = open_spaces(records, settings, inputs, context)
    metrics: list[Metric] = []
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    notes: dict[str, Any] = {"records": records.notes, "scope": SCOPE, "spaces": {}}
    for space in spaces:
        log.info("stages.%s: fidelity in the space %s.", context.name, space.name)
        found, described = fidelity(space, settings)
        metrics += found
        notes["spaces"][space.name] = {
            "dim": space.train.shape[1],
            "is_primary": space.is_primary,
            **described,
        }
    notes["encoder"] = {
        name: inputs["features"].manifest["notes"][name] for name in ("encoder", "weights_sha256")
    }
    if spaces[0].name == "inception" and settings.torchmetrics_fid:
        metrics += _agreement(settings, records, spaces[0], inputs["features"], context)
    tested = list(spaces)
    if "reidentifier" in inputs:
        embedded = embed(records, settings, inputs, context)
        found_rows, notes["threshold"], largest = reidentification(embedded, records, settings)
        rows += found_rows
        tensors |= largest
        tested.append(embedded.space)
    if settings.dp_epsilon is not None:
        tested.append(dp_space(records, settings.dp_epsilon, settings))
        notes["dp_control"] = {
            "epsilon": settings.dp_epsilon, "delta": private_delta(len(records.train_rows)),
            "unit": "one training image", "not_covered": "patients of several images; validation images",
        }  # fmt: skip
    for space in tested:
        log.info("stages.%s: singling out in the space %s.", context.name, space.name)
        found_rows, curves = singling_out(records, space, settings)
        rows += found_rows
        tensors |= curves
    made_by = {CLASSIFIER: "classifier", SPACE: "reidentifier", spaces[0].name: "features"}
    notes["uses"] = uses(inputs, {space.name: made_by.get(space.name) for space in tested})
    undefined = {name for name in tensors if ".residual" in name}
    context.save("isolation.safetensors", tensors, may_be_infinite=undefined)
    stored = [row.as_metric(settings.arm, settings.seed) for row in rows]
    metrics += [metric for metric in stored if metric is not None]
    notes["table"] = [
        row.as_note() for row in sorted(rows, key=lambda row: (row.test, row.space != spaces[0].name))
    ]
    return Outcome(metrics=metrics, notes=notes)


def _agreement(
    settings: AuditImagesSettings,
    records: AuditRecords,
    space: Space,
    features: Artifact,
    context: StageContext,
) -> list[Metric]:
    found = torchmetrics_fid(records, space, features, settings.batch_size, computing_device(context))
    return [Metric(settings.arm, name, value, settings.seed) for name, value in found.items()]


def _check_sizes(records: AuditRecords, settings: AuditImagesSettings, context: StageContext) -> None:
    """Too few images for the neighbors asked for, or for the level of the comparison, before anything is encoded."""
    path = f"stages.{context.name}"
    sizes = {
        "released": len(records.released),
        "test": len(records.real["test"]),
        "val": len(records.real["val"]),
    }
    name, fewest = min(sizes.items(), key=lambda item: item[1])
    if settings.nearest_k >= fewest:
        raise ConfigError(
            f"{path}.nearest_k must be below {fewest}, the number of {name} images, got {settings.nearest_k}. "
            "Lower evaluation.nearest_k; the usual value is 5.",
            key=f"{path}.nearest_k",
        )
    held_out = len(records.negative) + len(records.control)
    if settings.similarity_level * (held_out + 1) < 1 - 1e-9:
        raise ConfigError(
            f"{path}.similarity_level={settings.similarity_level:g} needs more than the {held_out} held-out images "
            "there are. Use a larger level, or held_out=val_test.",
            key=f"{path}.similarity_level",
        )
