"""What spreadsheets, archives and half copies make of a corpus: read as it was meant, or refused; never misread."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsynth.data.edaic import simulated
from fedsynth.data.edaic.check import check_corpus
from fedsynth.data.edaic.problems import SHOWN_CHARACTERS
from fedsynth.data.edaic.sessions import read_transcript
from fedsynth.data.edaic.source import CorpusRequest, locate_corpus
from fedsynth.errors import DataError
from tiny_edaic import DETAILED_FILE, LINES, NUMBERS, change, features, transcript, write_person

Edit = Callable[[Path], object]


def said(root: Path, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        check_corpus(root, **{"audio_features": ("egemaps",), **options})  # type: ignore[arg-type]
    return str(caught.value)


def all_bytes(root: Path, edit: Callable[[bytes], bytes]) -> None:
    for path in root.rglob("*.csv"):
        path.write_bytes(edit(path.read_bytes().replace(b"\r\n", b"\n")))


def in_table(root: Path, pattern: str, replacement: str) -> None:
    change(root / "train_split.csv", lambda text: re.sub(pattern, replacement, text, flags=re.MULTILINE))


#: Ways to write the same corpus.
SAME: dict[str, Edit] = {
    "Windows line ends": lambda r: all_bytes(r, lambda b: b.replace(b"\n", b"\r\n")),
    "old line ends": lambda r: all_bytes(r, lambda b: b.replace(b"\n", b"\r")),
    "byte order mark": lambda r: all_bytes(r, lambda b: b"\xef\xbb\xbf" + b),
    "blank lines": lambda r: all_bytes(r, lambda b: b.replace(b"\n", b"\n\n")),
    "blank rows of a spreadsheet": lambda r: change(r / "train_split.csv", lambda t: t + ",,,,,\n"),
    "numbers as decimals": lambda r: in_table(r, r"^(\d+),female,(\d),(\d+)", r"\1.0,female,\2.0,\3.0"),
    "column of row numbers": lambda r: in_table(r, r"^(?=.)", "0,"),
    "row without its last cells": lambda r: in_table(r, r"^(301,female,0,4),.*$", r"\1"),
    "cells behind the header that are blank": lambda r: in_table(r, r"^(301.*)$", r"\1,, "),
    "link to a folder": lambda r: (shutil.move(r / "301_P", r / "away"), (r / "301_P").symlink_to(r / "away")),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same_corpus_written_otherwise_is_read_the_same(corpus: Path, name: str) -> None:
    SAME[name](corpus)
    report = check_corpus(corpus, audio_features=("egemaps",))
    assert list(report.participants) == NUMBERS
    assert (report.participants[301].phq_binary, report.participants[301].phq_score) == (0, 4)
    utterances, left_out = read_transcript(transcript(corpus, 301))
    assert ([utterance.text for utterance in utterances], left_out) == (list(LINES), 0)


def test_quotes_inside_a_text_lose_no_word(corpus: Path) -> None:
    change(transcript(corpus, 301), lambda t: t.replace("okay so", 'he said "okay" so'))
    assert read_transcript(transcript(corpus, 301))[0][2].text == 'he said "okay" so tell me more'


#: What would be misread, or is not where it should be; and what the error must say.
REFUSED: dict[str, tuple[Edit, str]] = {
    "open quote": (
        lambda r: change(transcript(r, 301), lambda t: t.replace("okay", '"okay')),
        r"malformed rows: 301 \(transcript: line break inside a cell that ends in line 5; is a quote not closed",
    ),
    "comma without quotes": (
        lambda r: change(transcript(r, 301), lambda t: t.replace('"it is fine, I guess"', "it is fine, I guess")),
        r"malformed rows: 301 \(transcript: line 5 has 5 cells, the header 4; is a text with commas not quoted",
    ),
    "row cut short": (
        lambda r: change(transcript(r, 301), lambda t: t + "3.9,4"),
        r"malformed rows: 301 \(transcript: line 6 has 2 cells, the header 4",
    ),
    "table row too long": (
        lambda r: in_table(r, r"^301,female", "301,a,female"),
        r"malformed rows: \S*train_split\.csv \(line 2 has 7 cells, the header 6",
    ),
    "column twice": (
        lambda r: in_table(r, r"Gender", "PHQ_Score"),
        r"column twice: \S*train_split\.csv \(PHQ_Score\)",
    ),
    "UTF-16": (
        lambda r: (r / "train_split.csv").write_bytes((r / "train_split.csv").read_text().encode("utf-16")),
        r"unreadable table: \S*train_split\.csv \(.*; UTF-8 text is needed\)",
    ),
    "empty table": (lambda r: (r / "dev_split.csv").write_text(""), r"empty table: \S*dev_split\.csv \(no header\)"),
    "number with a mark": (lambda r: in_table(r, r"^301,", "3_01,"), r"Participant_ID is not a number: .* \('3_01'\)"),
    "number too large": (lambda r: in_table(r, r"^301,", f"{10**17},"), r"Participant_ID is not a number: .* \('10000"),
    "zeros at the end": (
        lambda r: transcript(r, 301).write_bytes(transcript(r, 301).read_bytes() + b"\0" * 9000),
        r"malformed rows: 301 \(transcript: line 6 has 1 cells, the header 4\)",
    ),
    "folder in lower case": (
        lambda r: shutil.move(r / "301_P", r / "301_p"),
        r"missing participant folder: 301 \(301_P; found as 301_p\)",
    ),
    "folder in another place": (
        lambda r: ((r / "data").mkdir(), shutil.move(r / "301_P", r / "data")),
        r"missing participant folder: 301 \(301_P; found as data/301_P\)",
    ),
    "folder in itself": (
        lambda r: (shutil.move(r / "301_P", r / "x"), (r / "301_P").mkdir(), shutil.move(r / "x", r / "301_P/301_P")),
        r"missing transcript: 301 \(301_Transcript\.csv; found as 301_P/301_P/301_Transcript\.csv\)",
    ),
    "folder that is a file": (
        lambda r: (shutil.rmtree(r / "301_P"), (r / "301_P").touch()),
        r"missing participant folder: 301 \(301_P; 301_P is a file\)",
    ),
    "link to nothing": (
        lambda r: (features(r, 301).unlink(), features(r, 301).symlink_to(r / "nothing")),
        r"missing feature file: 301 \(features/\S*; 301_P/features/\S* is a link to nothing\)",
    ),
    "compressed file": (
        lambda r: (features(r, 301).with_suffix(".csv.gz").write_bytes(gzip.compress(b"")), features(r, 301).unlink()),
        r"missing feature file: 301 \(features/\S*; 301_P/features/301_OpenSMILE\S*\.csv\.gz is not extracted\)",
    ),
    "table in another place": (
        lambda r: ((r / "labels").mkdir(), shutil.move(r / "dev_split.csv", r / "labels")),
        r"missing table: \S*dev_split\.csv \(found as labels/dev_split\.csv\)",
    ),
    "other order of descriptors": (
        lambda r: change(features(r, 301), lambda t: t.replace("f0;f1", "f1;f0")),
        r"columns in another order: 301 \(egemaps: column 3 is 'f1', of most others 'f0'\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_misread_is_refused(corpus: Path, name: str) -> None:
    broken, message = REFUSED[name]
    broken(corpus)
    text = said(corpus)
    assert re.search(message, text), text


def test_a_long_cell_does_not_flood_the_message(corpus: Path) -> None:
    in_table(corpus, r"^301,female,0", "301,female," + "\x1b" * 90_000)
    text = said(corpus)
    assert "PHQ_Binary is not 0 or 1: 301" in text
    assert len(text) < SHOWN_CHARACTERS + 500
    assert all(line.isprintable() for line in text.splitlines())


def test_a_split_that_is_excluded_as_a_whole_is_a_fault(corpus: Path) -> None:
    text = said(corpus, exclude=[600, 601, 602], contents=False)
    assert "split without a usable participant: test (test_split.csv)" in text


@pytest.mark.parametrize("root", ["a" * 5000, "~nobody-of-that-name/edaic", "a\0b"])
def test_an_impossible_root_is_no_folder(root: str) -> None:
    assert "is not a folder. Set EDAIC_ROOT" in said(Path(root))


@pytest.mark.parametrize("closed", [".", "301_P"])
def test_a_folder_without_permission_is_named(
    corpus: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for anyone but root, whom permissions do not stop."""
    features(corpus, 301).unlink()
    listing = Path.iterdir

    def refuse(folder: Path) -> object:
        if folder == corpus / closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", refuse)
    text = said(corpus)
    assert "Permission denied" in text
    assert ("Cannot look into" if closed == "." else "cannot look into 301_P/") in text


