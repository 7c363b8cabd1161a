"""How good a set of synthetic latents is for a classifier, on real validation latents."""

from __future__ import annotations

from jaxtyping import Float, Int64
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedsynth.errors import DataError


def validation_auroc(
    latent: Float[Tensor, "n d"],
    label: Int64[Tensor, " n"],
    *,
    validation: Float[Tensor, "m d"],
    validation_labels: Int64[Tensor, " m"],
) -> float:
    """Validation AUROC of a logistic regression trained on the given latents.

    A probe that is deterministic and takes milliseconds, for choosing between snapshots of one denoiser. It is
    not the TSTR classifier (Eq. 32) and its value is not a result. Inputs are standardized by the training
    latents.

    Raises:
        DataError: One side holds one class only, so that nothing can be ranked.
    """
    for name, labels in (("synthetic", label), ("validation", validation_labels)):
        if len(labels.unique()) < 2:
            raise DataError(
                f"A snapshot is selected by ranking two classes, but the {name} latents hold one class only"
                f" (labels {labels.unique().tolist()}). Leave out the input 'validation' of the stage."
            )
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(latent.double().numpy(), label.numpy())
    score = probe.decision_function(validation.double().numpy())
    return float(roc_auc_score(validation_labels.numpy(), score))
