"""The encoder of a ``pseudo_features`` artifact, for images that came later."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.models.image_encoder import ImageEncoder, check_digest, check_gray
from fedsynth.models.image_encoder_networks import build_image_encoder
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.pseudo_features.spec import CLASSIFIER, PseudoFeaturesSettings
from fedsynth.stages.tstr_densenet.trained import open_densenet

FEATURES_FILE = "features.safetensors"


class ClassifierEncoder:
    """The pooled features of a stored classifier, with the interface of an encoder.

    Args:
        artifact: Of ``tstr_densenet``.
        device: Where the network runs.
    """

    name = CLASSIFIER

    def __init__(self, artifact: Artifact, device: str | torch.device = "cpu") -> None:
        self._network = open_densenet(artifact, device=device)
        #: The key of the artifact in place of a digest: it stands for these very weights.
        self.weights_sha256 = artifact.key
        self.dim = self._network.dim

    def features(self, image: UInt8[Tensor, "n 1 h w"], batch_size: int) -> Float[Tensor, "n d"]:
        """Pooled features before the last layer, float32 on the CPU."""
        check_gray(image)
        return self._network.features(image, batch_size)


def make_encoder(
    settings: PseudoFeaturesSettings,
    classifier: Artifact | None,
    path: str,
    device: str | torch.device = "cpu",
) -> ImageEncoder:
    """The encoder that settings name.

    Args:
        settings: Of ``pseudo_features``.
        classifier: Of ``encoder=classifier``; unused otherwise.
        path: Config path of the stage, for messages.
        device: Where the network runs.

    Raises:
        ConfigError: Weights are absent, of another architecture or of another digest than wanted; no classifier.
    """
    if settings.encoder == CLASSIFIER:
        if classifier is None:
            raise ConfigError(
                f"{path}: encoder=classifier needs the input 'classifier', a tstr_densenet stage.",
                key=f"{path}.inputs.classifier",
            )
        return ClassifierEncoder(classifier, device)
    encoder = build_image_encoder(
        settings.encoder,
        weights=settings.weights,
        allow_download=settings.allow_download,
        image_size=settings.image_size,
        path=path,
        device=device,
    )
    check_digest(encoder, settings.weights_sha256, f"{path}.weights_sha256")
    return encoder


def open_encoder(
    artifact: Artifact, classifier: Artifact | None, device: str | torch.device = "cpu"
) -> ImageEncoder:
    """The very encoder that made the features of an artifact.

    Args:
        artifact: Of ``pseudo_features``.
        classifier: Its input of that name; None for the other encoders.
        device: Where the network runs.

    Raises:
        ArtifactError: The weights that are found now are not those the features were made with.
        ConfigError: They are absent, or there is no classifier.
    """
    stored = artifact.manifest["settings"]
    # Names of fields that do not enter the key are in a manifest, too; a batch size decides nothing.
    settings = PseudoFeaturesSettings(
        **{name: stored[name] for name in ("encoder", "weights", "weights_sha256", "image_size")},
        allow_download=bool(stored.get("allow_download", False)),
        batch_size=1,
    )
    encoder = make_encoder(settings, classifier, f"stages.{artifact.stage}", device)
    wanted, found = artifact.manifest["notes"]["weights_sha256"], encoder.weights_sha256
    if wanted != found:
        raise ArtifactError(
            f"stages.{artifact.stage} was made by {encoder.name} with weights {wanted[:12]}…, but those found now are "
            f"{found[:12]}…. Restore the file of weights (or pass the same classifier), or delete {artifact.path} to "
            "compute the features again."
        )
    return encoder
