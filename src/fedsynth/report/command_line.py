"""What the commands that read runs have in common: help, LOG_DIR from .env, one message for one error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from fedsynth.errors import FedSynthError


def answer(
    arguments: Sequence[str] | None,
    command: Callable[[Sequence[str], Console], object],
    *,
    description: str,
    width: int,
) -> int:
    """Run a command and turn what it raises into one message.

    Args:
        arguments: What was typed; None takes ``sys.argv``.
        command: Called with the words and a console.
        description: Printed for ``--help``.
        width: Columns of the console where a file or pipe has none.

    Returns:
        Exit code 0, or 1 after an error.
    """
    from dotenv import find_dotenv, load_dotenv

    words = list(sys.argv[1:] if arguments is None else arguments)
    if any(word in ("-h", "--help", "help") for word in words):
        print(description)
        return 0
    load_dotenv(find_dotenv(usecwd=True))  # LOG_DIR; variables that are already set win
    try:
        # A file or pipe has no width, and 80 columns would fold the table.
        command(words, Console(width=None if sys.stdout.isatty() else width, highlight=False))
    except FedSynthError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
