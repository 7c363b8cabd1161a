"""Choose the synthetic set: score candidates shard by shard, sample again where all are flagged, emit, count.

Images, labels and, if asked for, soft labels leave the client, in an order that tells nothing of their sources; all else
is a private part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import PRIVATE, Outcome, StageContext
from fedsynth.selection.groups import label_groups
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_codec.stored import open_codec
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.reidentifier.trained import check_strangers, open_reidentifier
from fedsynth.stages.select_images.emission import emission
from fedsynth.stages.select_images.recognition import (
    equal_probabilities,
    missed_everybody,
    refuse_to_release,
)
from fedsynth.stages.select_images.released import release_order, released_set, save_released
from fedsynth.stages.select_images.rounds import Shard, judge, play, read_latents
from fedsynth.stages.select_images.scoring import CandidateScorer
from fedsynth.stages.select_images.spec import NO_FILTER, SelectImagesSettings
from fedsynth.stages.select_images.tables import (
    class_table,
    mean_by_verdict,
    nothing_passes,
    selection_metrics,
)
from fedsynth.stages.select_images.thresholds import Thresholds, choose_thresholds
from fedsynth.stages.select_images.verdicts import verdict_tensors
from fedsynth.stages.synthesize_images.networks import open_sampler
from fedsynth.stages.synthesize_images.pieces import finished, make_pieces
from fedsynth.stages.synthesize_images.progress import ImageProgress
from fedsynth.stages.tstr_densenet.trained import open_densenet

POLICY = (
    "filter", "ranking", "scope", "when_all_flagged", "max_per_source", "images_per_source", "labels", "batch_norm",
    "release",
)  # fmt: skip


def run(settings: SelectImagesSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """The synthetic set; kept private are its sources, the verdicts of a few, and per class what became of them.

    Raises:
        ConfigError: C_r knows other classes.
        DataError: The identity network knows persons held out here, the filter leaves nothing, or it recognizes almost
            nobody and its set would be released.
    """
    strangers = _check_persons(settings, inputs, context.name)
    images = read_image_set(inputs["images"])
    shards = stored_shards(inputs["candidates"])
    rows = torch.cat([shard.rows for shard in shards])
    scorer = _scorer(settings, inputs, images, rows, context)
    thresholds = _thresholds(settings, inputs, images, scorer, context.name)
    made_with = inputs["candidates"].manifest["settings"]
    first_weight = float(made_with["guidance_weight"])
    weights = (first_weight,) if settings.filter == NO_FILTER else settings.schedule(first_weight)
    work = _Work(settings, inputs, images, scorer, context)
    rounds = play(
        weights,
        shards,
        work.score_first,
        work.sample_and_score,
        lambda weight, made, scores, is_last: judge(
            settings, weight, made, scores, thresholds, is_last=is_last
        ),
    )
    if context.rank != 0:
        return Outcome()
    group, names = label_groups(images.targets()[rows], images.classes)
    advice = nothing_passes(settings, rounds, thresholds, group, names)
    emitted = emission(settings, rounds, group, names, advice)
    made = released_set(settings, rounds, emitted, scorer, images, inputs)
    made = made.rows(release_order(images, len(made), settings.seed))
    save_released(made, context)
    if shown := verdict_tensors(rounds, emitted, group, settings.num_shown, scorer, images):
        context.save_private("verdicts.safetensors", shown)
    table = class_table(rounds, emitted, group, names)
    notes = {
        **made.describe(),
        "arm": settings.arm,
        "counts": made.counts(),
        "missing_classes": [name for name, count in made.counts().items() if not count],
        "num_candidates": shards_width(shards),
        "weights_allowed": list(weights),
        "policy": {name: getattr(settings, name) for name in POLICY},
        PRIVATE: {
            "num_sources": len(rows),
            "per_class": table,
            "thresholds": thresholds.notes if thresholds else [],
            "error_rates": thresholds.rates if thresholds else [],
            "filter_fault": thresholds.fault if thresholds else None,
            "weights": [one.weight for one in rounds],
            "mean_bce": mean_by_verdict(rounds),
            "held_out_persons_are_strangers": strangers,
            "condition_made_of": _condition_made_of(inputs),
        },
    }
    return Outcome(metrics=selection_metrics(settings, rounds, emitted, table), notes=notes)


def _condition_made_of(inputs: Mapping[str, Artifact]) -> list[str]:
    """Keys of the artifacts behind the generator's condition: the features, and what they were joined of."""
    if "features" not in inputs:
        return []
    features = inputs["features"]
    joined = features.manifest["notes"].get("made_of") or {}
    return [features.key, *joined.values()]


def _check_persons(settings: SelectImagesSettings, inputs: Mapping[str, Artifact], stage: str) -> bool | None:
    """Whether it is certain that the identity network learned from none of the held-out patients; None without one."""
    if settings.filter == NO_FILTER:
        return None
    return check_strangers(inputs["reidentifier"], inputs["images"], stage)


