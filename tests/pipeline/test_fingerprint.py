"""Fingerprints: one spelling per value, one digest per meaning of the code."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsynth.pipeline import fingerprint as module
from fedsynth.pipeline.fingerprint import canonical, code_digest, file_digest, fingerprint

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.dictionaries(st.text(), values))
def test_the_order_of_a_dictionary_does_not_matter(value: dict[str, object]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(value.items())))


@given(values)
def test_canonical_values_are_their_own_canonical_form(value: object) -> None:
    assert canonical(canonical(value)) == canonical(value)


@given(st.integers(-(2**53), 2**53))
def test_equal_floats_and_integers_agree(number: int) -> None:
    assert fingerprint({"x": number}) == fingerprint({"x": float(number)})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        (None, "None"),
        ([1, [2]], [1, 2]),
        ([1, 2], [2, 1]),
        (math.inf, -math.inf),
        (math.inf, math.nan),
        ({"a": None}, {}),
        (0.1, 0.1 + 1e-16 * 2),
    ],
)
def test_values_that_mean_something_else_differ(first: object, second: object) -> None:
    assert fingerprint(first) != fingerprint(second)


def test_tuples_lists_paths_enums_and_dataclasses_have_plain_forms() -> None:
    class Color(Enum):
        RED = "red"

    @dataclass(frozen=True)
    class Point:
        x: float
        color: Color

    assert canonical(Point(2.0, Color.RED)) == {"x": 2, "color": "red"}
    assert canonical((1, Path("a/b"))) == [1, "a/b"]


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot fingerprint a set"):
        fingerprint({"x": {1, 2}})


def test_file_digest_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    # FIPS 180-2, example B.1.
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_digest(tmp_path / "abc") == expected


STAGE = '''"""A module."""

from codebench.steps import step
from . import constants


def run(x):
    """Add one."""
    return step(x) + constants.ONE  # the sum
'''
STEPS = '"""Steps."""\n\n\ndef step(x):\n    return 2 * x\n'
CONSTANTS = "ONE = 1\n"
UNUSED = "def elsewhere():\n    return 0\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "codebench"
    folder.mkdir()
    files = {"__init__": "", "stage": STAGE, "steps": STEPS, "constants": CONSTANTS, "unused": UNUSED}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("codebench", None)
    forget()


def forget() -> None:
    """A process reads each module once; an edit is seen by the next process."""
    code_digest.cache_clear()
    module._read_module.cache_clear()


def digest() -> str:
    forget()
    return code_digest("codebench.stage")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage", "+ constants", "- constants"),
        ("steps", "2 * x", "3 * x"),
        ("constants", "ONE = 1", "ONE = 2"),
    ],
    ids=["own body", "imported function", "relative import"],
)
def test_an_edit_of_code_that_runs_changes_the_digest(package: Path, file: str, old: str, new: str) -> None:
    before = digest()
    edit(package / f"{file}.py", old, new)
    assert digest() != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage", "# the sum", "# their sum"),
        ("stage", '"""Add one."""', '"""Add one, twice."""'),
        ("stage", '"""A module."""\n', '"""The module.\n\nAt length.\n"""\n'),
        (
            "stage",
            "return step(x) + constants.ONE",
            "return (\n        step(x)\n        + constants.ONE\n    )",
        ),
        ("unused", "return 0", "return 1"),
    ],
    ids=["comment", "docstring", "module docstring", "layout", "module not imported"],
)
def test_an_edit_that_changes_no_code_keeps_the_digest(package: Path, file: str, old: str, new: str) -> None:
    before = digest()
    edit(package / f"{file}.py", old, new)
    assert digest() == before


def test_digesting_code_does_not_import_it(package: Path) -> None:
    edit(package / "stage.py", "def run", "raise SystemExit('imported')\n\n\ndef run")
    assert len(digest()) == 64
    assert "codebench" not in sys.modules


def test_an_import_within_a_function_counts(package: Path) -> None:
    edit(package / "stage.py", '"""Add one."""', "from codebench import unused")
    before = digest()
    edit(package / "unused.py", "return 0", "return 1")
    assert digest() != before


@pytest.mark.parametrize("neutral", ["fedsynth.tracking", "fedsynth.pipeline.stage", "fedsynth.errors"])
def test_parts_that_cannot_change_a_result_are_left_out(package: Path, neutral: str) -> None:
    edit(package / "constants.py", "ONE = 1", f"import {neutral}\nONE = 1")
    forget()
    names = reached("codebench.stage")
    assert neutral not in names


def test_parts_are_neutral_by_whole_names_only() -> None:
    assert module._is_neutral("fedsynth.train")
    assert not module._is_neutral("fedsynth.training")


def test_a_real_stage_digests_the_mathematics_it_uses() -> None:
    names = reached("fedsynth.stages.release.run")
    assert {"fedsynth.stages.release.run", "fedsynth.privacy.gaussian", "fedsynth.prototypes.shards"} <= names
    assert not any(name.startswith(("fedsynth.diffusion", "torch")) for name in names)


def reached(start: str) -> set[str]:
    """The modules that a digest is taken over."""
    found: dict[str, str] = {}
    forget()
    original = module.fingerprint

    def spy(parts: dict[str, str]) -> str:
        found.update(parts)
        return original(parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "fingerprint", spy)
        code_digest(start)
    forget()
    return set(found)
