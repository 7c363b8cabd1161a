"""Words for readers: what stages, arms and metrics are called and mean. Other names are shown as they are."""

from __future__ import annotations

import re
from collections.abc import Collection

from fedsynth.report.branches import is_variant
from fedsynth.report.pso_emulation import title_among
from fedsynth.report.pso_names import image_title
from fedsynth.report.system_names import is_main_system, system_stage_title, system_title

STAGE_TITLES = {
    "clients": "clients and their data",
    "pretrain_xray": "X-ray encoder pretraining",
    "fusion_encoder": "federated encoder",
    "fusion_random_init": "federated encoder, random initialization",
    "fusion_centralized": "centralized encoder, gated fusion",
    "fusion_centralized_mean": "centralized encoder, mean fusion",
    "fusion_image_only": "federated encoder, X-ray only",
    "fusion_ecg_only": "federated encoder, ECG only",
    "encode": "latents of the frozen encoder",
    "release": "private release",
    "release_nonprivate": "release without privacy",
    "mix": "released mixture",
    "mix_nonprivate": "mixture without privacy",
    "latent_ddpm": "latent diffusion model",
    "synthesize": "diffusion samples",
    "tstr_real": "classifier trained on real data",
    "tstr_mixture": "classifier trained on mixture samples",
    "tstr_nonprivate_mixture": "classifier trained on non-private mixture samples",
    "tstr_diffusion": "classifier trained on diffusion samples",
    "tstr_diffusion_primary": "classifier trained on selected diffusion samples",
    "synthesize_primary": "selected diffusion samples",
    "audit": "audit",
    "encoder_attack": "attacks on the encoder",
    "failure_analysis": "failure analysis",
    "temperature_encoder": "temperature scaling of the encoder",
    "temperature_diffusion": "temperature scaling of the classifier of diffusion samples",
    "contrast_pretraining": "pretrained − random initialization",
    "contrast_gated_mean": "gated − mean fusion, centralized",
    "contrast_both_image": "both − X-ray only",
    "contrast_both_ecg": "both − ECG only",
    "contrast_image_ecg": "X-ray only − ECG only",
    "contrast_diffusion_real": "TSTR: DP diffusion (selected) − real latents",
}

#: Endings of stage names → what they add to the title of the stage without the ending.
STAGE_SUFFIXES = {"_nonprivate": "without noise", "_primary": "selected snapshot", "_paid": "all paid"}

#: Short forms before an arm's title.
STAGE_PREFIXES = {
    "fusion_encoder": "encoder",
    "pretrain_xray": "pretraining",
    "reidentifier": "re-identification",
}

ARM_TITLES = {
    "mean": "mean over labels",
    "both": "X-ray and ECG",
    "image_only": "X-ray only",
    "ecg_only": "ECG only",
    "real": "real data",
    "dp_mixture": "DP mixture",
    "nonprivate_mixture": "non-private mixture",
    "dp_diffusion": "DP diffusion",
    "negative": "negative class",
    "positive": "positive class",
    "disclosure": "nearest-neighbor disclosure",
    "mixture_negative": "DP mixture, negative class",
    "mixture_positive": "DP mixture, positive class",
    "real_train_negative": "real training latents, negative class",
    "real_train_positive": "real training latents, positive class",
    "dp": "private release",
    "nonprivate": "release without privacy",
    "membership_private_test_shift": "members against test records, private release",
    "membership_nonprivate_test_shift": "members against test records, no privacy",
    "nonprivate_diffusion": "non-private diffusion",
    "membership_encoder": "X-ray and ECG, against validation records",
    "membership_encoder_test_shift": "X-ray and ECG, against test records",
    "membership_encoder_image_only": "X-ray only, against validation records",
    "membership_encoder_image_only_test_shift": "X-ray only, against test records",
    "gates": "gates and attention",
    "signal_to_noise": "signal to noise",
    "membership_private": "membership attack, release",
    "membership_nonprivate": "membership attack without privacy",
    "reidentifier": "pairs of unseen patients",
}

