"""Verdict of each candidate of a few sources, for a figure like the paper's Fig. 4."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from fedsynth.selection.ranking import NONE
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.select_images.emission import Emission
from fedsynth.stages.select_images.rounds import Round
from fedsynth.stages.select_images.scoring import CandidateScorer

#: Candidates shown of a source.
MAX_SHOWN = 8


def verdict_tensors(
    rounds: Sequence[Round],
    emitted: Emission,
    group: Int64[Tensor, " n"],
    num_shown: int,
    scorer: CandidateScorer,
    images: ImageSet,
) -> dict[str, Tensor]:
    """The first sources of each class with candidates of the first round, the chosen one always among them.

    Returns:
        ``source_image`` [v, 1, h, w], ``source``, ``label``, ``accepted_in`` (round, or -1) and ``kept`` [v];
        ``image`` [v, s, 1, h, w], ``candidate``, ``bce``, ``flagged``, ``chosen`` and, with an identity network,
        ``probability`` (of the pair with the source; ``largest`` too in the scope of all training images) [v, s].
        Empty if nothing is to be shown.
    """
    if num_shown == 0:
        return {}
    shown = torch.cat([(group == number).nonzero()[:num_shown, 0] for number in range(int(group.max()) + 1)])
    first = rounds[0]
    width = min(MAX_SHOWN, first.flagged.shape[1])
    candidate = torch.arange(width).expand(len(shown), width).clone()
    chosen = first.chosen[shown]
    beyond = chosen >= width
    candidate[beyond, -1] = chosen[beyond]
    latent = first.latents(shown.repeat_interleave(width), candidate.flatten())
    picture = scorer.pictures(latent)
    place = shown[:, None]
    tensors = {
        "source_image": images.image[first.rows[shown]],
        "source": first.rows[shown],
        "label": images.label[first.rows[shown]],
        "accepted_in": emitted.accepted_in[shown],
        "kept": emitted.kept[shown].to(torch.uint8),
        "image": picture.reshape(len(shown), width, *picture.shape[1:]),
        "candidate": candidate,
        "bce": first.scores["loss"][place, candidate],
        "flagged": first.flagged[place, candidate].to(torch.uint8),
        "chosen": ((candidate == chosen[:, None]) & (chosen[:, None] != NONE)).to(torch.uint8),
    }
    for name in ("probability", "largest"):
        if name in first.scores:
            tensors[name] = first.scores[name][place, candidate]
    return tensors
