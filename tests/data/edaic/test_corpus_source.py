"""A corpus that was asked for is never silently replaced; a simulated one is always called so."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsynth.data.edaic import simulated
from fedsynth.data.edaic import source as source_module
from fedsynth.data.edaic.source import (
    CorpusRequest,
    corpus_on_disk,
    locate_corpus,
    resolve_corpus,
    simulated_path,
)
from fedsynth.errors import ConfigError, DataError
from fedsynth.run_sources import obtain_sources, planner_sources, source_records, sources_on_disk
from tiny_edaic import NUMBERS, change, config, features, transcript, write_corpus

MARK = "SIMULATED.txt"


@pytest.fixture(autouse=True)
def tiny_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be simulated is the tiny corpus: the real simulation takes seconds and has its own tests."""

    def write(root: Path, *_args: object) -> None:
        write_corpus(root)
        (root / MARK).write_text("SIMULATED")

    monkeypatch.setattr(simulated, "_write", write)
    monkeypatch.delenv("EDAIC_ROOT", raising=False)


def resolve(request: CorpusRequest, folder: Path, mode: str) -> Any:
    return resolve_corpus(request, mode=mode, simulated_dir=folder / "simulated")  # type: ignore[arg-type]


def on_disk(request: CorpusRequest, folder: Path, mode: str) -> Any:
    return corpus_on_disk(request, mode=mode, simulated_dir=folder / "simulated")  # type: ignore[arg-type]


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize("mode", ["auto", "real"])
def test_a_given_corpus_is_real_and_its_licence_is_named(corpus: Path, tmp_path: Path, mode: str) -> None:
    found = resolve(CorpusRequest(corpus), tmp_path, mode)
    assert (found.name, found.path, found.simulated) == ("edaic", corpus, False)
    assert "licence" in found.licence
    assert len(found.files) == 4 + 2 * len(NUMBERS)
    assert on_disk(CorpusRequest(corpus), tmp_path, mode) == (found, [])


def test_auto_never_replaces_a_given_corpus_with_faults(corpus: Path, tmp_path: Path) -> None:
    shutil.rmtree(corpus / "302_P")
    change(features(corpus, 303), lambda text: text.replace(";0.030000;", ";0.030000;nan", 1))
    before = files_below(tmp_path)
    # The contents are looked at as well, so that one report names everything.
    with pytest.raises(DataError, match=r"(?s)missing participant folder: 302.*303"):
        resolve(CorpusRequest(corpus), tmp_path, "auto")
    found, remarks = on_disk(CorpusRequest(corpus), tmp_path, "auto")
    assert found is None
    assert "302" in remarks[0]
    assert "303" not in remarks[0]
    assert remarks[-1] == "A run would stop at once."
    with pytest.raises(DataError, match="is not a folder"):
        resolve(CorpusRequest(tmp_path / "nowhere"), tmp_path, "auto")
    assert files_below(tmp_path) == before


def test_auto_simulates_without_a_root_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request = CorpusRequest(None)
    assert on_disk(request, tmp_path, "auto") == (
        None,
        ["EDAIC_ROOT (data.edaic_root) is not set.", "Data would be SIMULATED."],
    )
    assert files_below(tmp_path) == set()
    with caplog.at_level(logging.WARNING):
        found = resolve(request, tmp_path, "auto")
    assert found.simulated
    assert found.path == simulated_path(tmp_path / "simulated", 0, has_mfcc=False)
    assert "SIMULATED DATA" in caplog.text
    assert "no patient data" in found.licence
    assert on_disk(request, tmp_path, "auto")[0] == found
    assert on_disk(request, tmp_path, "simulated") == (found, ["Data are SIMULATED."])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: (r / MARK).unlink(), r"has lost the mark SIMULATED\.txt.*Delete the folder"),
        (lambda r: features(r, 301).unlink(), r"(?s)missing feature file: 301.*simulated.*delete the folder"),
        (lambda r: (shutil.rmtree(r), r.mkdir()), r"(?s)holds no E-DAIC corpus.*delete the folder"),
        (lambda r: (shutil.rmtree(r), r.touch()), r"(?s)is not a folder.*delete the folder"),
    ],
)
def test_a_damaged_simulation_never_passes_for_real_and_can_be_deleted(
    tmp_path: Path, damage: Any, message: str
) -> None:
    path = resolve(CorpusRequest(None), tmp_path, "auto").path
    damage(path)
    for mode in ("auto", "simulated"):
        with pytest.raises(DataError, match=message):
            resolve(CorpusRequest(None), tmp_path, mode)
        found, remarks = on_disk(CorpusRequest(None), tmp_path, mode)
        assert found is None
        assert re.search(message, "\n".join(remarks))
        assert remarks[-1] == "A run would stop at once."
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert resolve(CorpusRequest(None), tmp_path, "auto").simulated


def test_simulated_mode_ignores_a_given_corpus(corpus: Path, tmp_path: Path) -> None:
    found = resolve(CorpusRequest(corpus), tmp_path, "simulated")
    assert found.simulated
    assert found.path != corpus