METRIC_TITLES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "npv": "NPV",
    "mcc": "MCC",
    "brier": "Brier score",
    "ece": "ECE",
    "attack_auroc": "attack AUROC",
    "strongest_attack_auroc": "AUROC of the strongest attack",
    "frechet_distance": "Fréchet distance",
    "rbf_mmd": "RBF MMD²",
    "nn_ratio": "nearest-neighbor ratio",
    "near_duplicate_fraction": "near-duplicate fraction",
    "uar": "UAR",
    "pps": "PPS",
    "privacy_score": "privacy score ρ",
    "attack_auroc_true_class": "attack AUROC, true class",
    "attack_auroc_val": "attack AUROC, against validation",
    "attack_auroc_other_clients": "attack AUROC, against other clients",
    "rerouted_share": "share decided by prototypes",
    "rounds_to_uar": "rounds to the target UAR",
    "gap": "AUROC gap, real − synthetic",
    "nearest_attribution_top1": "nearest record is the client's",
    "nearest_attribution_top5": "share of the client's among the five nearest",
}

#: Metric → (what it is, which way is better).
METRIC_MEANINGS = {
    "auroc": ("how well scores rank positives above negatives; 0.5 is guessing", "higher"),
    "auprc": ("average precision; guessing reaches the share of positives", "higher"),
    "f1": ("harmonic mean of precision and sensitivity at the threshold chosen on validation data", "higher"),
    "balanced_accuracy": ("mean of sensitivity and specificity at that threshold", "higher"),
    "sensitivity": ("share of positives found", "higher"),
    "specificity": ("share of negatives recognized", "higher"),
    "accuracy": ("share of records classified right; depends on the class shares", "higher"),
    "mcc": ("correlation of prediction and truth", "higher"),
    "brier": ("mean squared error of the probability", "lower"),
    "ece": ("expected calibration error: mean gap between predicted probability and observed share", "lower"),
    "recall": ("share of real test latents with a synthetic latent in reach", "higher"),
    "precision": ("as a classifier metric: share of positive calls that are right; in the audit: share of"
    " synthetic"
                  " latents within reach of a real one", "higher"),
    "density": ("how many real neighborhoods a synthetic latent lies in", "higher"),
    "coverage": ("share of real neighborhoods that hold a synthetic latent", "higher"),
    "frechet_distance": ("distance between Gaussian fits of real and synthetic latents", "lower"),
    "rbf_mmd": ("kernel distance between real and synthetic latents; may be slightly negative", "lower"),
    "attack_auroc": ("how well an attacker tells members from non-members; 0.5 is guessing", "nearer 0.5"),
    "strongest_attack_auroc": ("the same for the attack named in advance as the strongest", "nearer 0.5"),
    "nn_ratio": ("mean distance to the nearest training record over that to held-out ones", "nearer 1"),
    "near_duplicate_fraction": ("share of synthetic records all but equal to a training record", "lower"),
    "uar": ("unweighted average recall: mean of sensitivity and specificity of the predicted class", "higher"),
    "privacy_score": ("1 − 2 |attack AUROC − 0.5|; its sampling error is large", "higher"),
    "pps": ("harmonic mean of UAR and privacy score", "higher"),
    "gap": ("what training on synthetic instead of real images costs in AUROC", "lower"),
    "rerouted_share": ("share of test records with an unsure classifier, decided by the nearest prototype", "neither"),
    "rounds_to_uar": ("first round whose validation UAR reaches the target", "lower"),
}  # fmt: skip

