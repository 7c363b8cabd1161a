"""The simulated corpus: published counts, layout of the real one, how it is written, how hard it is."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedsynth.data.edaic import simulated
from fedsynth.data.edaic.labels import read_participants
from fedsynth.data.edaic.layout import CorpusLayout, find_layout
from fedsynth.data.edaic.problems import Problems
from fedsynth.data.edaic.segments import build_segments
from fedsynth.data.edaic.sessions import read_session
from fedsynth.data.edaic.simulated import write_simulated_corpus
from fedsynth.data.edaic.simulated_audio import (
    EGEMAPS_COLUMNS,
    MFCC_COLUMNS,
    simulated_egemaps,
    simulated_mfcc,
)
from fedsynth.data.edaic.simulated_people import Person, simulated_people
from fedsynth.data.edaic.simulated_text import simulated_turns
from fedsynth.data.text_encoders import make_text_encoder
from fedsynth.errors import ConfigError, DataError

SMALL = 0.05


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> CorpusLayout:
    """The smallest corpus: 4 depressed and 8 others in each split, MFCC included."""
    return find_layout(
        write_simulated_corpus(tmp_path_factory.mktemp("edaic"), seed=0, scale=SMALL, mfcc=True)
    )


@pytest.fixture(scope="module")
def everyone() -> list[Person]:
    return simulated_people(np.random.default_rng(0), 1.0)


def counted(people: list[Person], split: str) -> tuple[int, int]:
    """Depressed and others of a split."""
    marks = Counter(person.phq_binary for person in people if person.split == split)
    return marks[1], marks[0]


def test_full_cohort_has_the_published_counts(everyone: list[Person]) -> None:
    assert [counted(everyone, split) for split in ("train", "val", "test")] == [(37, 126), (12, 44), (17, 39)]
    rooms = Counter((person.split, "agent" if person.agent else "operated") for person in everyone)
    assert rooms == {
        ("train", "operated"): 143, ("train", "agent"): 20, ("val", "operated"): 46, ("val", "agent"): 10,
        ("test", "agent"): 56,
    }  # fmt: skip
    assert len({person.number for person in everyone}) == 275
    assert all((600 <= p.number <= 718) if p.agent else (300 <= p.number <= 492) for p in everyone)


def test_labels_disagree_as_published(everyone: list[Person]) -> None:
    positive = [person for person in everyone if person.phq_score >= 10]
    assert len(positive) == 86
    assert sum(person.split != "test" for person in positive) == 65
    assert sum(person.phq_binary == 0 for person in positive if person.split != "test") == 16
    assert all(person.phq_score >= 10 for person in everyone if person.phq_binary)
    bands = Counter((person.phq_score - 10) // 5 for person in positive)
    assert [bands[band] for band in range(3)] == [43, 33, 10]  # 10–14, 15–19, 20–24


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), scale=st.floats(0.001, 1.0))
def test_any_cohort_keeps_both_classes_and_valid_questionnaires(seed: int, scale: float) -> None:
    people = simulated_people(np.random.default_rng(seed), scale)
    for split in ("train", "val", "test"):
        depressed, others = counted(people, split)
        assert depressed >= 4
        assert others >= 8
    assert all(len(p.items) == 8 and set(p.items) <= {0, 1, 2, 3} for p in people)
    assert all(17 <= p.ptsd_severity <= 85 for p in people)
    assert [p.number for p in people] == sorted({p.number for p in people})
    assert all(p.agent for p in people if p.split == "test")


def test_a_flat_voice_with_cheerful_words_tells_what_neither_does() -> None:
    people = [p for seed in range(5) for p in simulated_people(np.random.default_rng(seed), 1.0)]

    def share_depressed(chosen: list[Person]) -> float:
        return float(np.mean([person.phq_binary for person in chosen]))

    flat = [person for person in people if 0.8 < person.manner.flatness < 2.1]
    cheerful = [person for person in people if person.manner.cheer > 0.5]
    both = [person for person in flat if person in cheerful]
    assert share_depressed(flat) < 0.45
    assert share_depressed(cheerful) < 0.35
    assert share_depressed(both) > 0.9


def test_the_reader_of_the_real_corpus_finds_no_fault(small: CorpusLayout) -> None:
    problems = Problems()
    people = read_participants(small, problems, rule="phq8ge10").participants
    assert small.simulated
    assert small.participants() == list(people)
    assert Counter(person.split for person in people.values()) == {"train": 12, "val": 12, "test": 12}
    for number in people:
        for kind, width in (("egemaps", 23), ("mfcc", 39)):
            session = read_session(small, number, kind, problems)
            assert session is not None
            assert session.frames.shape[1] == width
            assert 32 <= len(session.frames) / 100 <= 40
            assert session.utterances[-1].end <= len(session.frames) / 100
            assert all(
                a.end <= b.start for a, b in zip(session.utterances, session.utterances[1:], strict=False)
            )
    assert problems.faults == {}
    assert problems.warnings == {}


def test_tables_agree_with_each_other(small: CorpusLayout) -> None:
    splits = {split: pd.read_csv(small.split_file(split)) for split in ("train", "val", "test")}
    listed = pd.concat([splits["train"], splits["val"]]).set_index("Participant_ID")
    detailed = pd.read_csv(small.detailed_file).set_index("Participant_ID")
    assert sorted(detailed.index) == sorted(listed.index)
    items = detailed.drop(columns="PHQ_8Total")
    assert items.shape[1] == 8
    assert (items.sum(axis=1) == detailed["PHQ_8Total"]).all()
    assert (detailed["PHQ_8Total"] == listed["PHQ_Score"].reindex(detailed.index)).all()
    assert (splits["test"]["PCL-C (PTSD)"] == (splits["test"]["PTSD Severity"] >= 44)).all()


def test_files_look_as_opensmile_and_the_transcriber_write_them(small: CorpusLayout) -> None:
    number = small.participants()[0]
    header, first, *_ = small.features(number, "egemaps").read_text().splitlines()
    assert header.split(";") == ["name", "frameTime", *EGEMAPS_COLUMNS]
    assert first.startswith("'unknown';0.00;")
    mfcc = small.features(number, "mfcc").read_text().partition("\n")[0]
    assert mfcc.split(";") == ["name", "frameTime", *MFCC_COLUMNS]
    transcript = pd.read_csv(small.transcript(number))
    assert transcript.columns.tolist() == ["Start_Time", "End_Time", "Text", "Confidence"]
    assert transcript["Confidence"].between(0, 1).all()


def test_every_session_gives_three_segments_of_ten_seconds(small: CorpusLayout) -> None:
    encoder = make_text_encoder("hashing", 8)
    for number in small.participants():
        session = read_session(small, number, "egemaps", Problems())
        assert session is not None
        segments = build_segments(
            session.frames,
            session.utterances,
            encoder.encode([utterance.text for utterance in session.utterances]),
            segment_seconds=10,
            frame_pool=20,
            max_utterances=8,
        )
        assert len(segments) >= 3
        assert max(len(segment.audio) for segment in segments) <= 50


def test_unvoiced_frames_hold_what_opensmile_writes_there(everyone: list[Person]) -> None:
    rng = np.random.default_rng(0)
    turns, seconds = simulated_turns(rng, everyone[0])
    frames = pd.DataFrame(simulated_egemaps(rng, everyone[0], turns, seconds), columns=EGEMAPS_COLUMNS)
    unvoiced = frames[frames["F0semitoneFrom27.5Hz_sma3nz"] == 0]
    assert 0.3 < len(unvoiced) / len(frames) < 0.8
    assert (unvoiced.filter(like="amplitude") == -201).all().all()
    blank = unvoiced.filter(like="sma3nz").drop(columns=unvoiced.filter(like="amplitude").columns)
    assert (blank == 0).all().all()
    voiced = frames.drop(unvoiced.index)
    assert (voiced[["jitterLocal_sma3nz", "shimmerLocaldB_sma3nz", "F1frequency_sma3nz"]] > 0).all().all()
    assert (frames["Loudness_sma3"] > 0).all()


def test_mfcc_differences_are_the_regression_slopes() -> None:
    rng = np.random.default_rng(0)
    egemaps = np.exp(rng.normal(size=(60, 23))).astype(np.float32)
    static, first, second = np.split(simulated_mfcc(rng, egemaps).astype(np.float64), 3, axis=1)
    for values, slopes in ((static, first), (first, second)):
        # Least-squares slope over frames t−2 … t+2.
        windows = np.stack([values[k : 56 + k] for k in range(5)])
        expected = np.tensordot(np.arange(-2, 3), windows, axes=1) / 10
        np.testing.assert_allclose(slopes[2:-2], expected, atol=1e-4)  # stored as float32, values of order 10


@pytest.fixture(scope="module")
def features(everyone: list[Person]) -> tuple[np.ndarray, np.ndarray]:
    """Mean descriptors and their spread, and the mean text vector, of each person's session."""
    encoder = make_text_encoder("hashing", 256)
    audio, text, ends = [], [], [0]
    for person in everyone:
        rng = np.random.default_rng(person.number)
        turns, seconds = simulated_turns(rng, person)
        frames = simulated_egemaps(rng, person, turns, seconds)
        audio.append(np.concatenate([frames.mean(axis=0), frames.std(axis=0)]))
        text += [turn.utterance.text for turn in turns]
        ends.append(len(text))
    vectors = encoder.encode(text).numpy()
    return np.stack(audio), np.stack([vectors[a:b].mean(axis=0) for a, b in itertools.pairwise(ends)])


