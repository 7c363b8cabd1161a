"""Fingerprints of values and of code. Two artifacts share a key exactly when they would hold the same."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.util
import json
import math
from enum import Enum
from functools import cache
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


@cache
def code_digest(module: str) -> str:
    """Digest of a module and of everything it imports of fedsynth and of its own package, directly or not.

    Taken over the syntax trees without docstrings, so that comments, formatting and documentation leave it
    alone and every other edit changes it. Third-party versions are not part of it; manifests record them.
    """
    parts: dict[str, str] = {}
    waiting = [module]
    own = ("fedsynth", module.split(".")[0])
    while waiting:
        name = waiting.pop()
        if name in parts or name.split(".")[0] not in own or _is_neutral(name):
            continue
        digest, imports = _read_module(name)
        if digest:
            parts[name] = digest
            waiting += imports
    return fingerprint(parts)


@cache
def _read_module(name: str) -> tuple[str, tuple[str, ...]]:
    path = _source(name)
    if path is None:
        return "", ()
    tree = ast.parse(path.read_bytes())
    imports = tuple(sorted(_imports(tree, name if path.name == "__init__.py" else name.rpartition(".")[0])))
    return hashlib.sha256(ast.dump(_without_docstrings(tree)).encode()).hexdigest(), imports


def _source(module: str) -> Path | None:
    top, *rest = module.split(".")
    if top == "fedsynth":
        path = PACKAGE.joinpath(*rest)
    else:
        # Finding a top-level package imports nothing.
        found = importlib.util.find_spec(top)
        if found is None or not found.origin:
            return None
        path = Path(found.origin) if not rest else Path(found.origin).parent.joinpath(*rest)
    places = (path, path.with_suffix(".py"), path / "__init__.py")
    return next((place for place in places if place.is_file()), None)


def _is_neutral(name: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in NEUTRAL)


def _imports(tree: ast.AST, package: str) -> set[str]:
    """Full names of all that is imported; relative names are resolved against ``package``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return tree