#: Metrics of the headline table: of classifiers on real test records, and of the audit.
HEADLINE_TEST_METRICS = ("auroc", "auprc", "f1", "balanced_accuracy", "sensitivity", "specificity", "uar")
HEADLINE_AUDIT_METRICS = (
    "precision",
    "recall",
    "density",
    "coverage",
    "frechet_distance",
    "rbf_mmd",
    "attack_auroc",
    "strongest_attack_auroc",
    "nn_ratio",
    "near_duplicate_fraction",
    "gap",
)
#: The headline of a run with many systems, each of which has a section of its own.
FIRST_LOOK_METRICS = ("auroc", "f1", "recall", "coverage", "attack_auroc", "nn_ratio")
#: Arms of the audit that serve as references; they are in the full tables only.
REFERENCE_PREFIXES = ("mixture_", "real_train_")
REFERENCE_SUFFIX = "_test_shift"
#: Stages with an arm per label; only their mean over labels is a headline.
MANY_LABEL_STAGES = ("pretrain_xray",)

#: Stages whose numbers have sections of their own beside the headline.
COMPARED_STAGES = (
    "test_",
    "fusion_random",
    "fusion_centralized",
    "fusion_image",
    "fusion_ecg",
    "encoder_attack",
    "temperature_",
)
#: Headline of a federated system; its tables have the rest.
HEADLINE_SYSTEM_METRICS = ("uar", "attack_auroc", "pps")


def stage_title(name: str) -> str:
    """The title of a stage; ``mix_eps1`` is titled after ``mix``."""
    if title := STAGE_TITLES.get(name) or system_stage_title(name):
        return title
    if budget := re.fullmatch(r"(.+)_eps([\d.]+)", name):
        return f"{stage_title(budget[1])}, ε = {budget[2]}" if budget[1] in STAGE_TITLES else name
    for ending, meaning in STAGE_SUFFIXES.items():
        base = name.removesuffix(ending)
        if base != name and base in STAGE_TITLES:
            return f"{STAGE_TITLES[base]}, {meaning}"
    return name


def is_score(stage: str) -> bool:
    """Whether a stage scores one federated system, by its name: ``score_fedmpa``."""
    return stage.startswith("score_")


def row_title(stage: str, arm: str, emulated: Collection[str] = ()) -> str:
    """``encoder: X-ray only``, ``TSTR: DP mixture``, ``FedMPA``; the stage's title when the number has no arm.

    Args:
        stage: Its name.
        arm: Of the number.
        emulated: Arms whose images were chosen as the released code does it (`pso_systems.emulated_arms`).
    """
    if is_score(stage) and (title := system_title(arm)):
        return title
    prefix = "TSTR" if stage.startswith("tstr_") else STAGE_PREFIXES.get(stage, stage)
    return f"{prefix}: {arm_title(arm, emulated)}" if arm else stage_title(stage)


def arm_title(name: str, emulated: Collection[str] = ()) -> str:
    title = ARM_TITLES.get(name) or system_title(name) or image_title(name) or name
    return title_among(title, name, emulated)


def metric_key(metric: str) -> str:
    """``test/auroc`` → ``auroc``."""
    return metric.rsplit("/", 1)[-1]


def metric_title(metric: str) -> str:
    split, _, key = metric.rpartition("/")
    title = METRIC_TITLES.get(key, key.replace("_", " "))
    return f"{title} ({split})" if split and split != "test" else title


def is_headline(stage: str, arm: str, metric: str) -> bool:
    """Whether a number belongs in the short table: test metrics of classifiers, main arms of the audit."""
    if stage in MANY_LABEL_STAGES and arm != "mean":
        return False
    split, _, key = metric.rpartition("/")
    if is_score(stage):
        return is_main_system(arm) and split in ("", "test") and key in HEADLINE_SYSTEM_METRICS
    if is_variant(stage) or stage.startswith(COMPARED_STAGES) or system_stage_title(stage):
        return False
    if split:
        return split == "test" and key in HEADLINE_TEST_METRICS
    is_reference = arm.startswith(REFERENCE_PREFIXES) or arm.endswith(REFERENCE_SUFFIX)
    return key in HEADLINE_AUDIT_METRICS and not is_reference