def test_features_of_someone_else_are_a_fault(corpus: Path) -> None:
    shutil.copy(features(corpus, 302), features(corpus, 601))
    message = r"feature file of another participant: 601 \(egemaps: the same as of 302\)"
    with pytest.raises(DataError, match=message):
        locate_corpus(CorpusRequest(corpus))
    with pytest.raises(DataError, match=r"split with one class only"):  # excluding 601 leaves no case in test
        locate_corpus(CorpusRequest(corpus, exclude=frozenset({601})))
    assert len(locate_corpus(CorpusRequest(corpus, exclude=frozenset({302}))).files) == 4 + 2 * 10


def test_it_is_said_which_total_decides(corpus: Path) -> None:
    change(corpus / "test_split.csv", lambda text: text.replace("602,female,0,4", "602,female,0,10"))
    change(corpus / DETAILED_FILE, lambda text: re.sub(r"302,14\r?\n", "", text).replace("301,4", "301,12"))
    report = check_corpus(corpus, audio_features=("egemaps",), rule="phq8ge10", contents=False)
    assert report.warnings == (
        "labels of two tables disagree, Detailed_PHQ8_Labels.csv decides: 301 (PHQ_8Total 12, PHQ_Score 4)",
        "not in Detailed_PHQ8_Labels.csv, the label is by PHQ_Score: 302 (14)",
    )
    assert [report.participants[number].label("phq8ge10") for number in (301, 302)] == [1, 1]
    # The other rule looks at no total.
    assert check_corpus(corpus, audio_features=("egemaps",), contents=False).warnings == ()


def test_everything_at_once_is_said_at_once(corpus: Path) -> None:
    for name in ("open quote", "empty table"):
        REFUSED[name][0](corpus)
    features(corpus, 302).unlink()
    write_person(corpus / "999_P", 999)
    change(features(corpus, 303), lambda text: text.replace("f0;f1", "f1;f0"))
    text = said(corpus)
    for part in ("malformed rows: 301", "empty table", "missing feature file: 302", "another order: 303"):
        assert part in text, text
    assert "has 4 faults" in text


def test_what_a_killed_simulation_left_behind_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "_write_session", lambda *_args: None)
    parent = tmp_path / f"v{simulated.SIMULATION_VERSION}-seed0"
    for name in (".edaic-scale0.05.partial-killed", ".edaic-scale0.05-mfcc.partial-running"):
        (parent / name / "300_P").mkdir(parents=True)
    root = simulated.write_simulated_corpus(tmp_path, seed=0, scale=0.05)
    left = {path.name for path in parent.iterdir() if path.is_dir()}
    assert left == {root.name, ".edaic-scale0.05-mfcc.partial-running"}
