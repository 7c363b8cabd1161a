"""The released-summary membership attack of the audit, as metrics and as one value a repetition."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from fedsynth.attacks import (
    SummaryAttack,
    auroc_of_index,
    paired_change,
    public_reference,
    released_summary_attack,
    sensitivity_index,
    shifted_summary_attack,
    spread,
)
from fedsynth.pipeline.stage import Metric, StageContext
from fedsynth.seeding import generator
from fedsynth.stages.audit.spec import AuditSettings
from fedsynth.stages.release.audited import AuditedRelease

Latents = Mapping[str, Tensor]

#: The score with the plain name: of all adversaries, the one nearest to the paper's AUROC at every budget, ∞ included.
# fidelity: summary-attack-score
HEADLINE = "population_likelihood_ratio"
#: Named before looking, not picked as the largest afterwards.
STRONGEST = "published_likelihood_ratio"


def membership(
    real: Latents, release: AuditedRelease, settings: AuditSettings, context: StageContext
) -> list[Metric]:
    """The attack at the release's own budget and without noise, on the same candidates.

    Splits and noise depend on the seed and the repetition only, so audits of other budgets on the same latents
    are paired with this one, repetition by repetition (``membership.safetensors``).
    """
    arms = {"nonprivate": release.at(math.inf), "private": release.at(release.epsilon)}
    (vectors, groups), public, held_out = (
        release.view(real[f"{split}.latent"], real[f"{split}.label"]) for split in ("train", "val", "test")
    )
    common = {
        "latents": vectors,
        "labels": groups,
        "clients": real["train.client"],
        "reference": public_reference(*public, num_classes=release.num_groups),
        "releases": arms,
        "clip_radius": release.view_radius,
        "num_repetitions": settings.num_attack_repetitions,
    }
    fair = released_summary_attack(**common, generator=generator(settings.seed, "audit", "fair"))  # type: ignore[arg-type]
    shifted = shifted_summary_attack(
        **common,  # type: ignore[arg-type]
        held_out_latents=held_out[0],
        held_out_labels=held_out[1],
        generator=generator(settings.seed, "audit", "shifted"),
    )
    found = {f"membership_{arm}": fair[arm] for arm in arms}
    found |= {f"membership_{arm}_test_shift": shifted[arm] for arm in arms}
    context.save("membership.safetensors", repetition_tensors(found))
    metrics = [
        metric for arm, attack in found.items() for metric in attack_metrics(arm, attack, settings.seed)
    ]
    return metrics + _change(fair, settings.seed) + _noise(release, settings.seed)


def repetition_tensors(attacks: Mapping[str, SummaryAttack]) -> dict[str, Tensor]:
    """``<arm>.<score>.auroc`` and ``….score_gap``, one value a repetition."""
    tensors: dict[str, Tensor] = {}
    for arm, attack in attacks.items():
        tensors |= {f"{arm}.{score}.auroc": values for score, values in attack.auroc.items()}
        tensors |= {f"{arm}.{score}.score_gap": values for score, values in attack.score_gap.items()}
    return tensors


def attack_metrics(arm: str, attack: SummaryAttack, seed: int) -> list[Metric]:
    """Per score: mean over repetitions, with two intervals, and the sensitivity index d'.

    ``attack_auroc`` carries the 2.5 and 97.5 % quantiles over repetitions (where one attack falls),
    ``attack_auroc_mean`` the same mean with its Student 95 % interval (where the mean lies).
    """
    metrics = []
    for score, values in attack.auroc.items():
        names = [f"{score}/"]
        if score == HEADLINE:
            names.append("")
        if score == STRONGEST:
            names.append("strongest_")
        if score == "informed":
            names.append("informed_")
        auroc, gap = spread(values), spread(attack.score_gap[score])
        for name in names:
            metrics.append(Metric(arm, f"{name}attack_auroc", auroc.mean, seed, auroc.low, auroc.high))
            metrics.append(Metric(arm, f"{name}attack_auroc_std", auroc.std, seed))
        interval = (None, None) if math.isnan(auroc.mean_low) else (auroc.mean_low, auroc.mean_high)
        metrics.append(Metric(arm, f"{score}/attack_auroc_mean", auroc.mean, seed, *interval))
        index = sensitivity_index(auroc.mean)
        if math.isfinite(index):  # the informed adversary is certain without noise
            metrics.append(Metric(arm, f"{score}/sensitivity_index", index, seed))
        metrics.append(Metric(arm, f"{score}/score_gap", gap.mean, seed, gap.low, gap.high))
    return metrics


def _change(fair: Mapping[str, SummaryAttack], seed: int) -> list[Metric]:
    paired = paired_change(fair["private"], fair["nonprivate"], HEADLINE)
    change, share = paired.change, paired.num_reduced / paired.num_repetitions
    arm = "membership_private"
    return [
        Metric(arm, "attack_auroc_change", change.mean, seed, change.low, change.high),
        Metric(arm, "share_of_repetitions_reduced", share, seed),
    ]


def _noise(release: AuditedRelease, seed: int) -> list[Metric]:
    """σ / Δ, the abscissa of the 1/σ law, and the AUROC Φ(Δ / σ√2) that no attack on the means can exceed.

    The bound is that of the mechanism at the worst pair of records; both are absent without noise.
    """
    if not math.isfinite(release.epsilon):
        return []
    arm, ratio = "membership_private", release.noise_over_sensitivity
    return [
        Metric(arm, "noise_std_over_sensitivity", ratio, seed),
        Metric(arm, "attack_auroc_bound", auroc_of_index(1 / ratio), seed),
    ]
