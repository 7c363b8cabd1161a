"""The keys of a run that belong to no stage, and the processes it needs: checked before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedsynth.data.cxr_sites.source import CXR_SITES
from fedsynth.data.official import DOWNLOADED_NAMES
from fedsynth.data.xray.source import DATASETS
from fedsynth.errors import ConfigError
from fedsynth.pipeline.settings import build_settings, setting, unknown_key
from fedsynth.run_folder import check_run_folder

RUN_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class RunSettings:
    """The run itself."""

    experiment_name: str = setting()
    run_id: str = setting()
    seed: int = setting(minimum=0, maximum=2**63 - 1)
    plan: bool = setting()


@dataclass(frozen=True)
class DataSettings:
    """Where data below DATA_DIR come from. What is made of them is a matter of the stages."""

    source: str = setting(one_of=("auto", "real", "simulated"))
    dir: str = setting()
    download: bool = setting()
    image_size: int = setting(one_of=(28, 64, 128, 224), remedy="These are the sizes MedMNIST publishes.")


@dataclass(frozen=True)
class XrayDataSettings:
    """Where X-rays with patients come from: read at the size they are stored at, resized by the stage."""

    source: str = setting(one_of=("auto", "real", "simulated"))
    dir: str = setting()
    download: bool = setting(one_of=(False,), remedy="No public address has these files.")
    dataset: str = setting(one_of=tuple(DATASETS))
    image_size: int = setting(minimum=8, remedy="Pixels of a side, up to the stored size.")


@dataclass(frozen=True)
class CxrDataSettings:
    """Where the licensed corpora of chest X-rays are, each in a folder of its own."""

    source: str = setting(
        one_of=("real",),
        remedy="Nothing stands in for them; data=kermany data.source=simulated tries the code.",
    )
    dir: str = setting()
    download: bool = setting(one_of=(False,), remedy="Access is by their publishers only.")
    dataset: str = setting(one_of=CXR_SITES)
    roots: dict[str, Any] = setting(remedy="A folder, or null, by data set.")
    image_size: int = setting(minimum=8, remedy="Pixels of a side.")
    allow_missing_files: bool = setting(remedy="true goes on with the listed images that are there.")

    def check(self, path: str) -> None:
        for name, root in self.roots.items():
            if root is not None and not isinstance(root, str):
                raise ConfigError(
                    f"{path}.roots.{name} must be a folder or null, got {root!r}. Quote a name of digits.",
                    key=f"{path}.roots.{name}",
                )


@dataclass(frozen=True)
class CorpusSettings:
    """Where a corpus under a licence is: nobody can download it, and it has no images."""

    source: str = setting(one_of=("auto", "real", "simulated"))
    edaic_root: str | None = setting(
        remedy="Set EDAIC_ROOT to the folder of the corpus, or leave it unset for simulated data."
    )


@dataclass(frozen=True)
class PathSettings:
    """Folders of this machine."""

    log_dir: str = setting(remedy="Set LOG_DIR to a folder, or leave it unset.")
    data_dir: str = setting(remedy="Set DATA_DIR to a folder, or leave it unset.")


@dataclass(frozen=True)
class BudgetSettings:
    """What the whole run may spend. The rest of ``privacy`` is a matter of the stages."""

    budget: float | None = setting(above=0.0, allow_infinite=True, remedy="An ε, or null for no limit.")


def check_run_settings(config: dict[str, Any]) -> None:
    """Refuse impossible values of the run, its data and its paths.

    Args:
        config: The resolved config. What Hydra leaves a string (``.inf``, a quoted number) becomes a number in it.

    Raises:
        ConfigError: Naming the key, the value and the bounds.
    """
    sections = (
        (RunSettings, config, ""),
        (_data_settings(config), config["data"], "data"),
        (PathSettings, config["paths"], "paths"),
        (BudgetSettings, config["privacy"], "privacy"),
    )
    checked = []
    for settings_type, values, path in sections:
        known = [field.name for field in fields(settings_type)]
        built: Any = build_settings(
            settings_type, {name: values[name] for name in known if name in values}, path
        )
        checked.append((values, built))
    # OmegaConf takes "off" for false; Python takes the string for true.
    switches = {
        f"data.{name}": config["data"].get(name, False) for name in ("download", "allow_missing_files")
    }
    for key, value in {"plan": config["plan"], **switches}.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, got {value!r}.", key=key)
    if not RUN_ID.fullmatch(str(config["run_id"])):
        raise ConfigError(
            f"run_id must be the name of one folder, got {config['run_id']!r}. Use up to 128 of a-z, A-Z, 0-9, "
            "'.', '_' and '-' (run_id=NAME or RUN_ID=NAME), or leave it out.",
            key="run_id",
        )
    for key, value in _folders(config):
        if not isinstance(value, str):
            raise ConfigError(f"{key} must be a folder, got {value!r}. Quote a name of digits.", key=key)
    if (
        _is_corpus(config)
        and config["data"]["edaic_root"] is not None
        and not config["data"]["edaic_root"].strip()
    ):
        raise ConfigError(
            "data.edaic_root is empty. Set EDAIC_ROOT to the folder of the corpus, or leave it unset.",
            key="data.edaic_root",
        )
    for name, variable in (("log_dir", "LOG_DIR"), ("data_dir", "DATA_DIR")):
        if not config["paths"][name].strip():
            raise ConfigError(
                f"paths.{name} is empty. Set {variable} to a folder, or leave it unset.", key=f"paths.{name}"
            )
    for values, built in checked:
        numbers = {name: value for name, value in vars(built).items() if isinstance(value, int | float)}
        values.update(numbers)
    _check_files(config["data"].get("files"))
    if not config["plan"]:
        check_run_folder(Path(config["paths"]["log_dir"]) / "runs" / str(config["experiment_name"]))


def _data_settings(config: Mapping[str, Any]) -> type:
    """The kind of data config: a corpus, X-rays with patients, or what can be downloaded."""
    if _is_corpus(config):
        return CorpusSettings
    if "roots" in config["data"]:
        return CxrDataSettings
    return XrayDataSettings if "dataset" in config["data"] else DataSettings


def _is_corpus(config: Mapping[str, Any]) -> bool:
    """Whether the data config (``data=edaic``) names a corpus instead of DATA_DIR."""
    return "edaic_root" in config["data"]


def _folders(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    key = "edaic_root" if _is_corpus(config) else "dir"
    data = [(f"data.{key}", config["data"][key])] if config["data"][key] is not None else []
    return data + [(f"paths.{name}", config["paths"][name]) for name in ("log_dir", "data_dir")]


def _check_files(files: Any) -> None:
    """``data.files``: for each MedMNIST set a file name or several of them."""
    remedy = "Say data.files.NAME=[official, FILE.npz], or leave it out for the published files."
    if files is None:
        return
    if not isinstance(files, Mapping):
        raise ConfigError(f"data.files must hold file names by data set, got {files!r}. {remedy}")
    known = [name for name in DOWNLOADED_NAMES if name != "mitdb"]
    for name, value in files.items():
        key = f"data.files.{name}"
        if name not in known:
            raise ConfigError(unknown_key(key, str(name), known))
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
            raise ConfigError(
                f"{key} must be a file name or a list of them, got {value!r}. {remedy}", key=key
            )


def check_processes(config: Mapping[str, Any]) -> None:
    """One process per device is started from outside; a plan needs only one.

    Raises:
        ConfigError: If the trainer wants several processes and this is a lone one, or the other way round.
    """
    trainer = config["trainer"]
    strategy, devices = trainer.get("strategy") or "auto", trainer.get("devices")
    wants_many = strategy != "auto" or (isinstance(devices, int) and devices > 1)
    processes = os.environ.get("WORLD_SIZE")
    if wants_many and not processes and not config["plan"]:
        raise ConfigError(
            f"trainer.strategy={strategy} with trainer.devices={devices} needs its processes started by "
            "torchrun, but this is a lone process (WORLD_SIZE is not set). Say: make train gpus=4 …, or "
            "make train trainer=ddp_sim … for two processes on the CPU."
        )
    if processes and int(processes) > 1 and strategy == "auto":
        raise ConfigError(
            f"trainer.strategy must be ddp for the {processes} processes that torchrun started, got "
            f"{strategy}. Say trainer=ddp, or trainer=ddp_sim on the CPU."
        )
