"""Compose the Hydra config and check it, with one clear message for whatever is wrong. Imports no torch."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsynth.errors import ConfigError

CONFIG_DIR = Path(__file__).parents[2] / "configs"


def new_run_id() -> str:
    """RUN_ID when the launcher set it (all ranks then agree), else UTC time and four random hex digits."""
    return os.environ.get("RUN_ID") or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def register_resolvers() -> None:
    """The resolvers the configs use; safe to call twice."""
    OmegaConf.register_new_resolver("run_id", new_run_id, use_cache=True, replace=True)


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """One composed config.

    Raises:
        ConfigError: For an unknown key, experiment or group option, or a malformed override.
    """
    register_resolvers()
    if not CONFIG_DIR.is_dir():
        raise ConfigError(f"no config folder at {CONFIG_DIR}. Install fedsynth editable from a checkout: pip install -e .")
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        try:
            return compose("train", overrides=list(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_explain(error, overrides)) from error


def resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, every interpolation resolved.

    Raises:
        ConfigError: If an interpolation points nowhere, or no experiment is chosen.
    """
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(values, dict)
    if not values.get("stages"):
        raise ConfigError(f"no experiment chosen. Say experiment=NAME; there are: {', '.join(experiments())}.")
    return values  # type: ignore[return-value]


def experiments() -> list[str]:
    """The names that ``experiment=`` takes, read from the folder."""
    folder = CONFIG_DIR / "experiment"
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def expand_sweep(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Every combination of a multirun's overrides, as Hydra's own sweeper will run them."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        raise ConfigError(_explain(error, overrides)) from error
    choices = []
    for override in parsed:
        if override.is_sweep_override():
            name = override.get_key_element()
            choices.append([f"{name}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line or ""])
    return (list(combination) for combination in itertools.product(*choices))


def source_of(config: DictConfig, key: str) -> str:
    """The key a value is interpolated from, or ''. So an error can name what the user really wrote."""
    node, name = OmegaConf.select(config, key.rpartition(".")[0]), key.rpartition(".")[2]
    if not isinstance(node, DictConfig) or name not in node:
        return ""
    raw = OmegaConf.to_container(node, resolve=False)
    match = re.fullmatch(r"\$\{([\w.]+)\}", str(raw.get(name))) if isinstance(raw, dict) else None
    return match.group(1) if match else ""


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    text = str(error).strip()
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        key = override.group(1)
        return f"{key} is not a key of this configuration. {_nearest(key, overrides)}"
    missing = re.search(r"Could not find '(\w+)/([^']+)'", text)
    if missing:
        group, name = missing.groups()
        options = experiments() if group == "experiment" else _options(group)
        near = difflib.get_close_matches(name, options, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return f"{group}={name}: there is no {name!r} in configs/{group}/.{hint} There are: {', '.join(options)}."
    lines = [line for line in text.splitlines() if line.strip() and "HYDRA_FULL_ERROR" not in line]
    return "the configuration cannot be composed: " + " ".join(line.strip() for line in lines)


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def _nearest(key: str, overrides: Sequence[str]) -> str:
    groups = [word for word in overrides if re.match(r"^[\w/@.]+=", word) and _is_group(word.split("=")[0])]
    known = sorted(_flatten(OmegaConf.to_container(compose("train", overrides=groups), resolve=False)))
    if "experiment" not in {word.split("=")[0] for word in groups}:
        return f"No experiment is chosen; say experiment=NAME first ({', '.join(experiments())})."
    near = difflib.get_close_matches(key, known, n=1)
    return f"Did you mean {near[0]}?" if near else "See all keys with: python -m fedsynth.train --cfg job " + " ".join(groups)


def _is_group(name: str) -> bool:
    return (CONFIG_DIR / name.split("@")[0]).is_dir()


def _flatten(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    keys = {prefix} if prefix else set()
    return keys.union(*(_flatten(child, f"{prefix}.{name}" if prefix else str(name)) for name, child in value.items()))
