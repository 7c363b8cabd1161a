"""Which papers can be reproduced, and what is said of the others."""

from __future__ import annotations

import pytest

from fedsynth.composition import CONFIG_DIR
from fedsynth.errors import ConfigError
from fedsynth.reproduce import known_papers, main, paper_of


def test_a_known_paper_has_an_experiment_and_published_values() -> None:
    assert "feddp_pald" in known_papers()
    for name in known_papers():
        assert (CONFIG_DIR / "experiment" / name / "paper.yaml").is_file()
        assert (CONFIG_DIR / "paper" / f"{name}.yaml").is_file()


def test_other_words_are_left_to_the_sweep() -> None:
    assert paper_of(["seed=1,2", "paper=feddp_pald", "debug=limit"]) == "feddp_pald"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "paper is missing.*feddp_pald"),
        (["paper="], "paper is missing"),
        (["paper=feddp_plad"], "Did you mean feddp_pald"),
        (["paper=feddp_pald", "experiment=x"], "exclude each other"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_with_what_can(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        paper_of(words)


def test_main_answers_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper=feddp_pald"]) == 0
    assert "experiment=feddp_pald/paper" in capsys.readouterr().out
    assert main(["paper=other"]) == 1
