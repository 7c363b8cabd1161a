"""The documents say what is true: what they name exists, what they promise as a command can be run.

Forms this test reads:
- docs/equations.md: tables ``| Eq. | what | function | test |``. Functions are `privacy.gaussian.name` (below
  fedsynth), tests `tests/privacy/test_gaussian.py::test_name`; several are separated by commas. A dash says
  that the equation needs no function.
- docs/fidelity.md: tables ``| id | paper place | what is missing | options | chosen | effect if wrong |``.
- Commands: `make ...` in code spans and code blocks.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
EQUATIONS = ROOT / "docs" / "equations.md"
FIDELITY = ROOT / "docs" / "fidelity.md"
DASHES = {"", "-", "–", "—"}


def table_rows(text: str) -> list[list[str]]:
    """Cells of all table rows but the headings and rulers; ``\\|`` is a bar inside of a cell."""
    rows = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if (
            not line.lstrip().startswith("|")
            or is_ruler(line)
            or is_ruler("".join(lines[number + 1 : number + 2]))
        ):
            continue
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
        rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows


def is_ruler(line: str) -> bool:
    return bool(re.fullmatch(r"\s*\|[\s:|-]*-[\s:|-]*", line))


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def code_lines(text: str) -> list[str]:
    """Lines of fenced blocks and inline code spans."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()] + code_spans(prose)


def make_targets(text: str) -> set[str]:
    """Targets of every `make ...` command in the code of a document."""
    targets: set[str] = set()
    for line in code_lines(text):
        for command in re.split(r"&&|\|\||;|\s\|\s", re.sub(r"(^|\s)#.*", "", line)):
            try:
                words = shlex.split(command)
            except ValueError:  # an unfinished quotation, a table of characters, ...
                words = command.split()
            while words and (words[0] == "$" or re.fullmatch(r"\w+=.*", words[0])):
                words.pop(0)
            if words[:1] == ["make"]:
                targets.update(word for word in words[1:] if re.fullmatch(r"[a-z][\w./-]*", word))
    return targets


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def defined_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def function_exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name if name.startswith("fedsynth") else f"fedsynth.{name}")
    except (ImportError, AttributeError, ValueError):
        return False
    return True


def is_test(reference: str) -> bool:
    path, _, name = reference.partition("::")
    file = ROOT / path
    return (
        path.startswith("tests/")
        and file.is_file()
        and name.split("::")[-1].split("[")[0] in defined_tests(file)
    )


def fidelity_ids(text: str) -> set[str]:
    """Ids named in ``# fidelity: first-id, second-id`` comments."""
    comments = re.findall(r"#[^\n]*\bfidelity:\s*([a-z0-9-]+(?:\s*,\s*[a-z0-9-]+)*)", text)
    return {name.strip() for comment in comments for name in comment.split(",")}


def slug(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    body = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ +(.+)$", body, flags=re.MULTILINE)}


def broken_links(document: Path) -> list[str]:
    body = re.sub(r"^```.*?^```|`[^`\n]*`", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", body):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (document.parent / path) if path else document
        missing_anchor = (
            anchor and file.suffix == ".md" and file.is_file() and anchor not in anchors(file.read_text())
        )
        if not file.exists() or missing_anchor:
            broken.append(target)
    return broken


def test_every_equation_names_functions_that_exist() -> None:
    rows = table_rows(EQUATIONS.read_text())
    assert rows
    wrong = []
    for row in rows:
        assert len(row) == 4, f"docs/equations.md: {len(row)} cells instead of 4 in {row}"
        names = code_spans(row[2])
        if not names and row[2] not in DASHES:
            wrong.append(f"{row[0]}: no `function` in {row[2]!r}")
        wrong += [f"{row[0]}: {name}" for name in names if not function_exists(name)]
    assert wrong == []


def test_every_equation_names_tests_that_exist() -> None:
    wrong = []
    for equation, _, function, tests in table_rows(EQUATIONS.read_text()):
        references = code_spans(tests)
        if not references and function not in DASHES:
            wrong.append(f"{equation}: no test")
        wrong += [f"{equation}: {reference}" for reference in references if not is_test(reference)]
    assert wrong == []


def test_every_deviation_in_the_code_has_a_row() -> None:
    listed = {
        code_spans(row[0])[0] if code_spans(row[0]) else row[0] for row in table_rows(FIDELITY.read_text())
    }
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "configs").rglob("*.yaml")]
    used = {
        (name, path.relative_to(ROOT).as_posix()) for path in files for name in fidelity_ids(path.read_text())
    }
    assert used, "no `# fidelity:` comment found at all"
    assert sorted((name, path) for name, path in used if name not in listed) == []
    assert sorted(listed - {name for name, _ in used}) == [], (
        "rows without a comment where the choice is made"
    )


def test_fidelity_rows_are_complete_and_unique() -> None:
    rows = table_rows(FIDELITY.read_text())
    incomplete = [row[0] for row in rows if len(row) != 6 or any(not cell for cell in row)]
    ids = [row[0] for row in rows]
    assert incomplete == []
    assert sorted({name for name in ids if ids.count(name) > 1}) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_make_command_is_a_target(document: Path) -> None:
    assert make_targets(document.read_text()) - makefile_targets() == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_resolves(document: Path) -> None:
    assert broken_links(document) == []


def test_readme_shows_how_to_run_the_experiment() -> None:
    assert {"train", "test"} <= make_targets((ROOT / "README.md").read_text())


def test_changelog_has_a_place_for_changed_results() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^#+ Changed results$", text, flags=re.MULTILINE)


def test_missing_names_are_noticed() -> None:
    assert function_exists("seeding.derive_seed")
    assert not function_exists("seeding.derive_sed")
    assert not function_exists("no_such_package.name")
    assert is_test("tests/test_docs.py::test_missing_names_are_noticed")
    assert not is_test("tests/test_docs.py::test_of_something_else")
    assert not is_test("tests/test_nothing.py::test_missing_names_are_noticed")


def test_tables_are_read_without_heading_and_ruler() -> None:
    text = "text\n\n| Eq. | what |\n|---|:--|\n| 19 | `a` |\n| 20 | x \\| y |\n\nmore\n"
    assert table_rows(text) == [["19", "`a`"], ["20", "x | y"]]


def test_commands_are_read_from_code_only() -> None:
    text = (
        "We make sure; run `make train seed=1` or `FOO=1 make -n plan`.\n"
        "```bash\n$ make sweep seed=1,2 && make report last=2   # make nothing\nmake test args='-k x'\n```\n"
    )
    assert make_targets(text) == {"train", "plan", "sweep", "report", "test"}


def test_fidelity_comments_are_read_with_several_ids() -> None:
    source = "x = 1  # fidelity: mask-restore\n# fidelity: a-1, b-2 because\ny: 2 # Eq. (9)\n"
    assert fidelity_ids(source) == {"mask-restore", "a-1", "b-2"}


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading: with `code`\n")
    document = tmp_path / "page.md"
    document.write_text(
        "[a](other.md#a-heading-with-code) [b](https://example.org/x) ![c](missing.png) "
        "[d](other.md#nowhere)\n`[e](in-code.md)`\n[f](#here)\n## Here\n"
    )
    assert broken_links(document) == ["missing.png", "other.md#nowhere"]