def test_mfcc_files_are_simulated_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(root: Path, seed: int, scale: float, mfcc: bool, *_more: object) -> None:
        write_corpus(root, kinds=("egemaps", "mfcc") if mfcc else ("egemaps",))
        (root / MARK).write_text("SIMULATED")

    monkeypatch.setattr(simulated, "_write", write)
    found = resolve(CorpusRequest(None, ("egemaps", "mfcc")), tmp_path, "simulated")
    assert found.path == simulated_path(tmp_path / "simulated", 0, has_mfcc=True)
    assert len(found.files) == 4 + 3 * len(NUMBERS)


def test_real_mode_refuses_nothing_and_simulated_corpora(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"EDAIC_ROOT \(data\.edaic_root\) is not set.*train_split\.csv"):
        resolve(CorpusRequest(None), tmp_path, "real")
    (corpus / MARK).touch()
    with pytest.raises(DataError, match=r"holds simulated data; point EDAIC_ROOT"):
        resolve(CorpusRequest(corpus), tmp_path, "real")
    assert on_disk(CorpusRequest(corpus), tmp_path, "real")[0] is None
    assert on_disk(CorpusRequest(None), tmp_path, "real")[1][-1] == "A run would stop at once."


def test_a_marked_corpus_is_simulated_wherever_it_lies(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (corpus / MARK).touch()
    with caplog.at_level(logging.WARNING):
        assert resolve(CorpusRequest(corpus), tmp_path, "auto").simulated
    assert "SIMULATED DATA" in caplog.text
    assert on_disk(CorpusRequest(corpus), tmp_path, "auto")[1] == ["Data are SIMULATED."]


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'fake'"):
        resolve(CorpusRequest(None), tmp_path, "fake")


def test_extra_folders_are_logged(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    (corpus / "999_P").mkdir()
    with caplog.at_level(logging.WARNING):
        locate_corpus(CorpusRequest(corpus))
    assert "extra participant folder, in no split: 999 (999_P)" in caplog.text


def test_the_digest_is_over_what_is_read(corpus: Path) -> None:
    first = locate_corpus(CorpusRequest(corpus)).digest
    (corpus / "301_P" / "301_AUDIO.wav").touch()
    (corpus / "999_P").mkdir()
    assert locate_corpus(CorpusRequest(corpus)).digest == first
    assert locate_corpus(CorpusRequest(corpus, exclude=frozenset({305}))).digest != first
    change(transcript(corpus, 305), lambda text: text.replace("fine", "bad"))
    assert locate_corpus(CorpusRequest(corpus)).digest != first


def test_digests_are_remembered_below_the_cache_folder(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CorpusRequest(corpus, cache_dir=tmp_path / "cache")
    planned = locate_corpus(request, planning=True)
    assert not (tmp_path / "cache").exists()
    assert locate_corpus(request) == planned

    def refuse(*_args: object) -> str:
        raise AssertionError("a file was read again")

    monkeypatch.setattr("fedsynth.data.digest_cache.digest_of", refuse)
    assert locate_corpus(request) == planned


# -- what a run asks for -------------------------------------------------------------------------------------


def test_a_run_finds_the_corpus_and_asks_for_what_its_stages_read(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CorpusRequest] = []
    real = source_module.locate_corpus

    def spy(request: CorpusRequest, **options: bool) -> Any:
        asked.append(request)
        return real(request, **options)

    monkeypatch.setattr(source_module, "locate_corpus", spy)
    values: Any = config(tmp_path / "logs", corpus, exclude_participants=[303, 305])
    second = {**values["stages"]["speech_clients"], "exclude_participants": [305]}
    values["stages"]["other"] = {**second, "label_rule": "phq8ge10"}
    with pytest.raises(DataError, match=r"split with one class only: test"):  # by phq8ge10
        obtain_sources(values)
    del values["stages"]["other"]
    found = obtain_sources(values)
    assert list(found) == ["edaic"]
    assert planner_sources(found)["edaic"].private
    assert [(r.rule, sorted(r.exclude)) for r in asked] == [
        ("phq8ge10", [305]),
        ("phq_binary", [303, 305]),
    ]
    assert {r.cache_dir for r in asked} == {tmp_path / "logs" / "cache"}
    assert sources_on_disk(values) == (found, [])
    (record,) = source_records(found["edaic"])
    assert record["file"] == f"edaic/ ({4 + 2 * (len(NUMBERS) - 2)} files)"
    assert not record["simulated"]


def test_a_plan_without_a_root_writes_nothing(tmp_path: Path) -> None:
    found, remarks = sources_on_disk(config(tmp_path / "logs", None))
    assert found == {}
    assert remarks[1:] == ["Data would be SIMULATED.", "Keys that depend on them are not known yet."]
    assert files_below(tmp_path) == set()
    assert obtain_sources(config(tmp_path / "logs", None))["edaic"].simulated
