"""Stage settings: frozen dataclasses whose fields carry their own bounds, checked before anything runs.

Defaults live in ``configs/`` only; a field that a config leaves out is an error, not a hidden default.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from fedsynth.errors import ConfigError
from fedsynth.pipeline.file_content import content_key

T = TypeVar("T")


def setting(
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    one_of: Sequence[object] | None = None,
    allow_infinite: bool = False,
    remedy: str = "",
    in_key: bool = True,
    is_file: bool = False,
    as_key: Callable[[Any], Any] | None = None,
) -> Any:
    """A settings field with its bounds.

    Args:
        minimum: Smallest value allowed (of every element, for a list).
        maximum: Largest value allowed.
        above: The value must be strictly greater.
        below: The value must be strictly less.
        one_of: The only values allowed.
        allow_infinite: Whether .inf and -.inf are values the field has a meaning for.
        remedy: What the user should do, appended to the error.
        in_key: False for values that cannot change a result (batch sizes of evaluation, worker counts).
        is_file: Whether the value may name a file or folder, which then enters the key by its content: other bytes are
            another result, the same bytes elsewhere are not. A value that names nothing there stays as it is.
        as_key: The same for a value that holds a path besides other things: gives what stands for it in the key.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "above": above, "below": below, "one_of": one_of}
    more = {"allow_infinite": allow_infinite, "remedy": remedy, "in_key": in_key}
    more["as_key"] = content_key if is_file else as_key
    return dataclasses.field(default=MISSING, metadata={**bounds, **more})


def build_settings(settings_type: type[T], values: Mapping[str, Any], path: str) -> T:
    """The settings object for a stage, checked.

    Args:
        settings_type: A frozen dataclass whose fields were made with :func:`setting`.
        values: The resolved config values of the stage.
        path: The config path of the stage, for messages, e.g. ``stages.release``; may be empty.

    Raises:
        ConfigError: For an unknown or missing key, a wrong type, or a value out of bounds.
    """
    known = {field.name: field for field in dataclasses.fields(settings_type)}  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    for name in values:
        if name not in known:
            raise ConfigError(unknown_key(f"{prefix}{name}", str(name), known))
    for name in known:
        if name not in values or values[name] == "???":
            key = f"{prefix}{name}"
            raise ConfigError(f"{key} is missing. Give it in a config file or as {key}=…", key=key)
    numbers = {name: _number(value, known[name]) for name, value in values.items()}
    try:
        merged = OmegaConf.merge(OmegaConf.structured(settings_type), OmegaConf.create(numbers))
        built = OmegaConf.to_object(merged)
    except (ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException) as error:
        key = getattr(error, "full_key", "") or _misfit(settings_type, numbers)
        name = re.split(r"[.\[]", key)[0]
        first_line = str(error).splitlines()[0].rstrip(".")
        wanted, remedy = (
            ("?", "") if name not in known else (known[name].type, known[name].metadata["remedy"])
        )
        wanted = wanted.__name__ if isinstance(wanted, type) else wanted
        message = (
            f"{prefix}{key} has the wrong type: {first_line} (wanted {wanted}, got {values.get(name)!r})."
        )
        raise ConfigError(f"{message} {remedy}".rstrip(), key=f"{prefix}{name}") from error
    for field in known.values():
        _check_elements(field, getattr(built, field.name), f"{prefix}{field.name}")
        _check_field(field, getattr(built, field.name), f"{prefix}{field.name}")
    check = getattr(built, "check", None)
    if check is not None:
        check(path)
    return built  # type: ignore[return-value]


def _misfit(settings_type: type, values: Mapping[str, Any]) -> str:
    """The first name whose value alone cannot be merged: OmegaConf does not say it of lists and mappings."""
    for name, value in values.items():
        try:
            OmegaConf.merge(OmegaConf.structured(settings_type), OmegaConf.create({name: value}))
        except OmegaConfBaseException:
            return name
    return ""


def _check_elements(field: dataclasses.Field[Any], value: Any, key: str) -> None:
    """Refuse a list or a mapping for a number, text or switch in a list or mapping: OmegaConf lets them pass."""
    kind = re.search(r"\b(?:list\[|dict\[str, ?)(int|float|str|bool)\]", str(field.type))
    elements = value.values() if isinstance(value, Mapping) else value
    if kind and any(isinstance(element, list | Mapping) for element in elements or ()):
        remedy = f" {field.metadata['remedy']}" if field.metadata["remedy"] else ""
        raise ConfigError(
            f"{key} has the wrong type: every entry must be of type {kind[1]}, got {value!r}.{remedy}",
            key=key,
        )


def _number(value: Any, field: dataclasses.Field[Any]) -> Any:
    """Of a field of floats, YAML's words for infinity and NaN as numbers: Hydra leaves them strings."""
    if not re.search(r"\bfloat\b", getattr(field.type, "__name__", str(field.type))):
        return value
    if isinstance(value, list | tuple):
        return [_number(element, field) for element in value]
    if isinstance(value, Mapping):
        return {key: _number(element, field) for key, element in value.items()}
    if isinstance(value, str) and re.fullmatch(r"[-+]?\.?inf|\.?nan", value.strip(), re.IGNORECASE):
        return float(value.strip().replace(".", ""))
    return value


def unknown_key(full_key: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The message for a key nobody knows, with the nearest known one."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(sorted(names))}."
    return f"{full_key} is not a known key. {hint}"


def _check_field(field: dataclasses.Field[Any], value: Any, key: str) -> None:
    if value is None:
        return
    rules = field.metadata
    for element in value if isinstance(value, list | tuple) else [value]:
        problem = _violated(rules, element)
        if problem:
            remedy = f" {rules['remedy']}" if rules["remedy"] else ""
            raise ConfigError(f"{key} must be {problem}, got {value!r}.{remedy}", key=key)


def _violated(rules: Mapping[str, Any], value: Any) -> str:
    if rules.get("one_of") is not None and value not in rules["one_of"]:
        return "one of " + ", ".join(map(str, rules["one_of"]))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    limits = [
        (rules.get("minimum"), lambda bound: value >= bound, "≥"),
        (rules.get("maximum"), lambda bound: value <= bound, "≤"),
        (rules.get("above"), lambda bound: value > bound, ">"),
        (rules.get("below"), lambda bound: value < bound, "<"),
    ]
    limits = [limit for limit in limits if limit[0] is not None]
    wanted = [f"{sign} {bound:g}" for bound, _, sign in limits]
    if math.isnan(value) or (math.isinf(value) and not rules.get("allow_infinite")):
        return " and ".join(["a finite number", *wanted] if not rules.get("allow_infinite") else wanted)
    return "" if all(holds(bound) for bound, holds, _ in limits) else " and ".join(wanted)


def key_values(settings: Any) -> dict[str, Any]:
    """The settings that decide a result, i.e. those that enter the artifact's key; files by their content."""
    values = {}
    for field in dataclasses.fields(settings):
        if field.metadata.get("in_key", True):
            value, as_key = getattr(settings, field.name), field.metadata.get("as_key")
            values[field.name] = value if as_key is None else as_key(value)
    return values


def named_files(settings: Any) -> dict[str, Any]:
    """The settings that enter the key by content: runs of one key may name their files by different paths."""
    fields = dataclasses.fields(settings)
    return {field.name: getattr(settings, field.name) for field in fields if field.metadata.get("as_key")}
