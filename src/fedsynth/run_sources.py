"""The data sources of a run: what its stages name, where that is, what plans and manifests say of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsynth.data.cxr_sites.source import CXR_SITES, locate_site
from fedsynth.data.edaic.source import CorpusRequest, corpus_on_disk, resolve_corpus
from fedsynth.data.official import CORPUS_NAMES, UNPUBLISHED_NAMES
from fedsynth.data.sources import DataSource, locate, resolve_sources
from fedsynth.data.xray.source import DATASETS, XRAY, XraySource, combine
from fedsynth.errors import DataError
from fedsynth.pipeline.planner import Source
from fedsynth.pipeline.stage import find_stage

# Sources that hold nobody's private records: public by construction of the experiments.
PUBLIC_SOURCES = ("chestmnist",)
UNKNOWN_KEYS = "Keys that depend on them are not known yet."


def source_names(config: Mapping[str, Any]) -> list[str]:
    """The names of all sources that the stages of a resolved config read."""
    stages = config["stages"].items()
    return sorted(
        {source for name, stage in stages for source in find_stage(stage["stage"], f"stages.{name}").data}
    )


def planner_sources(sources: Mapping[str, DataSource]) -> dict[str, Source]:
    """What the planner needs of them; public ones are known to be public before they are there."""
    absent = {name: Source("", private=False) for name in PUBLIC_SOURCES}
    return {
        **absent,
        **{name: Source(found.digest, name not in PUBLIC_SOURCES) for name, found in sources.items()},
    }


def obtain_sources(config: Mapping[str, Any]) -> dict[str, DataSource]:
    """The sources found, downloaded or simulated.

    Raises:
        DataError: If they are missing and the config allows neither of the last two, or a corpus has faults.
    """
    data, mode, simulated_dir = config["data"], config["data"]["source"], _simulated_dir(config)
    found = {
        name: resolve_corpus(_corpus_request(config), mode=mode, simulated_dir=simulated_dir)
        for name in _corpus_names(config)
    }
    found |= _cxr_sources(config)
    files = _file_names(config)
    if files:
        found |= resolve_sources(
            files,
            Path(data["dir"]),
            mode=mode,
            download=data["download"],
            simulated_dir=simulated_dir,
            filenames=data.get("files") or {},
            size=data["image_size"],
        )
    return _with_xray(config, found)


def sources_on_disk(config: Mapping[str, Any]) -> tuple[dict[str, DataSource], list[str]]:
    """What a run would find without fetching or writing anything.

    Returns:
        The sources, or none if a run would have to fetch or simulate some; and remarks for the user.
    """
    found, remarks = _files_on_disk(config) if _file_names(config) else ({}, [])
    for name in _corpus_names(config):
        corpus, said = corpus_on_disk(
            _corpus_request(config), mode=config["data"]["source"], simulated_dir=_simulated_dir(config)
        )
        remarks += said
        if corpus is None:
            return {}, [*remarks, UNKNOWN_KEYS]
        found[name] = corpus
    try:
        found |= _cxr_sources(config, planning=True)
    except DataError as error:
        return {}, [*remarks, str(error), UNKNOWN_KEYS]
    return _with_xray(config, found), remarks


def _corpus_names(config: Mapping[str, Any]) -> list[str]:
    return [name for name in source_names(config) if name in CORPUS_NAMES]


def _file_names(config: Mapping[str, Any]) -> list[str]:
    named = [name for name in source_names(config) if name not in (*CORPUS_NAMES, XRAY)]
    return sorted({*named, *(DATASETS[name].source for name in _xray_datasets(config))})


def _xray_datasets(config: Mapping[str, Any]) -> list[str]:
    """Data sets named by the stages that read X-rays; what is no name is left to the check of settings."""
    return sorted(_named_xrays(config) & set(DATASETS))


def _named_xrays(config: Mapping[str, Any]) -> set[str]:
    readers = [stage for stage in config["stages"].values() if XRAY in find_stage(stage["stage"], "").data]
    return {str(stage.get("dataset")) for stage in readers}


def _cxr_sources(config: Mapping[str, Any], *, planning: bool = False) -> dict[str, DataSource]:
    """The licensed corpora of chest X-rays that stages name."""
    roots, cache = config["data"].get("roots") or {}, Path(config["paths"]["log_dir"]) / "cache"
    return {
        name: locate_site(
            name,
            Path(roots[name]) if roots.get(name) else None,
            cache_dir=cache,
            allow_missing_files=config["data"].get("allow_missing_files", False),
            planning=planning,
        )
        for name in sorted(_named_xrays(config) & set(CXR_SITES))
    }


def _with_xray(config: Mapping[str, Any], found: Mapping[str, DataSource]) -> dict[str, DataSource]:
    """The sources with those of X-rays as one, under the name that stages ask for; none if one of them is missing."""
    wanted = {name: DATASETS[name].source for name in _xray_datasets(config)}
    wanted |= {name: name for name in _named_xrays(config) & set(CXR_SITES)}
    if not wanted or not set(wanted.values()) <= set(found):
        return dict(found)
    return {**found, XRAY: combine({name: found[source] for name, source in wanted.items()})}


def _simulated_dir(config: Mapping[str, Any]) -> Path:
    return Path(config["paths"]["log_dir"]) / "simulated"


def _corpus_request(config: Mapping[str, Any]) -> CorpusRequest:
    """What the stages of this run read of E-DAIC: a file that none of them opens has no say in any key."""
    root = config["data"].get("edaic_root")
    readers = [stage for stage in config["stages"].values() if "edaic" in find_stage(stage["stage"], "").data]
    excluded = [frozenset(stage["exclude_participants"]) for stage in readers]
    needs_detailed = any(stage["label_rule"] == "phq8ge10" for stage in readers)
    return CorpusRequest(
        root=None if root is None else Path(root),
        audio_features=tuple(sorted({stage["audio_features"] for stage in readers})),
        rule="phq8ge10" if needs_detailed else "phq_binary",
        exclude=frozenset.intersection(*excluded),
        cache_dir=Path(config["paths"]["log_dir"]) / "cache",
    )


def _files_on_disk(config: Mapping[str, Any]) -> tuple[dict[str, DataSource], list[str]]:
    data = config["data"]
    remarks: list[str] = []
    if data["source"] != "simulated":
        found, remarks = _locate_all(config)
        if not remarks:
            return found, []
        if data["source"] == "real" and not data["download"]:
            return {}, [*remarks, f"Data are not there; a run would stop at once. {UNKNOWN_KEYS}"]
        if data["download"]:
            otherwise = ", or SIMULATED if that fails" if data["source"] == "auto" else ""
            return {}, [*remarks, f"Data are not there; a run would download them{otherwise}. {UNKNOWN_KEYS}"]
    try:
        return _simulated_on_disk(config), [*remarks, "Data are SIMULATED."]
    except DataError:
        return {}, [*remarks, f"Data would be SIMULATED. {UNKNOWN_KEYS}"]


def _locate_all(config: Mapping[str, Any]) -> tuple[dict[str, DataSource], list[str]]:
    data, found, problems = config["data"], {}, []
    files = data.get("files") or {}
    for name in _file_names(config):
        try:
            found[name] = locate(
                name, data["dir"], download=False, size=data["image_size"], filename=files.get(name)
            )
        except DataError as error:
            problems.append(str(error))
            continue
        if found[name].simulated:
            problems.append(f"{found[name].path} holds simulated data; point DATA_DIR at the real {name}.")
    return found, problems


def _simulated_on_disk(config: Mapping[str, Any]) -> dict[str, DataSource]:
    from fedsynth.data.simulated import SIMULATION_VERSION

    root = _simulated_dir(config) / f"v{SIMULATION_VERSION}-seed0"
    size = config["data"]["image_size"]
    # A set of X-rays with patients has a folder of its own.
    folders = {name: root / name if name in UNPUBLISHED_NAMES else root for name in _file_names(config)}
    return {name: locate(name, folder, download=False, size=size) for name, folder in folders.items()}


def source_records(source: DataSource) -> list[dict[str, Any]]:
    """Manifest entries of a data source: one per file, or one for a directory of many."""
    if isinstance(source, XraySource):
        return [entry for dataset in (source.datasets or {}).values() for entry in source_records(dataset)]
    common = {"name": source.name, "simulated": source.simulated, "licence": source.licence}
    if len(source.files) > 3:
        known = all(file.known for file in source.files)
        name = f"{source.path.name}/ ({len(source.files)} files)"
        return [{**common, "file": name, "sha256": source.digest, "md5": None, "known": known}]
    return [
        {**common, "file": file.name, "sha256": file.sha256, "md5": file.md5, "known": file.known}
        for file in source.files
    ]
