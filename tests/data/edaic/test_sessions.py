"""Reading openSMILE files and transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedsynth.data.edaic.layout import AUDIO_FEATURES, Utterance, find_layout
from fedsynth.data.edaic.problems import Problems
from fedsynth.data.edaic.sessions import read_opensmile, read_session, read_transcript
from fedsynth.errors import ConfigError, DataError
from tiny_edaic import LINES, change, features, frames, transcript, write_corpus


@pytest.mark.parametrize("kind", AUDIO_FEATURES)
def test_frames_are_those_that_were_written(tmp_path: Path, kind: str) -> None:
    root = write_corpus(tmp_path / "edaic", kinds=(kind,))
    found = read_opensmile(features(root, 303, kind), kind)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.from_numpy(frames(303, kind)))


def test_utterances_are_in_order_of_time_and_keep_commas(corpus: Path) -> None:
    header, *rows = transcript(corpus, 301).read_text().splitlines()
    transcript(corpus, 301).write_text("\n".join([header, *reversed(rows), "3.9,4.0, ,0.1"]))
    utterances, blank = read_transcript(transcript(corpus, 301))
    assert utterances == [Utterance(i, i + 0.8, text) for i, text in enumerate(LINES)]
    assert blank == 1


def test_utterances_behind_the_last_frame_are_left_out_and_counted(corpus: Path) -> None:
    change(transcript(corpus, 301), lambda text: text.replace("3.8", "9.9") + "4.0,4.1,well,0.9\n")
    problems = Problems()
    session = read_session(find_layout(corpus), 301, "egemaps", problems)
    assert problems.faults == {}
    assert session is not None
    assert session.frames.shape == (400, 23)
    assert [utterance.text for utterance in session.utterances] == list(LINES)
    assert session.left_out_rows == 1


def test_a_transcript_that_lies_behind_its_audio_is_a_fault(corpus: Path) -> None:
    change(transcript(corpus, 301), lambda text: text + "7,9,words,0.9\n8,9,more,0.9\n")
    problems = Problems()
    assert read_session(find_layout(corpus), 301, "egemaps", problems) is None
    assert problems.faults == {
        "transcript of another audio": ["301 (2 of 6 utterances begin behind the audio of 4 s)"]
    }


def test_a_reader_alone_names_file_and_fault(corpus: Path) -> None:
    with pytest.raises(DataError, match=r"301_OpenSMILE2\.3\.0_egemaps\.csv: wrong columns .*wanted .* 39"):
        read_opensmile(features(corpus, 301), "mfcc")
    with pytest.raises(DataError, match=r"nothing\.csv: missing transcript"):
        read_transcript(corpus / "nothing.csv")
    with pytest.raises(ConfigError, match="'boaw'"):
        read_opensmile(features(corpus, 301), "boaw")