class _Work:
    """Scoring and sampling in pieces that survive a kill."""

    def __init__(
        self,
        settings: SelectImagesSettings,
        inputs: Mapping[str, Artifact],
        images: ImageSet,
        scorer: CandidateScorer,
        context: StageContext,
    ) -> None:
        self.settings, self.inputs, self.images = settings, inputs, images
        self.scorer, self.context = scorer, context

    def score_first(self, shards: Sequence[Shard]) -> dict[str, Tensor]:
        """Scores of the candidates that the input holds."""
        names = [f"scores-{number:05}.safetensors" for number in range(len(shards))]
        width = shards_width(shards)
        with self._progress("scoring", names, [len(shard.rows) * width for shard in shards]) as progress:

            def make(number: int) -> dict[str, Tensor]:
                scores = self.scorer.score(shards[number].rows, read_latents(shards[number].path))
                progress.finish(len(shards[number].rows) * width)
                return scores

            paths = make_pieces(self.context, names, make)
        return read_scores(paths)

    def sample_and_score(
        self, number: int, weight: float, rows: Tensor
    ) -> tuple[list[Shard], dict[str, Tensor]]:
        """New candidates with another guidance weight, and their scores."""
        values = self.inputs["candidates"].manifest["settings"]
        sampler = open_sampler(
            values,
            self.inputs,
            self.images,
            seed=int(values["seed"]),
            batch_size=self.settings.sampling_batch_size,
            context=self.context,
            may_need_guide=True,
            key=f"stages.{self.context.name}.sampling_batch_size",
        )
        parts, width = rows.split(int(values["shard_size"])), int(values["num_candidates"])
        names = [f"round-{number}-{part:05}.safetensors" for part in range(len(parts))]
        sizes = [len(part) * width for part in parts]
        with self._progress(f"guidance {weight:g}", names, sizes) as progress:

            def make(part: int) -> dict[str, Tensor]:
                latent = sampler.draw(parts[part], width, weight, progress.within)
                progress.finish(sizes[part])
                return {"latent": latent, **self.scorer.score(parts[part], latent)}

            paths = make_pieces(self.context, names, make)
        return [Shard(path, part) for path, part in zip(paths, parts, strict=True)], read_scores(paths)

    def _progress(self, what: str, names: Sequence[str], sizes: Sequence[int]) -> ImageProgress:
        own = [
            size
            for index, (size, done) in enumerate(zip(sizes, finished(self.context, names), strict=True))
            if not done and index % self.context.world_size == self.context.rank
        ]
        return ImageProgress(f"{self.context.name}: {what}", sum(own))


def stored_shards(candidates: Artifact) -> list[Shard]:
    """The shards of a stage ``synthesize_images``, in order."""
    names = sorted(name for name in candidates.manifest["files"] if name.startswith("candidates-"))
    shards = []
    for name in names:
        with safe_open(candidates.file(name), framework="pt") as file:
            shards.append(Shard(candidates.file(name), file.get_tensor("source")))
    return shards


def shards_width(shards: Sequence[Shard]) -> int:
    """Candidates a source."""
    with safe_open(shards[0].path, framework="pt") as file:
        return int(file.get_slice("latent").get_shape()[1])


def read_scores(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Scores of several pieces, one after the other."""
    parts: dict[str, list[Tensor]] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 – a safetensors file is no mapping
                if name != "latent":
                    parts.setdefault(name, []).append(file.get_tensor(name))
    return {name: torch.cat(values) for name, values in parts.items()}


def _scorer(
    settings: SelectImagesSettings,
    inputs: Mapping[str, Artifact],
    images: ImageSet,
    rows: Tensor,
    context: StageContext,
) -> CandidateScorer:
    device = computing_device(context)
    classifier = open_densenet(inputs["classifier"], device) if "classifier" in inputs else None
    if classifier is not None and classifier.classes != images.classes:
        raise ConfigError(
            f"stages.{context.name}.inputs.classifier knows the classes {', '.join(classifier.classes)}, but the images "
            f"have {', '.join(images.classes)}. Train it on the same labels.",
            key=f"stages.{context.name}.inputs.classifier",
        )
    return CandidateScorer(
        open_codec(inputs["codec"], device),
        images,
        rows,
        None if settings.filter == NO_FILTER else open_reidentifier(inputs["reidentifier"], device),
        classifier,
        against_train=settings.scope == "train",
        batch_statistics=settings.batch_norm == "train",
        batch_size=settings.batch_size,
        key=f"stages.{context.name}.batch_size",
        device=device,
    )


def _thresholds(
    settings: SelectImagesSettings,
    inputs: Mapping[str, Artifact],
    images: ImageSet,
    scorer: CandidateScorer,
    stage: str,
) -> Thresholds | None:
    """None without a filter: then no threshold is asked for, and none may be in the way."""
    if settings.filter == NO_FILTER:
        return None
    calibration = inputs["reidentifier"].load("calibration.safetensors")
    if settings.threshold_by == "class" and calibration["label"].ndim != images.label.ndim:
        raise DataError(
            "The identity network was calibrated on labels of another kind; say threshold_by=all."
        )
    # Before any image is scored, held-out ones included.
    refuse_to_release(settings, blind := equal_probabilities(calibration), stage)
    found = choose_thresholds(
        settings,
        calibration,
        inputs["reidentifier"].load("test_pairs.safetensors"),
        images,
        lambda: scorer.largest_of(read_image_set(inputs["images"], "val").image),
    )
    if blind is not None:
        return replace(found, fault=blind)
    refuse_to_release(settings, fault := missed_everybody(calibration, found, images.classes), stage)
    return replace(found, fault=fault)
