"""A trained DenseNet as other stages use it: logits, probabilities and features of stored images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fedsynth.errors import ArtifactError, DataError
from fedsynth.models.densenet import DenseNetClassifier
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set_kinds import MULTICLASS
from fedsynth.stages.tstr_densenet.augmentation import ten_views
from fedsynth.stages.tstr_densenet.module import gray_levels
from fedsynth.stages.tstr_densenet.network import SHAPE, build_network

CLASSIFIER = "classifier.safetensors"
BATCH_SIZE = 256


@dataclass(frozen=True, eq=False)
class TrainedDenseNet:
    """A classifier of images, in eval mode.

    Attributes:
        network: On ``device``.
        task: ``multiclass`` or ``multilabel``.
        classes: Names of the outputs.
        device: Where it computes; results are on the CPU.
    """

    network: DenseNetClassifier
    task: str
    classes: tuple[str, ...]
    device: str | torch.device = "cpu"

    @property
    def dim(self) -> int:
        """Length of the features."""
        return self.network.dim

    def logits(self, image: UInt8[Tensor, "n 1 h w"], batch_size: int = BATCH_SIZE) -> Float[Tensor, "n k"]:
        """Of the whole image, one view."""
        return self._batched(image, batch_size, self.network)

    def features(self, image: UInt8[Tensor, "n 1 h w"], batch_size: int = BATCH_SIZE) -> Float[Tensor, "n d"]:
        """Pooled features before the last layer, not normalized."""
        return self._batched(image, batch_size, self.network.features)

    def probability(
        self,
        image: UInt8[Tensor, "n 1 h w"],
        batch_size: int = BATCH_SIZE,
        *,
        ten_crop: int | None = None,
    ) -> Float[Tensor, "n k"]:
        """Softmax over the classes, or a sigmoid for each label.

        Args:
            image: Gray levels.
            batch_size: Images at a time.
            ten_crop: Side to which images are resized before the ten crops whose probabilities are averaged; None
                takes the whole image.
        """
        if ten_crop is None:
            return self._normalized(self.logits(image, batch_size))
        size = self.network.input_size
        if size is None or ten_crop < size:
            raise DataError(f"ten_crop must be at least the size of a crop, {size}, got {ten_crop}.")

        def averaged(gray: Tensor) -> Tensor:
            views = ten_views(gray, ten_crop, size)
            return torch.stack([self._normalized(self.network(view)) for view in views]).mean(0)

        return self._batched(image, batch_size, averaged)

    def _normalized(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) if self.task == MULTICLASS else logits.sigmoid()

    @torch.inference_mode()
    def _batched(self, image: Tensor, batch_size: int, apply: object) -> Tensor:
        if image.dtype != torch.uint8 or image.ndim != 4 or image.shape[1] != 1:
            raise DataError(
                f"A classifier takes uint8 images [n, 1, height, width], got {image.dtype} {list(image.shape)}."
            )
        if len(image) == 0:
            raise DataError("A classifier was given no images.")
        parts = [apply(gray_levels(part.to(self.device))).float().cpu() for part in image.split(batch_size)]  # type: ignore[operator]
        return torch.cat(parts)


def weights_file(seeds: Sequence[int], seed: int) -> str:
    """Name of the file with the classifier of a seed: that of the first has no number."""
    return CLASSIFIER if seed == seeds[0] else CLASSIFIER.replace(".", f"-{seed}.")


def open_densenet(
    artifact: Artifact, device: str | torch.device = "cpu", seed: int | None = None
) -> TrainedDenseNet:
    """The classifier of a ``tstr_densenet`` stage.

    Args:
        artifact: Of the stage.
        device: Where it computes.
        seed: Which of those the stage trained; None takes its first.

    Raises:
        ArtifactError: If the stage has no classifier of that seed, or the stored weights do not fit the stored settings.
    """
    settings, notes = artifact.manifest["settings"], artifact.manifest["notes"]
    if seed is not None and seed not in settings["seeds"]:
        raise ArtifactError(
            f"stages.{artifact.stage} has classifiers of the seeds {settings['seeds']}, none of seed {seed}. Name one "
            "of those, or add it to image_classifier.seeds."
        )
    name = CLASSIFIER if seed is None else weights_file(settings["seeds"], seed)
    network = build_network({key: settings[key] for key in SHAPE}, len(notes["classes"]))
    try:
        network.load_state_dict(artifact.load(name))
    except RuntimeError as error:
        raise ArtifactError(
            f"{name} of stages.{artifact.stage} does not fit its own settings: {str(error).splitlines()[0]} "
            "Compute that stage anew: force=[its name]."
        ) from error
    # inference_mode tensors would not do for callers that take gradients; these weights never need any.
    network.eval().requires_grad_(False).to(device)
    return TrainedDenseNet(network, notes["task"], tuple(notes["classes"]), device)
