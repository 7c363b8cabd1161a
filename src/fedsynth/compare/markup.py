"""Sortable HTML tables. Everything that comes from a run is escaped here."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell: markup that is safe already, and what the column is sorted by.

    Without a value a cell is sorted by its text in a column of words, and stands last in a column of numbers.
    """

    markup: str
    value: float | str | None = None
    is_header: bool = False

    @classmethod
    def text(cls, value: object, *, is_header: bool = False) -> Cell:
        """Plain text, escaped; in a column of words sorted as it reads."""
        return cls(escape(value), None, is_header)


@dataclass(frozen=True)
class Column:
    """A column's title (safe markup), and whether it holds numbers (right-aligned, largest first when sorted)."""

    markup: str
    is_number: bool = False

    @classmethod
    def text(cls, title: str, *, is_number: bool = False) -> Column:
        return cls(escape(title), is_number)


def escape(value: object) -> str:
    return html.escape(str(value), quote=True)


def table(
    name: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, wide: bool = False
) -> str:
    """A table that the page's script makes sortable; readable without it.

    Args:
        name: Its id on the page.
        caption: Plain text, read out by screen readers and shown above the table.
        columns: Titles.
        rows: As many cells each as there are columns.
        wide: Keep the header columns in sight while the rest scrolls sideways.

    Raises:
        ValueError: A row with another number of cells than there are columns.
    """
    heads = "".join(
        f'<th scope="col" class="{"num" if column.is_number else "txt"}">{column.markup}</th>'
        for column in columns
    )
    body = []
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"Table {name}: a row has {len(row)} cells for {len(columns)} columns.")
        body.append(
            "<tr>" + "".join(_cell(cell, column) for cell, column in zip(row, columns, strict=True)) + "</tr>"
        )
    style = "sortable wide" if wide else "sortable"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table id="{escape(name)}" class="{style}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{chr(10).join(body)}</tbody></table></div>"
    )


def link(text: str, target: str) -> str:
    """A link to a file, or the text alone when there is no file to go to."""
    return f'<a href="{escape(target)}">{escape(text)}</a>' if target else escape(text)


def _cell(cell: Cell, column: Column) -> str:
    tag = "th" if cell.is_header else "td"
    scope = ' scope="row"' if cell.is_header else ""
    value = cell.value
    data = (
        ""
        if value is None or (isinstance(value, float) and math.isnan(value))
        else f' data-v="{escape(value)}"'
    )
    style = ' class="num"' if column.is_number else ""
    return f"<{tag}{scope}{style}{data}>{cell.markup}</{tag}>"
