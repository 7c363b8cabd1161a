"""The release of the clients, in the variant that the settings name."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import Outcome, StageContext
from fedsynth.stages.release.means import release_means
from fedsynth.stages.release.moments import release_moments_of_clients
from fedsynth.stages.release.spec import ReleaseSettings

log = logging.getLogger(__name__)


def run(settings: ReleaseSettings, inputs: Mapping[str, Artifact], context: StageContext) -> Outcome:
    """``release.safetensors``, and the ledger entry that pays for it."""
    latents = inputs["latents"].load("latents.safetensors")
    largest = int(latents["train.client"].bincount().max())
    if settings.is_private and settings.delta >= 1 / largest:
        log.warning(
            "stages.%s.delta=%g is not below 1 / %d, the records of the largest client: a mechanism that publishes "
            "one record at random would satisfy it. Typical: 1e-5.",
            context.name, settings.delta, largest,
        )  # fmt: skip
    make = release_means if settings.variant == "means" else release_moments_of_clients
    return make(settings, latents, context)
