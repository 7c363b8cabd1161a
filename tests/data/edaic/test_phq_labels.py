"""Two label rules that disagree, as in the real corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsynth.data.edaic.check import check_corpus
from fedsynth.data.edaic.labels import Participant, label_conflicts
from fedsynth.errors import DataError
from tiny_edaic import PEOPLE, SCORES, change


def labels(corpus: Path, rule: str) -> dict[int, int]:
    people = check_corpus(corpus, audio_features=("egemaps",), rule=rule, contents=False).participants  # type: ignore[arg-type]
    return {number: person.label(rule) for number, person in people.items()}  # type: ignore[arg-type]


def test_phq_binary_is_the_mark_of_the_split_files(corpus: Path) -> None:
    assert labels(corpus, "phq_binary") == {n: b for people in PEOPLE.values() for n, b in people.items()}


def test_phq8ge10_is_the_total_of_at_least_ten(corpus: Path) -> None:
    wanted = {n: b for people in PEOPLE.values() for n, b in people.items()} | {305: 1, 601: 0}
    # Then the test split has no case left: its others stay out of this test.
    change(corpus / "test_split.csv", lambda text: text.replace("602,female,0,4", "602,female,0,10"))
    assert labels(corpus, "phq8ge10") == wanted | {602: 1}


def test_the_detailed_total_wins_over_the_split_file(corpus: Path) -> None:
    change(corpus / "test_split.csv", lambda text: text.replace("602,female,0,4", "602,female,0,10"))
    change(corpus / "Detailed_PHQ8_Labels.csv", lambda text: text.replace("301,4", "301,10"))
    change(corpus / "Detailed_PHQ8_Labels.csv", lambda text: text.replace("302,14", "302,9"))
    found = labels(corpus, "phq8ge10")
    assert (found[301], found[302]) == (1, 0)
    assert labels(corpus, "phq_binary")[301] == 0


def test_disagreement_is_found(corpus: Path) -> None:
    people = check_corpus(corpus, audio_features=("egemaps",), contents=False).participants
    assert label_conflicts(people) == sorted(SCORES)


@pytest.mark.parametrize(("score", "label"), [(0, 0), (9, 0), (10, 1), (24, 1)])
def test_the_cut_lies_between_nine_and_ten(score: int, label: int) -> None:
    assert Participant(1, "train", 1 - label, score).label("phq8ge10") == label


def test_the_detailed_table_is_needed_by_its_rule_only(corpus: Path) -> None:
    (corpus / "Detailed_PHQ8_Labels.csv").unlink()
    assert labels(corpus, "phq_binary")[302] == 1
    with pytest.raises(DataError, match=r"missing table: \S*Detailed_PHQ8_Labels\.csv"):
        labels(corpus, "phq8ge10")


def test_an_impossible_total_is_named(corpus: Path) -> None:
    change(corpus / "Detailed_PHQ8_Labels.csv", lambda text: text.replace("301,4", "301,25"))
    with pytest.raises(DataError, match=r"PHQ_8Total is not a whole number .*: 301 in Detailed_PHQ8_.*'25'"):
        labels(corpus, "phq8ge10")
