"""A trained identity network as selection and audit see it."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fedsynth.errors import DataError
from fedsynth.models.siamese import SiameseNetwork
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.reidentifier.held_out import embed_images


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
