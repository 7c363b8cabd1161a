"""The classifier of speech segments: what it learns from which records, in which order it answers, resuming."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss, recall_score
from tiny_federations import SYSTEMS, WITH_PROTOTYPES, history, killed_at, of_client, strategy
from tiny_speech import speech_artifact, speech_settings, tiny_speech, train_speech
from tiny_stages import artifact, equal
from torch import Tensor

from fedsynth.data.speech import SpeechClients, SpeechSplit
from fedsynth.errors import ArtifactError, ConfigError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.settings import build_settings
from fedsynth.prototypes.class_prototypes import ClassPrototypes
from fedsynth.stages.multimodal.trained import open_classifier
from fedsynth.stages.speech_classifier.datamodule import SpeechClientsData
from fedsynth.stages.speech_classifier.network import load_network, predict
from fedsynth.stages.speech_classifier.spec import SpeechClassifierSettings

PATH = "stages.speech"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return speech_artifact(tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, stored: Artifact) -> Any:
    """A system by name, trained once."""
    return cache(lambda system: train_speech(tmp_path_factory.mktemp(system), stored, system))


def some(split: SpeechSplit, rows: Tensor) -> SpeechSplit:
    """Some segments of a split, in the order asked for."""
    return SpeechSplit(**{field.name: getattr(split, field.name)[rows] for field in fields(SpeechSplit)})


# -- training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_trains_and_leaves_what_it_has(trained: Any, system: str) -> None:
    made = trained(system)
    wanted = {"model.safetensors", "history.json"}
    wanted |= {"prototypes.safetensors", "uploads.safetensors"} if system in WITH_PROTOTYPES else set()
    wanted |= {"client_models.safetensors"} if system in {*WITH_PROTOTYPES, "local"} else set()
    assert set(made.manifest["files"]) == wanted
    rows = history(made)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    (entry,) = made.manifest["ledger"]
    assert entry["epsilon"] == "inf"


def test_it_learns_what_can_be_learned(tmp_path: Path, stored: Artifact) -> None:
    rows = history(train_speech(tmp_path, stored, "fedavg", rounds=6))
    assert max(row["val/uar"] for row in rows) == 1.0
    assert rows[-1]["val/loss"] < 0.5 * rows[0]["val/loss"]


def test_prototypes_are_of_audio_text_and_fused_segments(trained: Any) -> None:
    bank = ClassPrototypes.from_tensors(trained("fedmpa").load("prototypes.safetensors"))
    label = tiny_speech().train.label
    assert sorted(bank.modalities) == ["audio", "fused", "text"]
    for modality in bank.modalities:
        assert bank.mean[modality].shape == (2, 6)
        assert bank.count[modality].tolist() == torch.bincount(label).tolist()


def test_the_kept_model_is_validated_as_it_is_stored(trained: Any) -> None:
    made, val = trained("fedmpa"), tiny_speech().val
    row = history(made)[made.manifest["notes"]["round"] - 1]
    logits, _ = predict(load_network(made, val), val)
    probability = logits.double().softmax(1).numpy()
    assert row["val/loss"] == pytest.approx(log_loss(val.label, probability), rel=1e-5)
    assert row["val/uar"] == pytest.approx(recall_score(val.label, probability.argmax(1), average="macro"))


@pytest.mark.parametrize("system", ["fedmpa", "fedproto", "centralized"])
def test_a_killed_training_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, stored: Artifact, trained: Any, system: str
) -> None:
    train = partial(train_speech, tmp_path / "killed", stored, system)
    killed_at(1, train)
    torch.rand(3)
    resumed, undisturbed = train(), trained(system)
    assert resumed.manifest["files"].keys() == undisturbed.manifest["files"].keys()
    for file in [name for name in resumed.manifest["files"] if name.endswith(".safetensors")]:
        assert equal(resumed.load(file), undisturbed.load(file)), file
    assert history(resumed) == history(undisturbed)


def test_padding_has_no_influence_on_training(tmp_path: Path, stored: Artifact, trained: Any) -> None:
    speech = tiny_speech()
    longer = {
        name: replace(
            getattr(speech, name),
            audio=torch.nn.functional.pad(getattr(speech, name).audio, (0, 0, 0, 4)),
            text=torch.nn.functional.pad(getattr(speech, name).text, (0, 0, 0, 2)),
        )
        for name in ("train", "val", "test")
    }
    clients = speech_artifact(tmp_path, SpeechClients(**longer, report={}))
    made = train_speech(tmp_path / "stage", clients, "fedavg")
    assert equal(made.load("model.safetensors"), trained("fedavg").load("model.safetensors"))


# -- batches --------------------------------------------------------------------------------------------------


def seen(loader: Any) -> list[tuple[int, int, int]]:
    """Participant, frames and utterances of every segment of an epoch."""
    columns = ("participant", "audio_length", "text_length")
    return [
        row
        for batch in loader
        for row in zip(*(batch[name].tolist() for name in columns), strict=True)
    ]  # fmt: skip


def test_every_client_s_loader_holds_its_own_segments_once_an_epoch() -> None:
    speech = tiny_speech()
    train = speech.train
    loaders = SpeechClientsData(speech, batch_size=4, seed=0).train_dataloader().iterables
    assert list(loaders) == [0, 1]
    for client, loader in loaders.items():
        own = some(train, (train.client == client).nonzero().flatten())
        wanted = zip(
            own.participant.tolist(), own.audio_length.tolist(), own.text_length.tolist(), strict=True
        )
        assert sorted(seen(loader)) == sorted(wanted)


def test_pooled_batches_hold_every_segment_once_an_epoch_and_ranks_share_them() -> None:
    speech = tiny_speech()
    pooled = partial(SpeechClientsData, speech, batch_size=4, seed=0, centralized=True)
    whole = seen(pooled().train_dataloader())
    assert len(whole) == len(speech.train)
    shares = [seen(pooled(rank=rank, world_size=2).train_dataloader()) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1])
    assert set(shares[0]) | set(shares[1]) == set(whole)


def test_batches_end_where_their_longest_segment_does() -> None:
    for batch in SpeechClientsData(tiny_speech(), batch_size=4, seed=0, centralized=True).train_dataloader():
        assert batch["audio"].shape[1] == int(batch["audio_length"].max())
        assert batch["text"].shape[1] == int(batch["text_length"].max())


# -- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["fedmpa", "fedproto", "centralized"])
def test_outputs_come_in_the_order_of_the_records_whatever_the_batches(
    stored: Artifact, trained: Any, system: str
) -> None:
    made, speech = trained(system), tiny_speech()
    opened = open_classifier(made, stored)
    states: list[dict[str, Tensor] | None] = [None]
    if system == "fedproto":
        states = [of_client(made.load("client_models.safetensors"), client) for client in (0, 1)]
    for name in ("train", "val", "test"):
        split, found = getattr(speech, name), opened.outputs(name)
        assert torch.equal(found.label, split.label)
        assert torch.equal(found.group, split.participant), "a segment belongs to its participant"
        assert torch.equal(found.client, split.client)
        for index, state in enumerate(states):
            network = load_network(made, split)
            network.load_state_dict({**network.state_dict(), **(state or {})})
            for row in range(len(split)):  # one by one, without any padding
                frames, said = int(split.audio_length[row]), int(split.text_length[row])
                with torch.inference_mode():
                    alone = network(
                        split.audio[row : row + 1, :frames], split.audio_length[row : row + 1],
                        split.text[row : row + 1, :said], split.text_length[row : row + 1],
                    )  # fmt: skip
                torch.testing.assert_close(found.logits[index, row], alone.logits[0], atol=1e-5, rtol=1e-5)
                for modality, embedding in alone.embeddings.items():
                    torch.testing.assert_close(
                        found.embeddings[modality][index, row], embedding[0], atol=1e-5, rtol=1e-5
                    )


@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_answers_depend_neither_on_company_nor_on_order(trained: Any, batch_size: int) -> None:
    made, split = trained("fedmpa"), tiny_speech().train
    network = load_network(made, split)
    logits, embeddings = predict(network, split)
    shuffled = torch.randperm(len(split), generator=torch.Generator().manual_seed(3))
    again, others = predict(network, some(split, shuffled), batch_size=batch_size)
    torch.testing.assert_close(again, logits[shuffled], atol=1e-5, rtol=1e-5)
    for modality, embedding in embeddings.items():
        torch.testing.assert_close(others[modality], embedding[shuffled], atol=1e-5, rtol=1e-5)
    assert len({tuple(row) for row in logits.round(decimals=4).tolist()}) > len(split) / 2, (
        "they differ at all"
    )


def test_uploads_are_the_class_means_of_the_client_s_own_segments(stored: Artifact, trained: Any) -> None:
    opened = open_classifier(trained("fedmpa"), stored)
    for client, sent in opened.uploads.items():
        outputs = opened.client_outputs(client, "train")
        for modality in ("audio", "text", "fused"):
            for label in (0, 1):
                own = (outputs.client == client) & (outputs.label == label)
                mean = outputs.embeddings[modality][0][own].double().mean(0)
                torch.testing.assert_close(sent.mean[modality][label].double(), mean, atol=1e-5, rtol=1e-4)


# -- refusals -------------------------------------------------------------------------------------------------


def refused(**changes: Any) -> ConfigError:
    values = {**vars(speech_settings()), **changes}
    assert build_settings(SpeechClassifierSettings, vars(speech_settings()), PATH)
    with pytest.raises(ConfigError) as caught:
        build_settings(SpeechClassifierSettings, values, PATH)
    return caught.value


def test_fedbn_is_refused_for_a_network_without_batch_normalization() -> None:
    error = refused(strategy=strategy("fedbn"))
    assert error.key == f"{PATH}.strategy.name"
    assert str(error).startswith(f"{PATH}.strategy.name must not be fedbn")
    assert f"strategy@{PATH}.strategy=fedavg" in str(error)


@pytest.mark.parametrize(("hidden_dim", "num_heads"), [(9, 3), (8, 3)])
def test_a_width_that_cannot_be_split_is_refused(hidden_dim: int, num_heads: int) -> None:
    error = refused(hidden_dim=hidden_dim, num_heads=num_heads)
    assert error.key == f"{PATH}.hidden_dim"
    assert f"must be even and a multiple of num_heads={num_heads}, got {hidden_dim}" in str(error)


def test_segments_without_a_tensor_are_refused(tmp_path: Path, stored: Artifact) -> None:
    tensors = stored.load("speech.safetensors")
    del tensors["val/text_length"]
    broken = artifact(tmp_path / "broken" / "output", {"speech.safetensors": tensors})
    with pytest.raises(ArtifactError, match="val/text_length"):
        train_speech(tmp_path / "stage", broken)
