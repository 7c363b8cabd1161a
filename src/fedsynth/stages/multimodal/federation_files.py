"""What a federated training leaves beside the global weights, as files of its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.stage import StageContext
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.stages.multimodal.training import Trained

PROTOTYPES = "prototypes.safetensors"
UPLOADS = "uploads.safetensors"
MODELS = "client_models.safetensors"


def save_federation(context: StageContext, trained: Trained) -> None:
    """Write the bank, what each client sent in the chosen round, and the clients' models; files only as needed.

    ``prototypes.safetensors``: the server's bank. ``uploads.safetensors``: ``<client>/mean/<modality>`` and
    ``<client>/count/<modality>``. ``client_models.safetensors``: ``<client>/<name within the network>``.
    """
    if (bank := trained.server.get("bank")) is not None:
        context.save(PROTOTYPES, bank)
        context.save(UPLOADS, _flat(trained.server["uploads"]))
    if trained.models:
        context.save(MODELS, _flat(trained.models))


def load_bank(encoder: Artifact) -> ClassPrototypes | None:
    """The server's bank at the chosen round; None for a strategy without."""
    if PROTOTYPES not in encoder.manifest["files"]:
        return None
    return ClassPrototypes.from_tensors(encoder.load(PROTOTYPES))


def load_uploads(encoder: Artifact) -> dict[int, ClassPrototypes]:
    """The prototypes that each client sent in the chosen round, as sent."""
    if UPLOADS not in encoder.manifest["files"]:
        return {}
    sent = _by_client(encoder.load(UPLOADS))
    return {client: ClassPrototypes.from_tensors(tensors) for client, tensors in sent.items()}


def load_models(encoder: Artifact) -> dict[int, dict[str, Tensor]]:
    """Network states of the clients in the chosen round: their own, or what they uploaded."""
    return _by_client(encoder.load(MODELS)) if MODELS in encoder.manifest["files"] else {}


def _flat(by_client: Mapping[Any, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{client}/{name}": tensor for client, named in by_client.items() for name, tensor in named.items()
    }


def _by_client(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    found: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        client, _, name = key.partition("/")
        found.setdefault(int(client), {})[name] = tensor
    return dict(sorted(found.items()))
