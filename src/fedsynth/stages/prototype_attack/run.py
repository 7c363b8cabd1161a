"""Attribution, membership and exact-match attacks on the prototypes that clients sent in the chosen round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from fedsynth.attacks.prototype_audit import prototype_leakage
from fedsynth.attacks.prototype_evidence import Comparison, PrototypeEvidence, compare_with_prototypes
from fedsynth.attacks.prototype_leakage import MATCH_TOLERANCE, RecordOwners
from fedsynth.errors import ArtifactError
from fedsynth.evaluation.bootstrap import BootstrapInterval
from fedsynth.evaluation.checks import EvaluationError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.seeding import generator
from fedsynth.stages.multimodal.trained import SplitOutputs, TrainedClassifier, open_classifier
from fedsynth.stages.prototype_attack.spec import PrototypeAttackSettings

DEFINITIONS = {
    "adversary": "the server, in the round whose weights are kept: it holds each client's prototypes as sent (noisy, if "
    "they were), the model the client had when it computed them, and candidate records with their classes. Under "
    "fedproto models stay with the clients, so that the server sees less than this adversary",
    "nearest_attribution_top1": "share of prototypes whose nearest training record of the class is one of the client's "
    "own; top5: own records among the five nearest. A client with fewer than five cannot reach 1",
    "base_rate": "the same for candidates picked at random: the client's share of the class, mean over prototypes",
    "client_attribution": "share of training records that the client with the nearest prototype of their class owns; "
    "majority_rate: that of always naming the client with most records of the class",
    "attack_auroc_other_clients": "how well -‖z - p‖ tells a client's records from other clients' records of the class. "
    "Clients that differ in patients or devices are told apart by that, too",
    "attack_auroc_val": "the same against validation records of the class, which nobody trained on; they may have "
    "chosen the round. Whatever else tells training from validation records counts as membership",
    "inner_product": "the same AUROCs of ⟨z - μ, p - μ⟩, μ the mean of validation records of the class",
    "exact_match_<records>": "share of prototypes that equal a record of their client to a relative "
    f"{MATCH_TOLERANCE:g}, by the number of records behind them: with one record the prototype is that record's "
    "embedding (clipped, if the clients clip), unless it is noisy",
    "attack_auroc": "attack_auroc_val of the modality where it is largest (see strongest), so it lies above 0.5 by "
    "chance where nothing leaks. strongest_attack_auroc: the largest of all modalities, scores and non-members",
    "interval": "2.5 and 97.5 % percentiles over replicates: attribution to the nearest draws prototypes, all else "
    "draws persons of each client and class, and validation persons of each class. Models are held fixed",
}


class _Seen(NamedTuple):
    comparisons: dict[str, list[Comparison]]
    members: RecordOwners
    reference: RecordOwners


def run(settings: PrototypeAttackSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Every attack on every modality; metrics are named ``<modality>/<attack>``.

    Raises:
        ArtifactError: If the classifier left no prototypes, or its records cannot be attacked.
    """
    classifier = open_classifier(inputs["encoder"], inputs["clients"])
    if not classifier.uploads:
        raise ArtifactError(
            f"{inputs['encoder'].stage} left no prototypes of its clients. Train it with fedproto, fedgpd or fedmpa, or "
            "compute it anew: force=[its name]."
        )
    try:
        seen = _see(classifier, _clip_radius(inputs["encoder"]))
        reports = {
            modality: prototype_leakage(
                _evidence(classifier.uploads, comparisons, modality), seen.members, seen.reference,
                # By name: a modality more or less shifts no other interval.
                generator=generator(settings.seed, "prototype_attack", modality),
                num_replicates=settings.num_bootstrap,
            )
            for modality, comparisons in seen.comparisons.items()
        }  # fmt: skip
    except EvaluationError as error:
        raise ArtifactError(
            f"stages.{context.name} cannot attack the prototypes of {inputs['encoder'].stage}: {error}"
        ) from error
    metrics = [
        _metric(settings, f"{modality}/{name}", value)
        for modality, report in reports.items()
        for name, value in report.items()
    ]
    strongest = {
        "attack_auroc": _largest(reports, lambda name: name == "attack_auroc_val"),
        "strongest_attack_auroc": _largest(reports, lambda name: "attack_auroc" in name),
    }
    metrics += [_metric(settings, name, value) for name, (_, value) in strongest.items()]
    notes = {
        "definitions": DEFINITIONS,
        "strongest": {name: found for name, (found, _) in strongest.items()},
        "clients": sorted(classifier.uploads),
    }
    return Outcome(metrics=metrics, notes=notes)


def _clip_radius(encoder: Artifact) -> float | None:
    """The public radius that clients clip embeddings to before averaging; None if they do not."""
    privacy = encoder.manifest["settings"]["prototype_privacy"]
    return float(privacy["clip_radius"]) if privacy["mechanism"] == "gaussian" else None


def _see(classifier: TrainedClassifier, clip_radius: float | None) -> _Seen:
    """Every record under every sender's model, one client at a time: only distances are kept."""
    comparisons: dict[str, list[Comparison]] = {}
    owners: dict[str, RecordOwners] = {}
    for client, sent in sorted(classifier.uploads.items()):
        train, val = (classifier.client_outputs(client, split) for split in ("train", "val"))
        owners = {"train": _owners(train), "val": _owners(val)}
        for modality in sent.modalities:
            one = compare_with_prototypes(
                sent.mean[modality],
                sent.known(modality),
                embedding=train.embeddings[modality][0],
                label=train.label,
                reference=val.embeddings[modality][0],
                reference_label=val.label,
                clip_radius=clip_radius,
            )
            comparisons.setdefault(modality, []).append(one)
    return _Seen(comparisons, owners["train"], owners["val"])


def _owners(outputs: SplitOutputs) -> RecordOwners:
    return RecordOwners(outputs.label, outputs.client, outputs.group)


def _evidence(
    uploads: Mapping[int, ClassPrototypes], comparisons: Sequence[Comparison], modality: str
) -> PrototypeEvidence:
    sent = [uploads[client] for client in sorted(uploads)]
    return PrototypeEvidence(
        sender=torch.tensor(sorted(uploads)),
        count=torch.stack([one.count[modality] for one in sent]),
        norm=torch.stack([one.mean[modality].double().norm(dim=1) for one in sent]),
        comparisons=comparisons,
    )


def _largest(
    reports: Mapping[str, Mapping[str, BootstrapInterval | float]], counts: Callable[[str], bool]
) -> tuple[str, BootstrapInterval]:
    found = {
        f"{modality}/{name}": value
        for modality, report in reports.items()
        for name, value in report.items()
        if counts(name) and isinstance(value, BootstrapInterval)
    }
    best = max(found, key=lambda name: found[name].estimate)
    return best, found[best]


def _metric(settings: PrototypeAttackSettings, name: str, value: BootstrapInterval | float) -> Metric:
    if isinstance(value, BootstrapInterval):
        return Metric(settings.arm, name, value.estimate, settings.seed, value.low, value.high)
    return Metric(settings.arm, name, value, settings.seed)