def test_both_modalities_tell_more_than_one_and_none_tells_all(
    everyone: list[Person], features: tuple[np.ndarray, np.ndarray]
) -> None:
    audio, text = features
    label = np.array([person.phq_binary for person in everyone])
    is_train = np.array([person.split == "train" for person in everyone])

    def auroc(values: np.ndarray) -> float:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.003, class_weight="balanced"))
        model.fit(values[is_train], label[is_train])
        return float(roc_auc_score(label[~is_train], model.decision_function(values[~is_train])))

    single, fused = [auroc(audio), auroc(text)], auroc(np.hstack([audio, text]))
    assert all(0.65 < value < 0.92 for value in single)
    assert max(single) + 0.02 < fused < 0.99


def test_the_room_of_the_agent_shifts_the_descriptors(
    everyone: list[Person], features: tuple[np.ndarray, np.ndarray]
) -> None:
    slope = features[0][:, EGEMAPS_COLUMNS.index("alphaRatio_sma3")]
    is_healthy = np.array([not person.phq_binary for person in everyone])
    is_agent = np.array([person.agent for person in everyone])
    parts = [slope[is_healthy & is_agent], slope[is_healthy & ~is_agent]]
    error = np.hypot(*[part.std(ddof=1) / np.sqrt(len(part)) for part in parts])
    assert abs(parts[0].mean() - parts[1].mean()) > 5 * error


