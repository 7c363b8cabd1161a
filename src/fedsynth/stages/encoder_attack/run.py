"""Loss, confidence and entropy attacks on the trained encoder, against test and against validation pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedsynth.attacks.auroc_interval import AUROCInterval, membership_auroc_intervals
from fedsynth.attacks.membership import confidence_score, entropy_score, loss_score
from fedsynth.data.paired import PairedClients
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.encoder_attack.spec import EncoderAttackSettings
from fedsynth.stages.fusion_encoder.network import MODALITIES, load_network, modality_mask, predict

ARM = "membership_encoder"
#: Suffix of the arm → the split that stands for non-members.
NON_MEMBERS = {"": "val", "_test_shift": "test"}
DEFINITIONS = {
    "members": "all training pairs of all clients",
    f"{ARM}": "non-members: validation pairs. Their images come from the same pool as the training images, their "
    "beats from other ECG records; they chose the round whose weights are attacked, which favors them",
    f"{ARM}_test_shift": "non-members: test pairs, as in the paper. Whatever tells test from training images "
    "counts as membership here",
    f"{ARM}_image_only": "the same attacks on the answer to the image alone, which no difference between ECG records "
    "enters",
    "loss": "-cross entropy of the true class",
    "confidence": "largest class probability",
    "entropy": "-entropy of the class probabilities; of two classes the same order as confidence, so the same AUROC",
    "attack_auroc": "that of the loss attack, the paper's strongest",
    "interval": "2.5 and 97.5 % percentiles over replicates that draw members and non-members with replacement, each "
    "group by itself; the encoder is held fixed",
}


class Outputs(NamedTuple):
    """What the encoder answers to the pairs of one split, and the truth."""

    probability: Float[Tensor, "n 2"]
    label: Int[Tensor, " n"]


def run(settings: EncoderAttackSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """AUROC of the three attacks with intervals, for both kinds of non-members."""
    pairs = PairedClients.from_tensors(inputs["clients"].load("pairs.safetensors"))
    network = load_network(inputs["encoder"])
    metrics: list[Metric] = []
    for suffix, mask in masks(inputs["encoder"].manifest["settings"]).items():
        outputs = {}
        for name in ("train", "val", "test"):
            split = getattr(pairs, name)
            logits = predict(network, split.image, split.ecg, mask, batch_size=settings.batch_size).logits
            # float64: in float32 confident records would tie at 1.
            outputs[name] = Outputs(logits.double().softmax(dim=1), split.label)
        for shift, split_name in NON_MEMBERS.items():
            arm = f"{ARM}{suffix}{shift}"
            stream = generator(settings.seed, "encoder_attack", arm)
            found = attack_intervals(outputs["train"], outputs[split_name], settings.num_bootstrap, stream)
            metrics += _metrics(arm, found, settings.seed)
    return Outcome(metrics=metrics, notes={"definitions": DEFINITIONS})


def masks(encoder: Mapping[str, Any]) -> dict[str, Bool[Tensor, " modality"]]:
    """What the attacked encoder is shown, by arm suffix: the modalities it was trained on, and the image alone."""
    # fidelity: encoder-attack-non-members
    trained = encoder.get("modalities", MODALITIES)
    shown = {"": modality_mask(trained)}
    if len(trained) > 1:
        shown["_image_only"] = modality_mask(["image"])
    return shown


def attack_intervals(
    members: Outputs, non_members: Outputs, num_replicates: int, stream: torch.Generator
) -> dict[str, AUROCInterval]:
    """Loss, confidence and entropy attack, all on the same replicates.

    Confidence and entropy agree in every digit, interval included: their scores are one (see `entropy_score`).
    """
    return membership_auroc_intervals(
        attack_scores(members),
        attack_scores(non_members),
        generator=stream,
        num_replicates=num_replicates,
    )


def attack_scores(outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """By attack, larger meaning "more likely a member"."""
    return {
        "loss": loss_score(outputs.probability, outputs.label),
        "confidence": confidence_score(outputs.probability),
        "entropy": entropy_score(outputs.probability),
    }


def _metrics(arm: str, found: Mapping[str, AUROCInterval], seed: int) -> list[Metric]:
    strongest = max(found.values(), key=lambda interval: interval.estimate)
    named = {f"{name}/attack_auroc": interval for name, interval in found.items()}
    named |= {"attack_auroc": found["loss"], "strongest_attack_auroc": strongest}
    return [Metric(arm, name, value.estimate, seed, value.low, value.high) for name, value in named.items()]
