"""A trained identity network as selection and audit see it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64, UInt8
from safetensors import safe_open
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.models.siamese import SiameseNetwork
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.image_set import IMAGES_FILE
from fedsynth.stages.reidentifier.held_out import embed_images

#: Numbers of the patients whose images trained the network; not there if they are unknown.
PATIENTS_FILE = "patients.safetensors"


class Reidentifier:
    """P(x, x') of images, in evaluation mode: embed every image once, then compare embeddings.

    Args:
        network: The calibrated network.
        image_size: Height and width of the images it was trained on.
    """

    def __init__(self, network: SiameseNetwork, image_size: tuple[int, int]) -> None:
        self.network, self.image_size = network.eval().requires_grad_(False), image_size

    def embed(self, image: UInt8[Tensor, "n 1 h w"], batch_size: int = 256) -> Float[Tensor, "n e"]:
        """Embeddings, on the network's device; those of an image do not depend on the others of its batch.

        Raises:
            DataError: For images of another size than those trained on, of several channels, or not uint8.
        """
        if image.dtype != torch.uint8 or image.shape[1:] != (1, *self.image_size):
            raise DataError(
                f"The identity network was trained on uint8 images of shape [n, 1, {self.image_size[0]}, "
                f"{self.image_size[1]}], got {image.dtype} {list(image.shape)}. Resize or convert them first."
            )
        return embed_images(self.network, image, batch_size)

    @torch.inference_mode()
    def probability(self, first: Float[Tensor, "n e"], second: Float[Tensor, "n e"]) -> Float[Tensor, " n"]:
        """P(x, x') of pairs of embeddings, for equal prior probabilities of one person and of two."""
        return self.network.probability(first, second)


def open_reidentifier(artifact: Artifact, device: str | torch.device = "cpu") -> Reidentifier:
    """The network of a ``reidentifier`` stage.

    Raises:
        ArtifactError: If the artifact holds none.
    """
    notes = artifact.manifest["notes"]
    network = SiameseNetwork(**notes["network"])
    network.load_state_dict(artifact.load("reidentifier.safetensors"))
    height, width = notes["image_shape"][1:]
    return Reidentifier(network.to(device), (height, width))


def check_strangers(reidentifier: Artifact, images: Artifact, stage: str) -> bool:
    """Refuse an identity network that was trained on persons whom these images hold out.

    Their pairs would be recognized from memory, and error rates on them be too good.

    Args:
        reidentifier: Of a ``reidentifier`` stage.
        images: Real images; their splits val and test are compared.
        stage: Name of the stage that asks, for messages.

    Returns:
        Whether patients of both are known; otherwise nothing was compared.

    Raises:
        DataError: With the number of persons, by split.
    """
    if PATIENTS_FILE not in reidentifier.manifest["files"]:
        return False
    trained_on, is_known = reidentifier.load(PATIENTS_FILE)["train"], False
    for split in ("val", "test"):
        patient = _patients(images, split)
        if patient is None:
            continue
        is_known = True
        shared = patient[torch.isin(patient, trained_on)].unique()
        if len(shared):
            raise DataError(
                f"stages.{stage}.inputs.reidentifier={reidentifier.stage} was trained on {len(shared)} patients whom "
                f"{images.stage} holds out in {split} (numbers {', '.join(map(str, shared[:5].tolist()))}). Train it on "
                "images of the same split (data.split_seed, data.num_sites)."
            )
    return is_known


def _patients(images: Artifact, split: str) -> Int64[Tensor, " n"] | None:
    """Read alone: the images of a split may be gigabytes."""
    with safe_open(images.file(IMAGES_FILE), framework="pt") as file:
        name = f"{split}.patient"
        return file.get_tensor(name) if name in file.keys() else None  # noqa: SIM118
