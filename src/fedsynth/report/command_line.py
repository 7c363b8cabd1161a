"""What the commands that read runs have in common: words, help, LOG_DIR from .env, one message for one error."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from fedsynth.errors import ConfigError, FedSynthError


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


def read_words(arguments: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """``key=value`` words as a dictionary.

    Args:
        arguments: What was typed.
        keys: The keys there are; of them ``runs``, ``experiment`` and ``last`` say which runs are meant.

    Raises:
        ConfigError: A word without ``=``, an unknown, repeated or empty key, or runs both named and searched for.
    """
    values: dict[str, str] = {}
    for word in arguments:
        key, separator, value = word.lstrip("-").partition("=")
        if not separator or key not in keys:
            close = difflib.get_close_matches(key, keys, n=1)
            hint = f" Did you mean {close[0]}=…?" if close else ""
            raise ConfigError(f"Cannot read {word!r}: give key=value with one of {', '.join(keys)}.{hint}")
        if key in values or not value.strip(", "):
            problem = "given twice" if key in values else "empty"
            raise ConfigError(f"{key} is {problem}: give it once, with a value.")
        values[key] = value
    if "runs" in values and ("experiment" in values or "last" in values):
        raise ConfigError("runs=… names the runs already: leave out experiment=… and last=….")
    return values


def last_of(values: Mapping[str, str]) -> int | None:
    """How many of the newest runs are meant; None where ``last`` was not given.

    Raises:
        ConfigError: It is no whole number of at least 1.
    """
    last = values.get("last")
    if last is None:
        return None
    if not last.isdecimal() or int(last) < 1:
        raise ConfigError(f"last must be a whole number of at least 1, got {last!r}.")
    return int(last)


def log_dir_of(values: Mapping[str, str]) -> Path:
    """Where the runs are: ``log_dir``, else ``$LOG_DIR``, else ``logs``."""
    return Path(values.get("log_dir") or os.environ.get("LOG_DIR") or "logs")
