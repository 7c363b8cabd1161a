"""Fingerprints of values and of code. Two artifacts share a key exactly when the same thing would be computed."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import math
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
# Parts that move, log or describe results but cannot change them.
NEUTRAL = ("fedsynth.errors", "fedsynth.pipeline", "fedsynth.report", "fedsynth.tracking", "fedsynth.train")


def canonical(value: Any) -> Any:
    """Plain JSON values with one spelling each: 1 and 1.0 agree, infinities and NaN have names."""
    if isinstance(value, Enum):
        return canonical(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return canonical(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(name): canonical(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [canonical(element) for element in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"float:{value}"
        return int(value) if value.is_integer() else value
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    raise TypeError(f"cannot fingerprint a {type(value).__name__}: {value!r}")


def fingerprint(value: Any) -> str:
    """SHA-256 over the canonical JSON of a value, 64 hex digits."""
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=None)
def code_digest(module: str) -> str:
    """Digest of a module and of everything of fedsynth it imports, directly or not.

    Taken over the syntax trees without docstrings, so that comments, formatting and documentation leave it
    alone and every other edit changes it. Third-party versions are not part of it; manifests record them.
    """
    parts: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in parts or name.startswith(NEUTRAL):
            continue
        digest, imports = _read_module(name)
        if digest:
            parts[name] = digest
            waiting += imports
    return fingerprint(parts)


@lru_cache(maxsize=None)
def _read_module(name: str) -> tuple[str, tuple[str, ...]]:
    path = _source(name)
    if path is None:
        return "", ()
    tree = ast.parse(path.read_bytes())
    imports = tuple(sorted(_imports(tree)))
    return hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest(), imports


def _source(module: str) -> Path | None:
    if not module.startswith("fedsynth"):
        return None
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return next((found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file()), None)


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.startswith("fedsynth")}


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = node.body[1:]
    return tree
