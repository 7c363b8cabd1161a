"""A trained classifier as evaluations and attacks see it: the answers of its networks, nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_federations import NOISE, PERSONAL, SYSTEMS, WITH_PROTOTYPES, history, of_client, train_system
from tiny_stages import artifact, equal, tiny_pairs
from torch import Tensor

from fedsynth.data.paired import GLOBAL, PairedClients
from fedsynth.errors import ArtifactError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.stages.fusion_encoder.network import load_network, predict
from fedsynth.stages.multimodal.trained import Split, open_classifier

SPLITS: tuple[Split, ...] = ("train", "val", "test")
EVERY = (*SYSTEMS, "fedbn")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("opened") / "clients" / "output"
    return artifact(folder, {"pairs.safetensors": tiny_pairs().to_tensors()})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, stored: Artifact) -> Any:
    """A system by name, trained once."""
    return cache(lambda system: train_system(tmp_path_factory.mktemp(system), stored, system))


def answers(
    encoder: Artifact, split: Any, own: dict[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Of the stored network, with some of its tensors replaced."""
    network = load_network(encoder)
    network.load_state_dict({**network.state_dict(), **(own or {})})
    output = predict(network, split.image, split.ecg)
    return output.logits, {"image": output.image, "ecg": output.ecg, "fused": output.latent}


@pytest.mark.parametrize("system", EVERY)
def test_outputs_are_the_answers_of_the_networks(stored: Artifact, trained: Any, system: str) -> None:
    encoder = trained(system)
    opened = open_classifier(encoder, stored)
    pairs = PairedClients.from_tensors(stored.load("pairs.safetensors"))
    models: list[dict[str, Tensor] | None] = [None]
    if system in PERSONAL:
        tensors = encoder.load("client_models.safetensors")
        models = [of_client(tensors, client) for client in (0, 1)]
    assert opened.num_models == len(models)
    for name in SPLITS:
        split, found = getattr(pairs, name), opened.outputs(name)
        assert found.logits.shape == (len(models), len(split.label), 2)
        assert found.logits.dtype == torch.float32
        for index, own in enumerate(models):
            logits, embeddings = answers(encoder, split, own)
            assert torch.equal(found.logits[index], logits)
            assert equal({name: z[index] for name, z in found.embeddings.items()}, embeddings)
        assert torch.equal(found.label, split.label)
        assert torch.equal(found.group, split.image_id), "a pair belongs to nobody but itself"
        assert torch.equal(found.client, split.client)
        assert bool((found.client == GLOBAL).all()) == (name != "train")


@pytest.mark.parametrize("system", [*WITH_PROTOTYPES, "local", "fedbn"])
def test_outputs_of_a_client_are_those_of_the_weights_it_sent_or_kept(
    stored: Artifact, trained: Any, system: str
) -> None:
    encoder = trained(system)
    opened, tensors = open_classifier(encoder, stored), encoder.load("client_models.safetensors")
    test = PairedClients.from_tensors(stored.load("pairs.safetensors")).test
    found = {client: opened.client_outputs(client, "test") for client in (0, 1)}
    for client, outputs in found.items():
        logits, embeddings = answers(encoder, test, of_client(tensors, client))
        assert torch.equal(outputs.logits, logits.unsqueeze(0))
        assert equal({name: z[0] for name, z in outputs.embeddings.items()}, embeddings)
    assert not torch.equal(found[0].logits, found[1].logits)
    if system in PERSONAL:
        both = torch.cat([found[0].logits, found[1].logits])
        assert torch.equal(both, opened.outputs("test").logits)
    with pytest.raises(ArtifactError, match=r"client 2 were not kept; there are those of \[0, 1\]"):
        opened.client_outputs(2, "test")


@pytest.mark.parametrize("system", ["fedavg", "fedprox", "centralized"])
def test_systems_that_keep_no_uploads_say_so(stored: Artifact, trained: Any, system: str) -> None:
    opened = open_classifier(trained(system), stored)
    assert opened.prototypes is None
    assert opened.uploads == {}
    with pytest.raises(
        ArtifactError, match=r"The weights of client 0 were not kept; there are those of \[\]"
    ):
        opened.client_outputs(0, "train")


@pytest.mark.parametrize("system", WITH_PROTOTYPES)
@pytest.mark.parametrize("clip_radius", [None, 0.5])
def test_uploads_are_the_class_means_of_what_the_client_s_own_weights_say_of_its_records(
    tmp_path: Path, stored: Artifact, trained: Any, system: str, clip_radius: float | None
) -> None:
    if clip_radius is None:
        encoder = trained(system)
    else:  # clipped, but without noise
        clipping = {**NOISE, "epsilon": float("inf"), "clip_radius": clip_radius}
        encoder = train_system(tmp_path, stored, system, prototype_privacy=clipping)
    opened = open_classifier(encoder, stored)
    assert opened.prototypes is not None
    assert list(opened.uploads) == [0, 1]
    for client, sent in opened.uploads.items():
        outputs = opened.client_outputs(client, "train")
        assert sent.modalities == opened.prototypes.modalities
        for modality in sent.modalities:
            embedding = outputs.embeddings[modality][0].double()
            if clip_radius is not None:
                embedding *= (clip_radius / embedding.norm(dim=1, keepdim=True)).clamp(max=1.0)
            for label in (0, 1):
                own = (outputs.client == client) & (outputs.label == label)
                mean = embedding[own].mean(0)
                torch.testing.assert_close(sent.mean[modality][label].double(), mean, atol=1e-6, rtol=1e-5)
                assert int(sent.count[modality][label]) == int(own.sum())


def test_an_encoder_of_one_modality_has_no_embedding_of_the_other(tmp_path: Path, stored: Artifact) -> None:
    opened = open_classifier(train_system(tmp_path, stored, "fedmpa", rounds=1, modalities=["image"]), stored)
    found = opened.outputs("val")
    assert list(found.embeddings) == ["image", "fused"]
    assert opened.prototypes is not None
    assert set(opened.prototypes.modalities) == set(found.embeddings)


@pytest.mark.parametrize("system", ["fedmpa", "centralized"])
def test_the_curve_and_the_nature_of_the_data_come_along(stored: Artifact, trained: Any, system: str) -> None:
    encoder = trained(system)
    opened = open_classifier(encoder, stored)
    assert opened.history == history(encoder)
    assert opened.simulated is False
    encoder.manifest["simulated"] = True
    try:
        assert open_classifier(encoder, stored).simulated is True
    finally:
        encoder.manifest["simulated"] = False


def test_what_is_no_classifier_cannot_be_opened(stored: Artifact) -> None:
    stored.manifest["kind"] = "clients"
    with pytest.raises(
        ArtifactError,
        match="clients is a clients, not a trained classifier: fusion_encoder, speech_classifier",
    ):
        open_classifier(stored, stored)
