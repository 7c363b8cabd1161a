"""Collect everything that is wrong with a corpus, then say it once."""

from __future__ import annotations

from pathlib import Path

from fedsynth.errors import DataError

SHOWN_PER_KIND = 10
SHOWN_CHARACTERS = 300  # of what was found: a damaged file can hold a cell of megabytes


class Fault(DataError):
    """What is wrong with one file.

    Attributes:
        kind: The same words for the same fault of any file.
        detail: What was found there.
    """

    def __init__(self, path: Path, kind: str, detail: str) -> None:
        super().__init__(f"{path}: {kind} ({detail}).")
        self.kind = kind
        self.detail = detail


class Problems:
    """Faults and warnings by kind, each with the participant or file it concerns.

    Attributes:
        faults: ``{kind: [where: what, …]}``; a run must not start with any.
        warnings: The same for what a run can live with.
    """

    def __init__(self) -> None:
        self.faults: dict[str, list[str]] = {}
        self.warnings: dict[str, list[str]] = {}

    def add(self, kind: str, where: str | int | Path, detail: str = "") -> None:
        """A fault; `where` is a participant's number or a file."""
        self.faults.setdefault(kind, []).append(_entry(where, detail))

    def warn(self, kind: str, where: str | int | Path, detail: str = "") -> None:
        """Something odd that is no reason to stop."""
        self.warnings.setdefault(kind, []).append(_entry(where, detail))

    def warning_lines(self) -> list[str]:
        """One line per kind of warning."""
        return _lines(self.warnings)

    def raise_if_any(self, root: Path, remedy: str) -> None:
        """One error that names every fault, grouped by kind, with the warnings below.

        Args:
            root: The corpus.
            remedy: What to do, as the last sentence.

        Raises:
            DataError: If there is a fault.
        """
        if not self.faults:
            return
        number = sum(map(len, self.faults.values()))
        lines = [f"The E-DAIC corpus at {root} has {number} {'fault' if number == 1 else 'faults'}:"]
        lines += [f"- {line}" for line in _lines(self.faults)]
        lines += [f"- (warning only) {line}" for line in self.warning_lines()]
        raise DataError("\n".join([*lines, remedy]))


def _entry(where: str | int | Path, detail: str) -> str:
    return f"{where} ({_shown(detail)})" if detail else str(where)


def _shown(detail: str) -> str:
    """What a terminal can take: no control characters, not too long."""
    shown = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in detail[: SHOWN_CHARACTERS + 1]
    )
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}…"


def _lines(by_kind: dict[str, list[str]]) -> list[str]:
    lines = []
    for kind, entries in by_kind.items():
        more = len(entries) - SHOWN_PER_KIND
        tail = f" and {more} more" if more > 0 else ""
        lines.append(f"{kind}: {', '.join(entries[:SHOWN_PER_KIND])}{tail}")
    return lines
