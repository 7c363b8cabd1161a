"""Every fault of a corpus is named, with the participant, in one error."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsynth.data.edaic.check import check_corpus
from fedsynth.data.edaic.problems import SHOWN_PER_KIND
from fedsynth.errors import DataError
from tiny_edaic import NUMBERS, change, features, frames, transcript, write_features, write_person

Break = Callable[[Path], object]


def replace_line(path: Path, line: int, text: str) -> None:
    def edit(content: str) -> str:
        lines = content.splitlines()
        lines[line - 1] = text
        return "\n".join(lines) + "\n"

    change(path, edit)


def value_in_frame(root: Path, number: int, value: str) -> None:
    change(features(root, number), lambda text: re.sub(r"(0\.020000;)[^;]*", rf"\g<1>{value}", text, count=1))


def add_line(path: Path, line: str) -> None:
    change(path, lambda text: text + line + "\n")


#: What is broken: how, and what the error must say.
BREAKS: dict[str, tuple[Break, str]] = {
    "no table": (lambda r: (r / "dev_split.csv").unlink(), r"missing table: \S*dev_split\.csv"),
    "no column": (
        lambda r: change(r / "test_split.csv", lambda t: t.replace("PHQ_Score", "Score")),
        r"missing columns: \S*test_split\.csv \(PHQ_Score; it has Participant_ID, .*Score",
    ),
    "table delimiter": (
        lambda r: change(r / "test_split.csv", lambda t: t.replace(",", ";")),
        r"wrong delimiter, a comma is needed: \S*test_split\.csv",
    ),
    "no folder": (lambda r: shutil.rmtree(r / "302_P"), r"missing participant folder: 302 \(302_P\)"),
    "archive": (
        lambda r: (shutil.rmtree(r / "302_P"), (r / "302_P.tar.gz").touch()),
        r"missing participant folder: 302 \(302_P; 302_P\.tar\.gz is not extracted\)",
    ),
    "no features": (
        lambda r: features(r, 303).unlink(),
        r"missing feature file: 303 \(features/303_OpenSMILE2\.3\.0_egemaps\.csv\)",
    ),
    "no transcript": (lambda r: transcript(r, 304).unlink(), r"missing transcript: 304 \(304_Transcript\.csv"),
    "two splits": (
        lambda r: add_line(r / "test_split.csv", "301,female,0,4,0,20"),
        r"participant in two splits: 301 \(train_split\.csv and test_split\.csv\)",
    ),
    "label": (
        lambda r: change(r / "train_split.csv", lambda t: t.replace("303,female,0", "303,female,2")),
        r"PHQ_Binary is not 0 or 1: 303 in train_split\.csv \('2'\)",
    ),
    "score": (
        lambda r: change(r / "train_split.csv", lambda t: t.replace("303,female,0,4", "303,female,0,many")),
        r"PHQ_Score is not a whole number from 0 to 24: 303 in train_split\.csv \('many'\)",
    ),
    "duplicated person": (
        lambda r: add_line(r / "train_split.csv", "301,female,0,4,0,20"),
        r"duplicated row: 301 in train_split\.csv \(line 8\)",
    ),
    "number": (
        lambda r: add_line(r / "train_split.csv", "nobody,female,0,4,0,20"),
        r"Participant_ID is not a number: train_split\.csv line 8 \('nobody'\)",
    ),
    "empty transcript": (
        lambda r: change(transcript(r, 305), lambda t: t.splitlines()[0] + "\n"),
        r"empty transcript: 305 \(transcript: 0 rows, none with words\)",
    ),
    "empty file": (
        lambda r: transcript(r, 305).write_text(""),
        r"empty transcript: 305 \(transcript: no header\)",
    ),
    "NaN": (lambda r: value_in_frame(r, 306, "NaN"), r"NaN or infinite frames: 306 \(egemaps: 1 of 400 .* row 4, of f0"),
    "infinite": (lambda r: value_in_frame(r, 306, "inf"), r"NaN or infinite frames: 306"),
    "short row": (
        lambda r: add_line(features(r, 306), "'unknown';4.000000;1.0"),
        r"NaN or infinite frames: 306 .*1 of 401 frames",
    ),
    "long row": (
        lambda r: add_line(features(r, 306), "'unknown';4.00" + ";1" * 30),
        r"malformed rows: 306 \(egemaps: .*line 402",
    ),
    "all rows long": (
        lambda r: change(features(r, 306), lambda t: t.replace("'unknown'", "'unknown';1")),
        r"malformed rows: 306",
    ),
    "text in features": (
        lambda r: value_in_frame(r, 306, "loud"),
        r"value that is no number: 306 \(egemaps: .*loud",
    ),
    "feature delimiter": (
        lambda r: write_features(features(r, 310), frames(310), delimiter=","),
        r"wrong delimiter, a semicolon is needed: 310 \(egemaps: header 'name,frameTime",
    ),
    "feature columns": (
        lambda r: write_features(features(r, 310), frames(310)[:, :20]),
        r"wrong columns: 310 \(egemaps: 22 columns, name;frameTime;…; wanted name;frameTime and 23 descriptors",
    ),
    "no frames": (
        lambda r: change(features(r, 310), lambda t: t.splitlines()[0] + "\n"),
        r"feature file without frames: 310",
    ),
    "frame twice": (
        lambda r: replace_line(features(r, 310), 5, features(r, 310).read_text().splitlines()[3]),
        r"duplicated row: 310 \(egemaps: row 5: frame time 0\.02 s",
    ),
    "slow frames": (
        lambda r: change(features(r, 310), lambda t: re.sub(r";(\d)\.(\d\d)0000;", r";\1\g<2>.0;", t)),
        r"frames are not 10 ms apart: 310",
    ),
    "transcript delimiter": (
        lambda r: change(transcript(r, 311), lambda t: t.replace(",", ";")),
        r"wrong delimiter, a comma is needed: 311 \(transcript: header 'Start_Time;",
    ),
    "transcript columns": (
        lambda r: change(transcript(r, 311), lambda t: t.replace("Text", "Words")),
        r"missing columns: 311 \(transcript: Text; it has Start_Time, End_Time, Words, Confidence\)",
    ),
    "transcript time": (
        lambda r: replace_line(transcript(r, 311), 3, "one,1.8,words,0.9"),
        r"value that is no number: 311 \(transcript: line 3",
    ),
    "transcript NaN": (
        lambda r: replace_line(transcript(r, 311), 3, "nan,1.8,words,0.9"),
        r"value that is no number: 311 \(transcript: line 3: times nan and 1\.8",
    ),
    "end before start": (
        lambda r: replace_line(transcript(r, 311), 3, "1.8,1.0,words,0.9"),
        r"impossible times of an utterance: 311 \(transcript: line 3: from 1\.8 to 1 s\)",
    ),
    "transcript row twice": (
        lambda r: add_line(transcript(r, 311), "0,0.8,how have you been,0.9"),
        r"duplicated row: 311 \(transcript: line 6: 0 to 0\.8 s\)",
    ),
    "outside the audio": (
        lambda r: change(transcript(r, 600), lambda t: t.replace("2,2.8", "12,12.8").replace("3,3.8", "13,13.8")),
        r"transcript of another audio: 600 \(2 of 4 utterances begin behind the audio of 4 s\)",
    ),
    "bytes": (
        lambda r: transcript(r, 600).write_bytes(b"Start_Time,End_Time,Text\n0,1,\xff\xfe\n"),
        r"unreadable transcript: 600 \(transcript: .*; UTF-8 text is needed\)",
    ),
}  # fmt: skip


def said(root: Path, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        check_corpus(root, **{"audio_features": ("egemaps",), **options})  # type: ignore[arg-type]
    return str(caught.value)


def test_a_whole_corpus_is_accepted(corpus: Path) -> None:
    report = check_corpus(corpus, audio_features=("egemaps",))
    assert list(report.participants) == NUMBERS
    assert report.warnings == ()


@pytest.mark.parametrize("name", BREAKS)
def test_one_fault_is_named(corpus: Path, name: str) -> None:
    broken, message = BREAKS[name]
    broken(corpus)
    text = said(corpus)
    assert re.search(message, text), text
    assert re.search(r"has 1 fault:", text), text
    assert "data.exclude_participants" in text
    assert "warning" not in text


def test_faults_of_all_kinds_are_named_together(corpus: Path) -> None:
    together = [
        "no folder", "no features", "no transcript", "two splits", "empty transcript", "NaN",
        "feature delimiter", "transcript row twice",
    ]  # fmt: skip
    for name in together:
        BREAKS[name][0](corpus)
    write_person(corpus / "999_P", 999)
    text = said(corpus)
    for name in together:
        assert re.search(BREAKS[name][1], text), (name, text)
    assert f"has {len(together)} faults:" in text
    assert "(warning only) extra participant folder, in no split: 999 (999_P)" in text


def test_the_structure_alone_names_no_content(corpus: Path) -> None:
    BREAKS["NaN"][0](corpus)
    assert list(check_corpus(corpus, audio_features=("egemaps",), contents=False).participants) == NUMBERS
    BREAKS["no folder"][0](corpus)
    text = said(corpus, contents=False)
    assert "302" in text
    assert "NaN" not in text


def test_a_long_list_is_cut_and_counted(corpus: Path) -> None:
    for number in NUMBERS:
        features(corpus, number).unlink()
    text = said(corpus)
    assert f"has {len(NUMBERS)} faults" in text
    assert text.count("_OpenSMILE2.3.0_") == SHOWN_PER_KIND
    assert f"and {len(NUMBERS) - SHOWN_PER_KIND} more" in text


def test_an_extra_folder_and_blank_rows_are_warnings(corpus: Path) -> None:
    write_person(corpus / "999_P", 999)
    add_line(transcript(corpus, 301), "3.9,4.0,  ,0.9")
    warnings = "\n".join(check_corpus(corpus, audio_features=("egemaps",)).warnings)
    assert "extra participant folder, in no split: 999 (999_P)" in warnings
    assert "transcript rows left out (no words, or behind the audio): 301 (1 rows)" in warnings


def test_an_excluded_participant_may_be_broken(corpus: Path) -> None:
    for name in ("no folder", "NaN", "two splits", "label", "duplicated person"):
        BREAKS[name][0](corpus)
    exclude = [301, 302, 303, 306]
    report = check_corpus(corpus, audio_features=("egemaps",), exclude=exclude)
    assert list(report.participants) == [number for number in NUMBERS if number not in exclude]
    assert report.warnings == ()
    assert "excluded participant is in no split: 77" in said(corpus, exclude=[*exclude, 77])


def test_a_split_of_one_class_is_a_fault(corpus: Path) -> None:
    assert "split with one class only: val (all 0 by phq_binary)" in said(corpus, exclude=[311])


def test_tables_and_people_may_lie_one_level_down(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "deep" / "labels").mkdir(parents=True)
    (tmp_path / "deep" / "data").mkdir()
    for path in corpus.iterdir():
        shutil.move(path, tmp_path / "deep" / ("labels" if path.suffix == ".csv" else "data") / path.name)
    assert list(check_corpus(tmp_path / "deep", audio_features=("egemaps",)).participants) == NUMBERS


@pytest.mark.parametrize("folder", ["nothing", "."])
def test_no_corpus_says_how_one_looks(tmp_path: Path, folder: str) -> None:
    text = said(tmp_path / folder)
    for part in (str(tmp_path / folder), "EDAIC_ROOT", "train_split.csv", "XXX_P", "extract"):
        assert part in text


def test_the_check_of_the_structure_loads_no_torch() -> None:
    code = "import sys, fedsynth.data.edaic.source; sys.exit(bool({'torch', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
