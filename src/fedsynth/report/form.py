"""The form of ``run.json`` and ``manifest.json`` that readers rely on: anything else is a damaged file, said in words.

Checked once, where a file is read, so that no table or figure stumbles over it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsynth.errors import ArtifactError

#: Names of simple values, and what they allow. A trailing "!" in a form: must be there and not be null.
_SIMPLE: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "finite number": lambda value: _SIMPLE["number"](value) and math.isfinite(value),
    "true or false": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
}

#: A form is the name of a simple value, a one-element list (of what its elements are), or a mapping of forms by key,
#: "*" standing for every key.
Form = str | list[Any] | Mapping[str, Any]

STAGE: Form = {
    "kind": "text", "key": "text", "path": "text", "status": "text", "seconds": "finite number",
    "sensitivity": "text", "side": "text",
}  # fmt: skip
RUN: Form = {
    "experiment": "text!", "run_id": "text!", "seed": "whole number!", "command": "text", "commit": "text",
    "created": "text", "finished": "text", "seconds": "finite number", "simulated": "true or false",
    "environment": "object", "stages": {"*": STAGE},
    "config": {
        "stages": {"*": {"stage": "text", "inputs": {"*": "text"}}}, "paper": {"when": "object"},
        "data": "object", "privacy": "object", "federated": "object", "trainer": "object",
    },
}  # fmt: skip
MANIFEST: Form = {
    "kind": "text", "key": "text", "side": "text", "sensitivity": "text", "simulated": "true or false",
    "settings": "object", "trainer": "object", "inputs": {"*": "text"}, "notes": "object",
    "key_parts": {"settings": "object", "trainer": "object", "code": "text"},
    "metrics": [{
        "arm": "text", "metric": "text!", "value": "number", "ci_low": "number", "ci_high": "number",
    }],
    "ledger": ["object"], "uncovered": ["text"],
    "data": [{"name": "text", "file": "text", "sha256": "text"}],
}  # fmt: skip


def check_form(value: Any, form: Form, path: Path, todo: str) -> None:
    """Refuse the content of a JSON file that has another form.

    Args:
        value: What the file holds.
        form: :data:`RUN` or :data:`MANIFEST`. Keys it does not name may be there.
        path: The file, for the message.
        todo: What the user should do, for the message.

    Raises:
        ArtifactError: Naming the file, the place in it, and what was there instead.
    """
    problem = _problem(value, form, "")
    if problem:
        raise ArtifactError(
            f"{path} is damaged or was not written by this version: {problem}. {todo}".rstrip()
        )


def _problem(value: Any, form: Form, place: str) -> str:
    if isinstance(form, str):
        wanted, is_needed = form.rstrip("!"), form.endswith("!")
        allowed = _SIMPLE[wanted](value) or (value is None and not is_needed)
        return "" if allowed else _mismatch(place, wanted, value)
    if value is None:
        return ""
    if isinstance(form, list):
        if not isinstance(value, list):
            return _mismatch(place, "list", value)
        return _first(_problem(item, form[0], f"{place}[{index}]") for index, item in enumerate(value))
    if not isinstance(value, Mapping):
        return _mismatch(place, "object", value)
    keys = value if "*" in form else form
    return _first(
        _problem(value.get(key), form.get(key, form.get("*")), f"{place}.{key}".lstrip(".")) for key in keys
    )


def _first(problems: Any) -> str:
    return next((problem for problem in problems if problem), "")


def _mismatch(place: str, wanted: str, value: Any) -> str:
    article = (
        "" if wanted == "true or false" else "an " if wanted == "object" else "a " if wanted != "text" else ""
    )
    return f"{place or 'it'} must be {article}{wanted}, got {repr(value)[:60]}"
