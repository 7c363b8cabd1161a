"""What two networks say of candidates: the identity network's P(x, x') and the classifier's predicates."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fedsynth.data.image_codec import StandardizedCodec, grey_levels
from fedsynth.selection.identity_filter import largest_probability, source_probability
from fedsynth.selection.ranking import predicate_loss
from fedsynth.stages.image_set import ImageSet
from fedsynth.stages.out_of_memory import with_smaller_batches
from fedsynth.stages.reidentifier.trained import Reidentifier
from fedsynth.stages.tstr_densenet.trained import TrainedDenseNet


class CandidateScorer:
    """Scores candidates of rows of the training images, which are embedded once.

    Args:
        codec: Latents to images.
        images: The training images.
        rows: Those that have candidates.
        reidentifier: None without an identity filter.
        classifier: C_r; None if nothing is ranked by predicates.
        against_train: Whether the largest P over all training images is wanted.
        batch_statistics: Run the identity network's BatchNorm in training mode, one source at a time, as the
            released code of PSO-secure sharing does by omission.
        batch_size: Images at a time; halved, with a message, where memory runs out, and kept so.
        key: Config key of the batch size, for messages.
        device: Of the codec.
    """

    def __init__(
        self,
        codec: StandardizedCodec,
        images: ImageSet,
        rows: Int64[Tensor, " r"],
        reidentifier: Reidentifier | None,
        classifier: TrainedDenseNet | None,
        *,
        against_train: bool,
        batch_statistics: bool,
        batch_size: int,
        key: str,
        device: torch.device | str = "cpu",
    ) -> None:
        self.codec, self.images = codec, images
        self.reidentifier, self.classifier = reidentifier, classifier
        self.batch_statistics, self.batch_size, self.key, self.device = (
            batch_statistics,
            batch_size,
            key,
            device,
        )
        # Where a training row lies in what is kept of the real images.
        self.place = torch.full((len(images),), -1).scatter(0, rows, torch.arange(len(rows)))
        self.predicates = self._predicates(images.image[rows]) if classifier else None
        self.train_embedding: Tensor | None = None
        self.source_embedding: Tensor | None = None
        if reidentifier is not None and not batch_statistics:
            self.source_embedding = self._embed(images.image[rows])
            self.train_embedding = self._embed(images.image) if against_train else None

    def pictures(self, latent: Float[Tensor, "m c h w"]) -> UInt8[Tensor, "m k i j"]:
        """The images of latents, in grey levels, on the CPU."""

        def decode(size: int) -> Tensor:
            parts = [self.codec.decode(part.to(self.device).float()) for part in latent.split(size)]
            return torch.cat([grey_levels(part).cpu() for part in parts])

        with torch.inference_mode():
            return self._fitting(decode)

    def score(
        self, rows: Int64[Tensor, " s"], latent: Float[Tensor, "s b c h w"]
    ) -> dict[str, Float[Tensor, "s b"]]:
        """``loss`` and, with an identity network, ``probability`` and ``largest``.

        ``loss`` is BCE(C_r(x), C_r(x')), or 0 without classifier; ``probability`` is P(x, x'); ``largest``, if asked
        for, the largest P of x' and any training image.
        """
        number, place = latent.shape[1], self.place[rows]
        picture = self.pictures(latent.flatten(0, 1))
        scores = {"loss": torch.zeros(len(rows), number)}
        if self.predicates is not None:
            own = self._predicates(picture).reshape(len(rows), number, -1)
            scores["loss"] = predicate_loss(self.predicates[place], own)
        if self.reidentifier is None:
            return scores
        if self.batch_statistics:
            return scores | {"probability": self._with_batch_statistics(rows, picture, number)}
        assert self.source_embedding is not None
        embedding = self._embed(picture)
        source = self.source_embedding[place.to(embedding.device)]
        grouped = embedding.reshape(len(rows), number, -1)
        scores["probability"] = source_probability(self.reidentifier.probability, source, grouped).cpu()
        if self.train_embedding is not None:
            scores["largest"] = self._largest(embedding).reshape(len(rows), number)
        return scores

    def largest_of(self, image: UInt8[Tensor, "n k i j"]) -> Float[Tensor, " n"]:
        """The largest P of each image and any training image."""
        return self._largest(self._embed(image))

    def _largest(self, embedding: Tensor) -> Tensor:
        assert self.reidentifier is not None
        assert self.train_embedding is not None
        return largest_probability(self.reidentifier.probability, embedding, self.train_embedding).cpu()

    def _embed(self, image: Tensor) -> Tensor:
        assert self.reidentifier is not None
        network = self.reidentifier
        return self._fitting(lambda size: network.embed(image, size))

    def _predicates(self, image: Tensor) -> Tensor:
        assert self.classifier is not None
        return self.answers_of(self.classifier, image)  # fidelity: predicate-probabilities

    def answers_of(
        self, classifier: TrainedDenseNet, image: UInt8[Tensor, "n k i j"]
    ) -> Float[Tensor, "n l"]:
        """What a classifier says of images: softmax over classes, or a sigmoid a label."""
        return self._fitting(lambda size: classifier.probability(image, size))

    def _fitting(self, work: Callable[[int], Tensor]) -> Tensor:
        result, self.batch_size = with_smaller_batches(work, self.batch_size, self.key)
        return result

    @torch.inference_mode()
    def _with_batch_statistics(self, rows: Tensor, picture: Tensor, number: int) -> Tensor:
        """Each source's candidates are one batch, and so are as many copies of the source."""
        assert self.reidentifier is not None
        # A copy: its running averages change, though nothing in training mode reads them.
        network = copy.deepcopy(self.reidentifier.network).train()
        verdicts = []
        for row, own in zip(rows, picture.split(number), strict=True):
            real = self.images.image[row : row + 1].expand(number, -1, -1, -1)
            embedded = [network(network.pixels(part.to(network.scale.device))) for part in (real, own)]
            verdicts.append(network.probability(*embedded).cpu())
        return torch.stack(verdicts)
