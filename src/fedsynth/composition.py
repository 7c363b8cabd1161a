"""Compose the Hydra config and check it, with one clear message for whatever is wrong. Imports no torch."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import unknown_key

CONFIG_DIR = Path(__file__).parents[2] / "configs"
# Groups whose files speak for the whole config, or for a part of it that another file names.
GLOBAL_GROUPS = (
    "debug", "experiment", "federated_schedule", "hparams_search", "hydra", "local", "stage", "strategy", "systems",
)  # fmt: skip


def new_run_id() -> str:
    """RUN_ID when the launcher set it (all ranks then agree), else UTC time and four random hex digits."""
    return (
        os.environ.get("RUN_ID") or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    )


def register_resolvers() -> None:
    """The resolvers the configs use; safe to call twice."""
    OmegaConf.register_new_resolver("run_id", new_run_id, use_cache=True, replace=True)


def compose_config(overrides: Sequence[str], *, with_hydra: bool = False) -> DictConfig:
    """One composed config.

    Args:
        overrides: As typed on the command line.
        with_hydra: Keep Hydra's own section; parts of it only a running app can resolve.

    Raises:
        ConfigError: For an unknown key, experiment or group option, or a malformed override.
    """
    register_resolvers()
    if not CONFIG_DIR.is_dir():
        raise ConfigError(
            f"no config folder at {CONFIG_DIR}. Install fedsynth editable from a checkout: pip install -e ."
        )
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        try:
            return compose("train", overrides=list(overrides), return_hydra_config=with_hydra)
        except yaml.YAMLError as error:
            raise ConfigError(f"a configuration file is not valid YAML: {_one_line(error)}.") from error
        # Hydra reports some overrides, such as experiment=null, as plain ValueErrors; OmegaConf stumbles with an
        # AttributeError over a mapping given to hydra.sweeper.params.
        except (HydraException, OmegaConfBaseException, ValueError, AttributeError) as error:
            _raise_interrupt(error)
            raise ConfigError(_explain(error, overrides)) from error


def resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, every interpolation resolved.

    Raises:
        ConfigError: If an interpolation points nowhere, or no experiment is chosen.
    """
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        _raise_interrupt(error)
        problem = str(error).splitlines()[0]
        raise ConfigError(f"{error.full_key}: {problem}{_remedy(problem)}") from error
    assert isinstance(values, dict)
    name, known = values.get("experiment_name"), ", ".join(experiments())
    if not values.get("stages"):
        raise ConfigError(
            f"no experiment chosen, or one without stages. Say experiment=NAME; there are: {known}."
            if name in (None, "none")
            else f"experiment {name} has no stages. Fill stages: in its file, or take another: {known}."
        )
    for section in ("stages", "paths", "data", "trainer"):
        if not isinstance(values.get(section), dict):
            hint = " An experiment brings its own; without one say +data=NAME." if section == "data" else ""
            raise ConfigError(
                f"{section} must be a section of keys and values, got {values.get(section)!r}.{hint}"
            )
    return values  # type: ignore[return-value]


def check_keys(values: Mapping[str, Any]) -> None:
    """Refuse keys that no file of ``configs/`` introduces: composing silently adds what one of them mistypes.

    Args:
        values: The resolved config. Stages are left to the planner, which knows their settings.

    Raises:
        ConfigError: Naming the key and the nearest known one.
    """
    groups = [path.name for path in CONFIG_DIR.iterdir() if path.is_dir() and path.name not in GLOBAL_GROUPS]
    top = _keys_of(CONFIG_DIR / "train.yaml") | set(groups)
    for name, section in values.items():
        if name not in top:
            raise ConfigError(unknown_key(name, name, sorted(top)))
        if name in groups and name != "trainer" and isinstance(section, dict):
            known = set().union(*(_keys_of(path) for path in (CONFIG_DIR / name).glob("*.yaml")))
            for key in section:
                if key not in known:
                    raise ConfigError(unknown_key(f"{name}.{key}", str(key), sorted(known)))


@cache
def _keys_of(path: Path) -> frozenset[str]:
    """Top-level keys of a YAML file, those of its defaults list (``/group@key: option``) included."""
    try:
        loaded = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}.") from error
    entries = [entry for entry in loaded.get("defaults", []) if isinstance(entry, dict)]
    placed = {name.partition("@")[2].split(".")[0] for entry in entries for name in entry if "@" in name}
    return frozenset(loaded) - {"defaults"} | placed


