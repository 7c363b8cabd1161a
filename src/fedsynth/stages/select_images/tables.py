"""What the selection did to each class, as numbers and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.pipeline.stage import Metric
from fedsynth.selection.ranking import NONE
from fedsynth.stages.select_images.emission import Emission
from fedsynth.stages.select_images.rounds import Round
from fedsynth.stages.select_images.spec import SelectImagesSettings
from fedsynth.stages.select_images.thresholds import Thresholds

Table = dict[str, dict[str, Any]]


def class_table(
    rounds: Sequence[Round], emitted: Emission, group: Int64[Tensor, " n"], names: Sequence[str]
) -> Table:
    """For each class (or combination of labels) what became of its sources.

    Without identity network nobody judged, and shares of flagged candidates are None.
    ``flagged_share`` is over all candidates of the first round, ``all_flagged_share`` over its sources;
    ``accepted_by_round`` counts sources with an allowed candidate first found in that round, ``dropped`` those with
    none (or left out to keep the mix), ``refilled`` further images of other sources, in their place or because
    several images a source are wanted.
    """
    first = rounds[0]
    place = {row: number for number, row in enumerate(first.rows.tolist())}
    emitted_group = group[torch.tensor([place[row] for row in emitted.source.tolist()])]
    is_judged = "probability" in first.scores
    table = {}
    for number, name in enumerate(names):
        own = group == number
        all_flagged = first.flagged[own].all(1)
        table[name] = {
            "sources": int(own.sum()),
            "flagged_share": float(first.flagged[own].double().mean()) if is_judged else None,
            "all_flagged_first_round": int(all_flagged.sum()) if is_judged else None,
            "all_flagged_share": float(all_flagged.double().mean()) if is_judged else None,
            "accepted_by_round": [int((emitted.accepted_in[own] == one).sum()) for one in range(len(rounds))],
            "flagged_share_by_round": [
                float(one.flagged[inside].double().mean()) if is_judged and bool(inside.any()) else None
                for one in rounds
                for inside in [own[torch.tensor([place[row] for row in one.rows.tolist()])]]
            ],
            "dropped": int((own & ~emitted.kept).sum()),
            "refilled": int((emitted.is_refill & (emitted_group == number)).sum()),
            "emitted": int((emitted_group == number).sum()),
            "missing": int(emitted.missing[number]),
        }
    return table


def selection_metrics(
    settings: SelectImagesSettings, rounds: Sequence[Round], emitted: Emission, table: Table
) -> list[Metric]:
    """Counts over all classes, and of each class the shares of flagged candidates and of all-flagged sources.

    A set that no identity network judged has no such shares.
    """
    values: dict[str, float] = {
        "kept": float(len(emitted)),
        "dropped": float(sum(row["dropped"] for row in table.values())),
        "refilled": float(sum(row["refilled"] for row in table.values())),
        "rounds": float(len(rounds)),
    }
    for name, row in table.items():
        if row["flagged_share"] is None:
            continue
        values[f"flagged/{name}"] = row["flagged_share"]
        values[f"all_flagged/{name}"] = row["all_flagged_share"]
    return [Metric(settings.arm, metric, value, settings.seed) for metric, value in values.items()]


def nothing_passes(
    settings: SelectImagesSettings,
    rounds: Sequence[Round],
    thresholds: Thresholds | None,
    group: Int64[Tensor, " n"],
    names: Sequence[str],
) -> str:
    """The message for a filter that leaves nothing: counts per class, thresholds, and what to change."""
    counts = ", ".join(
        f"{name} {int((group == number).sum())} of {int((group == number).sum())}"
        for number, name in enumerate(names)
    )
    limits = (
        [] if thresholds is None else [f"{row['threshold']:.4g} ({row['class']})" for row in thresholds.notes]
    )
    looser = {
        "fixed": "raise selection.threshold_value",
        "fpr": "lower selection.threshold_value, the false-positive rate",
        "fnr": "raise selection.threshold_value, the false-negative rate",
        "youden": "choose selection.threshold_rule=fpr with a small selection.threshold_value",
    }[settings.threshold_rule]
    if settings.scope == "train":
        looser += ", lower selection.train_share or say selection.scope=source"
    weights = ", ".join(f"{one.weight:g}" for one in rounds)
    return (
        f"Every candidate of every source image is flagged ({counts}), in {len(rounds)} round(s) with guidance weights "
        f"{weights}, by thresholds {', '.join(limits)}: there is nothing to emit. To filter less, {looser}; to make "
        "candidates less similar, lower selection.guidance_weights or train the denoiser longer. An untrained identity "
        "network flags everything too: see its test AUROC."
    )


def mean_by_verdict(rounds: Sequence[Round]) -> dict[str, float]:
    """Mean predicate loss of flagged and unflagged candidates of the first round, and their shares of chosen ones."""
    first = rounds[0]
    loss = first.scores["loss"]
    found = first.chosen != NONE
    means = {"all": loss}
    if "probability" in first.scores:
        means |= {"flagged": loss[first.flagged], "unflagged": loss[~first.flagged]}
    values = {name: float(part.double().mean()) for name, part in means.items() if part.numel()}
    if bool(found.any()):
        values["chosen"] = float(loss[found, first.chosen[found]].double().mean())
    return values