def test_content_is_a_function_of_the_seed(tmp_path: Path, small: CorpusLayout) -> None:
    def content(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    with_mfcc = content(small.root)
    again = content(write_simulated_corpus(tmp_path, seed=0, scale=SMALL))
    assert len(again) == 36 * 2 + 5  # descriptors and transcripts; three splits, detailed labels, mark
    assert again == {name: text for name, text in with_mfcc.items() if not name.endswith("_mfcc.csv")}
    assert simulated_people(np.random.default_rng(0), SMALL) != simulated_people(
        np.random.default_rng(1), SMALL
    )


def test_a_finished_corpus_is_reused_and_nothing_temporary_stays(small: CorpusLayout) -> None:
    before = small.split_file("train").stat().st_mtime_ns
    assert write_simulated_corpus(small.root.parents[1], seed=0, scale=SMALL, mfcc=True) == small.root
    assert small.split_file("train").stat().st_mtime_ns == before
    assert {path.name for path in small.root.parent.iterdir()} == {small.root.name, f"{small.root.name}.lock"}


def test_two_processes_at_once_write_one_whole_corpus(tmp_path: Path) -> None:
    script = (
        "import sys; from fedsynth.data.edaic.simulated import write_simulated_corpus as write; "
        f"print(write(sys.argv[1], seed=0, scale={SMALL}))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [writer.communicate(timeout=60) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], answers
    roots = {out.strip() for out, _ in answers}
    assert len(roots) == 1
    layout = find_layout(roots.pop())
    assert len(layout.participants()) == 36
    assert all(layout.features(number, "egemaps").is_file() for number in layout.participants())


def test_interrupted_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulated, "simulated_egemaps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_simulated_corpus(tmp_path, seed=0, scale=SMALL)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert [path for path in tmp_path.rglob(".*") if path.is_dir()] == []


@pytest.mark.parametrize("change", [{"seed": -1}, {"scale": 0.0}, {"scale": 1.1}, {"scale": float("nan")}])
def test_impossible_request_is_a_config_error(tmp_path: Path, change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="seed ≥ 0"):
        write_simulated_corpus(tmp_path, **({"seed": 0} | change))


def test_unwritable_place_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="Cannot write"):
        write_simulated_corpus(tmp_path / "file", seed=0, scale=SMALL)