def experiments() -> list[str]:
    """The names that ``experiment=`` takes, read from the folder."""
    folder = CONFIG_DIR / "experiment"
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def expand_sweep(overrides: Sequence[str]) -> Iterator[list[str]]:
    """Every combination of a multirun's overrides, as Hydra's own sweeper will run them.

    Raises:
        ConfigError: For a malformed override.
    """
    single = [override.input_line or "" for override in _parse(overrides) if not override.is_sweep_override()]
    # A config may bring a sweep of its own (hparams_search=…); what is typed comes later and wins.
    brought = [f"{name}={value}" for name, value in sweep_parameters(single).items()]
    choices = []
    for override in _parse([*brought, *overrides]):
        if override.is_sweep_override():
            name = override.get_key_element()
            choices.append([f"{name}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line or ""])
    return (list(combination) for combination in itertools.product(*choices))


def sweep_parameters(overrides: Sequence[str]) -> dict[str, Any]:
    """The sweep that the composed config itself asks for: ``hydra.sweeper.params``."""
    config = compose_config(overrides, with_hydra=True)
    return dict(OmegaConf.select(config, "hydra.sweeper.params") or {})


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        _raise_interrupt(error)
        raise ConfigError(_explain(error, overrides)) from error


def source_of(config: DictConfig, key: str) -> str:
    """The key a value is interpolated from, or ''. So an error can name what the user really wrote."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in node:
        return ""
    raw = OmegaConf.to_container(node, resolve=False)
    match = re.fullmatch(r"\$\{([\w.]+)\}", str(raw.get(name))) if isinstance(raw, dict) else None
    return match.group(1) if match else ""


def _remedy(problem: str) -> str:
    """The options that have a key which the chosen option of its group lacks; '' if there are none."""
    missing = re.search(r"Interpolation key '(\w+)\.(\w+)", problem)
    if not missing:
        return ""
    group, key = missing.groups()
    having = sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml") if key in _keys_of(path))
    return f". Say {' or '.join(f'{group}={name}' for name in having)}." if having else ""


def _raise_interrupt(error: BaseException) -> None:
    """Ctrl-C is no fault of the configuration, though Hydra and OmegaConf wrap it as if it were one."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        link = link.__cause__ or link.__context__


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    text = str(error).strip()
    sweeper = [word for word in overrides if word.lstrip("+").startswith("hydra.sweeper.params")]
    if sweeper and isinstance(error, AttributeError):
        return (
            f"{sweeper[0]!r} cannot be set on the command line. Sweep by key=value,value with --multirun, or "
            "name a file: hparams_search=NAME."
        )
    override = re.search(r"Could not override '([^']+)'", text)
    if override:
        key = override.group(1)
        return f"{key} is not a key of this configuration. {_nearest(key, overrides)}"
    missing = re.search(r"Could not find '(\w+)/([^']*)'", text)
    if missing:
        group, name = missing.groups()
        options = experiments() if group == "experiment" else _options(group)
        near = difflib.get_close_matches(name, options, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        listed = ", ".join(options)
        return f"{group}={name}: there is no {name!r} in configs/{group}/.{hint} There are: {listed}."
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override!r} is not an override. Write key=value, ~key to delete, or +key=value to "
            "add; quote values with spaces, brackets or commas for the shell: 'key=[1, 2]'."
        )
    return f"the configuration cannot be composed: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def _nearest(key: str, overrides: Sequence[str]) -> str:
    groups = [word for word in overrides if re.match(r"^[\w/@.]+=", word) and _is_group(word.split("=")[0])]
    known = sorted(_leaves(OmegaConf.to_container(compose("train", overrides=groups), resolve=False)))
    # A section is no key to give a value to, unless there are several files to choose from.
    known += [path.name for path in CONFIG_DIR.iterdir() if path.is_dir() and len(_options(path.name)) > 1]
    if "experiment" not in {word.split("=")[0] for word in groups}:
        return f"No experiment is chosen; say experiment=NAME first ({', '.join(experiments())})."
    near = difflib.get_close_matches(key, known, n=1)
    return (
        f"Did you mean {near[0]}?"
        if near
        else "See all keys with: python -m fedsynth.train --cfg job " + " ".join(groups)
    )


def _is_group(name: str) -> bool:
    return (CONFIG_DIR / name.split("@")[0]).is_dir()


def _leaves(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return set().union(
        *(_leaves(child, f"{prefix}.{name}" if prefix else str(name)) for name, child in value.items())
    )
