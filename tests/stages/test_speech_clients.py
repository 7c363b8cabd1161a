"""The stage ``speech_clients``: from the files of a corpus to what each client holds, checked before all else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import run_stage, stage_context

from fedsynth.data.edaic import sessions
from fedsynth.data.edaic.source import CorpusRequest, locate_corpus
from fedsynth.data.paired import SPLITS
from fedsynth.data.source_files import DataSource
from fedsynth.data.speech import SpeechClients
from fedsynth.errors import ConfigError, DataError
from fedsynth.pipeline.artifacts import Artifact
from fedsynth.pipeline.planner import plan_stages
from fedsynth.pipeline.settings import build_settings
from fedsynth.pipeline.stage import Sensitivity, Side, find_stage
from fedsynth.run_settings import check_run_settings
from fedsynth.run_sources import planner_sources
from tiny_edaic import PEOPLE, change, config, features, stage_values, transcript, write_corpus

TINY = {
    "num_clients": 2, "min_depressed_per_client": 1, "segment_seconds": 2.0, "frame_pool": 10, "text_dim": 16,
}  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "edaic")


def settings(**changes: Any) -> Any:
    values = {**stage_values(config(Path("logs"), None)), **TINY, **changes}
    return build_settings(find_stage("speech_clients", "").settings, values, "stages.speech_clients")


def source(corpus: Path, cache: Path | None = None) -> DataSource:
    return locate_corpus(CorpusRequest(corpus, cache_dir=cache))


def made(folder: Path, found: DataSource, **changes: Any) -> tuple[SpeechClients, Artifact]:
    stored = run_stage(
        "speech_clients", settings(**changes), {}, stage_context(folder, sources={"edaic": found})
    )
    report = json.loads((stored.path / "data_report.json").read_text())
    assert report == stored.manifest["notes"]["report"]
    return SpeechClients.from_tensors(stored.load("speech.safetensors"), report), stored


def test_everyone_arrives_in_the_right_split_with_the_right_label(corpus: Path, tmp_path: Path) -> None:
    clients, stored = made(tmp_path / "a", source(corpus))
    for split in SPLITS:
        rows = getattr(clients, split)
        found = dict(zip(rows.participant.tolist(), rows.label.tolist(), strict=True))
        assert found == PEOPLE[split]
        # Four utterances of 0.8 s, one a second: two per segment of at most two seconds, 1.8 s long.
        assert rows.segment.tolist() == [0, 1] * len(PEOPLE[split])
        assert rows.audio.shape[1:] == (18, 23)
        assert rows.text.shape[1:] == (2, 16)
    statistics = stored.load("audio_statistics.safetensors")
    assert statistics["mean"].shape == statistics["std"].shape == (23,)
    assert (statistics["mean"] > 2.9).all()  # the descriptors of participant n lie around n / 100


def test_the_partition_seed_changes_clients_only_and_parses_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = made(tmp_path / "a", source(corpus, tmp_path / "cache"))

    def refuse(*_args: object) -> None:
        raise AssertionError("a feature file was parsed again")

    monkeypatch.setattr(sessions, "read_opensmile", refuse)
    for seed in range(5):
        other, _ = made(tmp_path / f"b{seed}", source(corpus, tmp_path / "cache"), partition_seed=seed)
        for name, tensor in first.to_tensors().items():
            if not name.endswith("/client"):
                assert torch.equal(other.to_tensors()[name], tensor), name
    with pytest.raises(AssertionError, match="parsed again"):
        made(tmp_path / "c", source(corpus, tmp_path / "cache"), frame_pool=5)


def test_label_rule_and_exclusion_reach_the_clients(corpus: Path, tmp_path: Path) -> None:
    change(corpus / "test_split.csv", lambda text: text.replace("602,female,0,4", "602,female,0,10"))
    clients, _ = made(tmp_path / "a", source(corpus), label_rule="phq8ge10", exclude_participants=[306])
    train = dict(zip(clients.train.participant.tolist(), clients.train.label.tolist(), strict=True))
    assert train == {n: int(b or n == 305) for n, b in PEOPLE["train"].items() if n != 306}
    assert clients.report["excluded"] == [306]
    assert clients.report["label_rules_disagree"] == 3


def test_mfcc_descriptors(tmp_path: Path) -> None:
    root = write_corpus(tmp_path / "edaic", kinds=("mfcc",))
    found = locate_corpus(CorpusRequest(root, audio_features=("mfcc",)))
    clients, _ = made(tmp_path / "a", found, audio_features="mfcc")
    assert clients.test.audio.shape[2] == 39


def test_every_fault_is_said_before_anything_is_made(corpus: Path, tmp_path: Path) -> None:
    found = source(corpus)
    change(features(corpus, 301), lambda text: text.replace(";0.030000;", ";0.030000;nan", 1))
    transcript(corpus, 310).write_text("Start_Time,End_Time,Text,Confidence\n")
    features(corpus, 600).unlink()
    with pytest.raises(DataError) as caught:
        made(tmp_path / "a", found)
    for number in ("301", "310", "600"):
        assert number in str(caught.value)
    assert "3 faults" in str(caught.value)
    assert list((tmp_path / "a" / "output").iterdir()) == []


def test_warnings_are_kept_in_the_report(corpus: Path, tmp_path: Path) -> None:
    (corpus / "999_P").mkdir()
    change(transcript(corpus, 301), lambda text: text + "3.9,4.0, ,0.9\n")
    clients, _ = made(tmp_path / "a", source(corpus))
    assert [line.split(":")[0] for line in clients.report["warnings"]] == [
        "extra participant folder, in no split",
        "transcript rows left out (no words, or behind the audio)",
    ]


def test_an_impossible_partition_names_the_stage_and_its_settings(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"only 3 of 6 are.*From stages\.a, where num_clients=4, min_depr"):
        made(tmp_path / "a", source(corpus), num_clients=4)


def test_an_impossible_partition_is_said_before_features_are_parsed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise AssertionError("a feature file was parsed")

    monkeypatch.setattr(sessions, "read_opensmile", refuse)
    with pytest.raises(ConfigError, match=r"only 3 of 6 are.*num_clients=4"):
        made(tmp_path / "a", source(corpus), num_clients=4)
    with pytest.raises(AssertionError, match="was parsed"):
        made(tmp_path / "b", source(corpus))


def test_faults_of_a_simulated_corpus_are_not_the_users_to_mend(corpus: Path, tmp_path: Path) -> None:
    (corpus / "SIMULATED.txt").touch()
    found = source(corpus)
    transcript(corpus, 310).write_text("Start_Time,End_Time,Text\n")
    with pytest.raises(DataError, match=r"(?s)empty transcript: 310.*delete the folder"):
        made(tmp_path / "a", found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_encoder": "bert"}, r"text_encoder must be hashing, minilm or transformers:PATH, got 'bert'"),
        ({"text_encoder": "transformers:"}, r"text_encoder must be"),
        (
            {"segment_seconds": 1.0, "frame_pool": 200},
            r"frame_pool must not be longer than a segment, got 200",
        ),
        ({"segment_seconds": 0.01}, r"segment_seconds must be ≥ 1.* got 0\.01"),
        ({"text_dim": 10**9}, r"text_dim must be .*≤ 8192.* got 1000000000"),
        ({"min_depressed_per_client": 0}, r"min_depressed_per_client must be ≥ 1, got 0"),
        ({"audio_features": "boaw"}, r"audio_features must be one of egemaps, mfcc"),
        ({"exclude_participants": [-1]}, r"exclude_participants must be ≥ 0"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_read(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**changes)


def test_the_defaults_of_the_configs_are_possible_and_the_stage_is_private(
    corpus: Path, tmp_path: Path
) -> None:
    values: Any = config(tmp_path, corpus)
    (planned,) = plan_stages(values["stages"], {}, planner_sources({"edaic": source(corpus)}))
    assert (planned.side, planned.sensitivity) == (Side.CLIENT, Sensitivity.PRIVATE)
    assert planned.key
    assert any("mean and deviation" in line for line in planned.stage.uncovered(planned.settings))
    assert dataclasses.asdict(planned.settings)["num_clients"] == 4


@pytest.mark.parametrize(
    ("root", "message"),
    [("  ", r"data\.edaic_root is empty.*EDAIC_ROOT"), (3, r"data\.edaic_root must be a folder, got 3")],
)
def test_an_impossible_root_is_refused(tmp_path: Path, root: object, message: str) -> None:
    values = {
        **config(tmp_path, None), "experiment_name": "x", "run_id": "x", "seed": 1, "plan": True,
        "privacy": {"budget": None},
    }  # fmt: skip
    check_run_settings(values)
    values["data"]["edaic_root"] = root  # type: ignore[index]
    with pytest.raises(ConfigError, match=message):
        check_run_settings(values)
