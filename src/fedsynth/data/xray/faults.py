"""Everything that is wrong with one file of X-rays, said in one error."""

from __future__ import annotations

from pathlib import Path

from fedsynth.errors import DataError


class Faults:
    """Faults of one file, collected before any of them is raised.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[str] = []

    def add(self, fault: str) -> None:
        """One fault: which key, what it holds, what is needed."""
        self.found.append(fault)

    def raise_if_any(self, remedy: str) -> None:
        """Stop here if there is any fault.

        Args:
            remedy: What to do, as the last sentence.

        Raises:
            DataError: Naming the file and all its faults.
        """
        if not self.found:
            return
        number = f"{len(self.found)} fault{'s' if len(self.found) > 1 else ''}"
        lines = "\n".join(f"- {fault}" for fault in self.found)
        raise DataError(f"{self.path} has {number}:\n{lines}\n{remedy}")
