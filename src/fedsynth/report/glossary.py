"""Words for readers: what stages, arms and metrics are called and mean. Other names are shown as they are."""

from __future__ import annotations

STAGE_TITLES = {
    "clients": "clients and their data",
    "pretrain_xray": "X-ray encoder pretraining",
    "fusion_encoder": "federated encoder",
    "encode": "latents of the frozen encoder",
    "release": "private release",
    "mix": "released mixture",
    "latent_ddpm": "latent diffusion model",
    "synthesize": "diffusion samples",
    "tstr_real": "classifier trained on real latents",
    "tstr_mixture": "classifier trained on mixture samples",
    "tstr_nonprivate_mixture": "classifier trained on non-private mixture samples",
    "tstr_diffusion": "classifier trained on diffusion samples",
    "audit": "audit",
}

ARM_TITLES = {
    "both": "X-ray and ECG",
    "image_only": "X-ray only",
    "ecg_only": "ECG only",
    "real": "real latents (ceiling)",
    "dp_mixture": "DP mixture",
    "nonprivate_mixture": "non-private mixture",
    "dp_diffusion": "DP diffusion",
    "negative": "negative class",
    "positive": "positive class",
    "disclosure": "nearest-neighbor disclosure",
    "membership_private": "membership attack on the release",
    "membership_nonprivate": "membership attack without privacy",
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
    "frechet_distance": "Fréchet distance",
    "rbf_mmd": "RBF MMD²",
    "nn_ratio": "nearest-neighbor ratio",
    "near_duplicate_fraction": "near-duplicate fraction",
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
    "nn_ratio": ("mean distance to the nearest training record, over that to the nearest held-out", "nearer 1"),
    "near_duplicate_fraction": ("share of synthetic records all but equal to a training record", "lower"),
}  # fmt: skip

#: Metrics of the headline table, in order (validation metrics never are).
HEADLINE_METRICS = (
    "auroc",
    "auprc",
    "f1",
    "balanced_accuracy",
    "sensitivity",
    "specificity",
    "recall",
    "frechet_distance",
    "rbf_mmd",
    "attack_auroc",
    "nn_ratio",
    "near_duplicate_fraction",
)


def stage_title(name: str) -> str:
    return STAGE_TITLES.get(name, name)


def arm_title(name: str) -> str:
    return ARM_TITLES.get(name, name)


def metric_key(metric: str) -> str:
    """``test/auroc`` → ``auroc``."""
    return metric.rsplit("/", 1)[-1]


def metric_title(metric: str) -> str:
    split, _, key = metric.rpartition("/")
    title = METRIC_TITLES.get(key, key.replace("_", " "))
    return f"{title} ({split})" if split and split != "test" else title


def is_headline(metric: str) -> bool:
    return metric_key(metric) in HEADLINE_METRICS and not metric.startswith(("val/", "train/"))
