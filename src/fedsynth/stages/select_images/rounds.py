"""Rounds of sampling and choosing: images all of whose candidates are flagged are sampled again with less guidance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int64
from safetensors import safe_open
from torch import Tensor

from fedsynth.selection.identity_filter import flagged
from fedsynth.selection.ranking import NONE, best_allowed, penalized_choice
from fedsynth.stages.select_images.spec import MASK, RELEASED_CODE, SelectImagesSettings
from fedsynth.stages.select_images.thresholds import Thresholds


@dataclass(frozen=True)
class Shard:
    """A file with the latents of consecutive sources of a round."""

    path: Path
    rows: Int64[Tensor, " s"]


@dataclass(frozen=True, eq=False)
class Round:
    """What one round came to.

    Attributes:
        weight: Guidance weight of its candidates.
        shards: Where their latents are.
        rows: Training rows that were tried.
        scores: ``loss``, ``rank`` (what decides) and, with an identity network, ``probability`` and ``largest``.
        flagged: By the thresholds; nothing without an identity network.
        chosen: Number of the chosen candidate, or NONE.
    """

    weight: float
    shards: Sequence[Shard]
    rows: Int64[Tensor, " r"]
    scores: Mapping[str, Float[Tensor, "r b"]]
    flagged: Bool[Tensor, "r b"]
    chosen: Int64[Tensor, " r"]

    @property
    def failing(self) -> Int64[Tensor, " f"]:
        """Rows without a chosen candidate."""
        return self.rows[self.chosen == NONE]

    def latents(
        self, position: Int64[Tensor, " m"], candidate: Int64[Tensor, " m"]
    ) -> Float[Tensor, "m c h w"]:
        """Some candidates, by the position of their source in ``rows`` and their number; one file at a time."""
        parts: dict[int, Tensor] = {}
        start = 0
        for shard in self.shards:
            inside = ((position >= start) & (position < start + len(shard.rows))).nonzero()[:, 0]
            if len(inside):
                held = read_latents(shard.path)
                taken = held[position[inside] - start, candidate[inside]]
                parts |= dict(zip(inside.tolist(), taken.unbind(0), strict=True))
            start += len(shard.rows)
        return torch.stack([parts[number] for number in range(len(position))])


def read_latents(path: Path) -> Float[Tensor, "s b c h w"]:
    """The latents of a shard, without what else the file holds."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("latent")


def judge(
    settings: SelectImagesSettings,
    weight: float,
    shards: Sequence[Shard],
    scores: Mapping[str, Tensor],
    thresholds: Thresholds | None,
    *,
    is_last: bool,
) -> Round:
    """Which candidates of a round are flagged, allowed and chosen.

    Args:
        settings: Filter and ranking.
        weight: Of the round.
        shards: Where the candidates are.
        scores: Of all of them, rows in the order of the shards.
        thresholds: None without an identity network.
        is_last: Whether no round follows; the released code's emulation then emits flagged candidates.
    """
    rows = torch.cat([shard.rows for shard in shards])
    loss = scores["loss"] if settings.ranking == "predicates" else torch.zeros_like(scores["loss"])
    is_flagged = flags(scores, thresholds, rows)
    if settings.filter == RELEASED_CODE:
        chosen = penalized_choice(loss, is_flagged)
        if not is_last:
            chosen = chosen.masked_fill(is_flagged.all(1), NONE)
    else:
        allowed = ~is_flagged if settings.filter == MASK else torch.ones_like(is_flagged)
        chosen = best_allowed(loss, allowed)
    return Round(weight, shards, rows, {**scores, "rank": loss}, is_flagged, chosen)


def flags(
    scores: Mapping[str, Tensor], thresholds: Thresholds | None, rows: Int64[Tensor, " r"]
) -> Bool[Tensor, "r b"]:
    """P(own source, x') above its threshold or, in the scope of all training images, the largest P above its own."""
    if thresholds is None:
        return torch.zeros_like(scores["loss"], dtype=torch.bool)
    verdict = flagged(scores["probability"], thresholds.source[rows])
    if thresholds.train is not None:
        verdict |= flagged(scores["largest"], thresholds.train)
    return verdict


def play(
    weights: Sequence[float],
    first: Sequence[Shard],
    score_first: Callable[[Sequence[Shard]], Mapping[str, Tensor]],
    sample_and_score: Callable[[int, float, Tensor], tuple[Sequence[Shard], Mapping[str, Tensor]]],
    judged: Callable[[float, Sequence[Shard], Mapping[str, Tensor], bool], Round],
) -> list[Round]:
    """All rounds; it stops as soon as every image has a choice.

    Args:
        weights: Of the rounds.
        first: Candidates that are there already.
        score_first: Scores them.
        sample_and_score: Of a round's number, weight and rows: new candidates and their scores.
        judged: Of weight, shards, scores and whether the round is the last: verdicts.
    """
    rounds = [judged(weights[0], first, score_first(first), len(weights) == 1)]
    for number, weight in enumerate(weights[1:], start=1):
        failing = rounds[-1].failing
        if not len(failing):
            break
        shards, scores = sample_and_score(number, weight, failing)
        rounds.append(judged(weight, shards, scores, number == len(weights) - 1))
    return rounds
