"""Make the codec, fit the moments of its training latents, and keep the standardized latents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsynth.data.image_codec import (
    ImageCodec,
    LatentStatistics,
    PixelUnshuffle,
    StandardizedCodec,
    identity_codec,
    unit_images,
)
from fedsynth.errors import ConfigError
from fedsynth.models.autoencoder import AutoencoderCodec, load_autoencoder
from fedsynth.models.inputs import ModelInputError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Metric, Outcome, StageContext
from fedsynth.seeding import derive_seed
from fedsynth.stages.computing_device import computing_device
from fedsynth.stages.image_codec.datamodule import ImagesData
from fedsynth.stages.image_codec.encoding import encode_pieces
from fedsynth.stages.image_codec.module import SmallAutoencoder
from fedsynth.stages.image_codec.spec import (
    ImageCodecSettings,
    SmallAutoencoderOptions,
    StoredAutoencoderOptions,
    UnshuffleOptions,
)
from fedsynth.stages.image_codec.stored import CODEC_FILE, LATENTS_FILE, codec_notes, codec_tensors
from fedsynth.stages.image_set import ImageSet, read_image_set
from fedsynth.stages.training import History, batch_share, fit, seed_everything

NUM_RECONSTRUCTED = 256


@dataclass(frozen=True)
class _Made:
    """A codec, what is to be noted of it, and the curve of its training if there was one."""

    codec: ImageCodec
    notes: dict[str, Any]
    history: History | None = None


def run(settings: ImageCodecSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """Codec, moments of its training latents, standardized latents of training and validation images."""
    images = {split: read_image_set(inputs["images"], split) for split in ("train", "val")}
    made = _make_codec(settings, images["train"], context)
    if context.rank != 0:
        return Outcome()
    raw = {split: _encode(made.codec, one, split, settings, context) for split, one in images.items()}
    statistics = LatentStatistics.fit(raw["train"], settings.options().per_channel)
    codec = StandardizedCodec(made.codec, statistics, settings.sigma_data)
    context.save(CODEC_FILE, {**statistics.to_tensors(), **codec_tensors(made.codec)})
    latents = {f"{split}.latent": codec.standardize(latent) for split, latent in raw.items()}
    context.save(LATENTS_FILE, latents)
    if made.history is not None:
        made.history.write(context.output)
    error = _reconstruction_error(codec, images["val"], latents["val.latent"], settings, context)
    notes = {
        "codec": settings.options().name,
        "sigma_data": settings.sigma_data,
        **codec_notes(made.codec),
        **made.notes,
    }
    return Outcome(
        metrics=[Metric("image_codec", "val/reconstruction_error", error, settings.seed)], notes=notes
    )


def _make_codec(settings: ImageCodecSettings, train: ImageSet, context: StageContext) -> _Made:
    options, key = settings.options(), f"stages.{context.name}.codec"
    channels, height, width = train.image.shape[1:]
    shape = (channels, height, width)
    try:
        if isinstance(options, UnshuffleOptions):
            return _Made(PixelUnshuffle(shape, options.factor), {})
        if isinstance(options, SmallAutoencoderOptions):
            return _train(options, settings.seed, train, context)
        if isinstance(options, StoredAutoencoderOptions):
            return _load(options, shape, context, key)
        return _Made(identity_codec(shape), {})
    except (ModelInputError, ConfigError) as error:
        if getattr(error, "key", ""):
            raise
        raise ConfigError(f"{key} ({options.name}): {error}", key=key) from error


def _load(
    options: StoredAutoencoderOptions, shape: tuple[int, int, int], context: StageContext, key: str
) -> _Made:
    try:
        autoencoder = load_autoencoder(
            str(Path(options.weights).expanduser()) if options.weights.startswith("~") else options.weights,
            subfolder=options.subfolder,
            revision=options.revision,
            allow_download=options.allow_download,
        )
    except ModelInputError as error:
        raise ConfigError(
            f"{error} Set codec.weights to a local folder in diffusers' layout, or codec.allow_download=true to fetch "
            "it once.",
            key=f"{key}.weights",
        ) from error
    found = weights_digest(autoencoder)
    if options.sha256 not in (None, found):
        raise ConfigError(
            f"The weights of {options.weights} have the digest {found}, wanted {options.sha256}. Get the weights "
            "again, or set codec.sha256 to null.",
            key=f"{key}.sha256",
        )
    codec = AutoencoderCodec(
        autoencoder.to(computing_device(context)), shape, options.pixel_range, options.posterior
    )
    return _Made(codec, {"weights": options.weights, "weights_sha256": found})


def _train(options: SmallAutoencoderOptions, seed: int, train: ImageSet, context: StageContext) -> _Made:
    channels, height, width = train.image.shape[1:]
    own_seed = derive_seed(seed, "image_codec")
    seed_everything(own_seed)
    module = SmallAutoencoder(
        image_channels=channels,
        latent_channels=options.latent_channels,
        channels=list(options.channels),
        blocks_per_level=options.blocks_per_level,
        kl_weight=options.kl_weight,
        learning_rate=options.learning_rate,
        noise_seed=derive_seed(seed, "image_codec", "noise"),
    )
    # Before the training: it refuses images that the levels do not divide.
    shape = (channels, height, width)
    AutoencoderCodec(module.network, shape)
    module.network.train().requires_grad_(True)
    data = ImagesData(
        train.image,
        batch_size=batch_share(options.batch_size, context),
        seed=own_seed,
        rank=context.rank,
        world_size=context.world_size,
    )
    arguments = {"max_epochs": options.epochs}
    history = fit(module, data, context, network=module.network, trainer_arguments=arguments)
    network = module.network.to(computing_device(context))
    codec = AutoencoderCodec(network, shape, "unit", options.posterior)
    return _Made(codec, {"training_images": len(train), "epochs": len(history.rows)}, history)


def _encode(
    codec: ImageCodec, images: ImageSet, split: str, settings: ImageCodecSettings, context: StageContext
) -> Tensor:
    pieces = encode_pieces(
        codec,
        images.image,
        seed=derive_seed(settings.seed, "image_codec", split),
        batch_size=settings.batch_size,
        key=f"stages.{context.name}.batch_size",
        device=computing_device(context),
        folder=context.scratch / "latents" / split if isinstance(codec, AutoencoderCodec) else None,
    )
    # From the codec's own shape: there may be no image to encode.
    return torch.cat([torch.empty(0, *codec.latent_shape), *pieces])


def _reconstruction_error(
    codec: StandardizedCodec,
    images: ImageSet,
    latent: Tensor,
    settings: ImageCodecSettings,
    context: StageContext,
) -> float:
    """Mean |x - x̂| of the first validation images, of values in [0, 1]; 0 for an exact codec, NaN without images."""
    few = latent[:NUM_RECONSTRUCTED].to(computing_device(context))
    decoded = [codec.decode(part).clamp(0, 1).cpu() for part in few.split(settings.batch_size)]
    if not decoded or not len(few):
        return float("nan")
    # Rounded to grey levels, as images are stored: a codec is exact if no level changes.
    rounded = (torch.cat(decoded) * 255).round() / 255
    return float((rounded - unit_images(images.image[: len(few)])).abs().mean())


def weights_digest(network: nn.Module) -> str:
    """SHA-256 of the names and values of all weights, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
