"""Read the comma-separated files of the corpus so that no row is silently misread. Torch-free."""

from __future__ import annotations

import csv
import os.path
from collections.abc import Sequence
from pathlib import Path

from fedsynth.data.edaic.problems import Fault


def read_table(
    path: Path, columns: Sequence[str], *, what: str = "table"
) -> list[tuple[int, dict[str, str]]]:
    """The rows of a file by column, each with its line in the file.

    Rows whose cells are all blank are skipped. Rows may end early, as spreadsheets write them, but not before the
    last of `columns`, and may not have words behind the last column: an unquoted comma would lose them.

    Args:
        path: Separated by commas, UTF-8 with or without a mark, any line ends.
        columns: Names that must be in the header, once.
        what: What the file is, for messages.

    Raises:
        DataError: If the file is missing, empty or unreadable, has another delimiter, lacks a column, or has a
            row with too few or too many cells or a line break inside a cell, as after a quote that is not closed.
    """
    if not os.path.isfile(path):
        raise Fault(path, f"missing {what}", path.name)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Fault(path, f"unreadable {what}", why_unreadable(error)) from error
    if not rows:
        raise Fault(path, f"empty {what}", "no header")
    header = [name.strip() for name in rows[0][1]]
    _check_header(path, header, columns)
    needed = max(header.index(name) for name in columns) + 1
    for line, row in rows[1:]:
        _check_row(path, line, row, header, needed)
    return [(line, dict(zip(header, row, strict=False))) for line, row in rows[1:]]


def why_unreadable(error: Exception) -> str:
    """The reason, with what to do about text that is not UTF-8."""
    return f"{error}; UTF-8 text is needed" if isinstance(error, UnicodeDecodeError) else str(error)


def _check_header(path: Path, header: list[str], columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in header]
    if missing and len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise Fault(path, "wrong delimiter, a comma is needed", f"header {header[0][:60]!r}")
    if missing:
        raise Fault(path, "missing columns", f"{', '.join(missing)}; it has {', '.join(header)}")
    twice = [name for name in columns if header.count(name) > 1]
    if twice:
        raise Fault(path, "column twice", ", ".join(twice))


def _check_row(path: Path, line: int, row: list[str], header: list[str], needed: int) -> None:
    broken = next((cell for cell in row if "\n" in cell or "\r" in cell), None)
    if broken is not None:
        detail = f"line break inside a cell that ends in line {line}; is a quote not closed? {broken[:40]!r}"
        raise Fault(path, "malformed rows", detail)
    if len(row) < needed:
        raise Fault(path, "malformed rows", f"line {line} has {len(row)} cells, the header {len(header)}")
    if any(cell.strip() for cell in row[len(header) :]):
        detail = (
            f"line {line} has {len(row)} cells, the header {len(header)}; is a text with commas not quoted?"
        )
        raise Fault(path, "malformed rows", detail)
