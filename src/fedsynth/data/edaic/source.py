"""Find an E-DAIC corpus, check its tables and folders, and digest what will be read of it. Torch-free."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedsynth.data.digest_cache import DigestCache
from fedsynth.data.edaic.check import REMEDY, SIMULATED_REMEDY, CorpusReport, check_corpus
from fedsynth.data.edaic.labels import LabelRule
from fedsynth.data.edaic.layout import SIMULATED_MARK, SPLIT_FILES, CorpusLayout, expected_layout
from fedsynth.data.edaic.problems import Problems
from fedsynth.data.source_files import DataSource, SourceFile, make_source
from fedsynth.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

NAME = "edaic"


@dataclass(frozen=True)
class CorpusRequest:
    """Which corpus, and what a run will read of it."""

    root: Path | None
    """EDAIC_ROOT; None if it is not set."""
    audio_features: tuple[str, ...] = ("egemaps",)
    """Kinds of openSMILE files; see `fedsynth.data.edaic.layout.AUDIO_FEATURES`."""
    rule: LabelRule = "phq_binary"
    exclude: frozenset[int] = frozenset()
    """Participants not to be used."""
    cache_dir: Path | None = None
    """Digests of files, and later parsed features, are kept below it; None keeps nothing."""


def locate_corpus(request: CorpusRequest, *, planning: bool = False) -> DataSource:
    """The corpus as a data source; its digest is over the files that will be read, and no others.

    Digests are remembered in ``cache_dir/digests.json``, so that gigabytes are not read at every start.

    Args:
        request: Which corpus and what of it.
        planning: Write nothing, and be content with the faults of tables and folders. Otherwise, if there is any
            such fault, the contents are looked at too, so that one error names everything.

    Raises:
        DataError: If no root is given, there is no corpus, or it has faults.
    """
    if request.root is None:
        raise DataError(
            f"edaic not found: EDAIC_ROOT (data.edaic_root) is not set. Set it to {expected_layout()} "
            "The corpus is handed out by the University of Southern California under a licence (dcapswoz.ict.usc.edu); "
            "or use simulated data (data.source=simulated)."
        )
    report = _checked(request, planning=planning)
    for warning in report.warnings:
        logger.warning("E-DAIC at %s: %s.", report.layout.root, warning)
    digests = DigestCache(
        request.cache_dir / "digests.json" if request.cache_dir else None, read_only=planning
    )
    files = _files(report, request, digests)
    digests.save()
    _check_same_recordings(report.layout, report.participants, request.audio_features, files)
    return make_source(
        NAME, report.layout.root, files, simulated=report.layout.simulated, cache_dir=request.cache_dir
    )


def resolve_corpus(
    request: CorpusRequest,
    *,
    mode: Literal["auto", "real", "simulated"],
    simulated_dir: str | Path,
    simulated_seed: int = 0,
) -> DataSource:
    """The corpus a run is to use: the one at EDAIC_ROOT, or a simulated one.

    Args:
        request: Which corpus and what of it.
        mode: "real" insists on a real corpus; "simulated" writes or reuses a simulated one; "auto" takes the corpus
            at EDAIC_ROOT if that is set, and simulates one with a logged warning if it is not. A corpus that was
            asked for by EDAIC_ROOT and has faults is never replaced by a simulated one.
        simulated_dir: Simulated data is written below this directory.
        simulated_seed: Seed of the simulation.

    Raises:
        ConfigError: For an unknown mode.
        DataError: If the corpus has faults, or mode is "real" and none is given or it is a simulated one.
    """
    if mode not in ("auto", "real", "simulated"):
        raise ConfigError(f"data.source must be auto, real or simulated, got {mode!r}.")
    if mode == "real" or (mode == "auto" and request.root is not None):
        found = locate_corpus(request)
        if found.simulated and mode == "real":
            raise DataError(simulated_remark(found))
        if found.simulated:
            logger.warning(
                "SIMULATED DATA: no result of this run says anything about patients. %s", found.path
            )
        return found
    if mode == "auto":
        logger.warning(
            "SIMULATED DATA: no result of this run says anything about patients. EDAIC_ROOT is not set."
        )
    from fedsynth.data.edaic.simulated import write_simulated_corpus

    has_mfcc = "mfcc" in request.audio_features
    path = write_simulated_corpus(simulated_dir, seed=simulated_seed, mfcc=has_mfcc)
    return _locate_simulated(replace(request, root=path), planning=False)


def corpus_on_disk(
    request: CorpusRequest,
    *,
    mode: Literal["auto", "real", "simulated"],
    simulated_dir: str | Path,
    simulated_seed: int = 0,
) -> tuple[DataSource | None, list[str]]:
    """What `resolve_corpus` would find without writing anything, and remarks for the user.

    Returns:
        None with a remark if a run would stop, or would have to simulate the corpus first.
    """
    if mode == "real" or (mode == "auto" and request.root is not None):
        try:
            found = locate_corpus(request, planning=True)
        except DataError as error:
            return None, [str(error), "A run would stop at once."]
        if found.simulated and mode == "real":
            return None, [simulated_remark(found), "A run would stop at once."]
        return found, ["Data are SIMULATED."] if found.simulated else []
    remarks = ["EDAIC_ROOT (data.edaic_root) is not set."] if mode == "auto" else []
    path = simulated_path(simulated_dir, simulated_seed, has_mfcc="mfcc" in request.audio_features)
    if not path.exists():
        return None, [*remarks, "Data would be SIMULATED."]
    try:
        found = _locate_simulated(replace(request, root=path), planning=True)
        return found, [*remarks, "Data are SIMULATED."]
    except DataError as error:
        return None, [*remarks, str(error), "A run would stop at once."]


def simulated_path(directory: str | Path, seed: int, *, has_mfcc: bool) -> Path:
    """Where `fedsynth.data.edaic.simulated.write_simulated_corpus` puts the whole corpus."""
    from fedsynth.data.edaic.simulated import SIMULATION_VERSION

    name = "edaic-mfcc" if has_mfcc else "edaic"
    return Path(directory).expanduser() / f"v{SIMULATION_VERSION}-seed{seed}" / name


def _locate_simulated(request: CorpusRequest, *, planning: bool) -> DataSource:
    """The corpus that was simulated there, which must never pass for a real one."""
    try:
        found = locate_corpus(request, planning=planning)
    except DataError as error:
        raise DataError(f"{error}\n{SIMULATED_REMEDY}") from error
    if not found.simulated:
        raise DataError(
            f"{found.path} was simulated but has lost the mark {SIMULATED_MARK}, without which it would pass for "
            "real data. Delete the folder: the next run writes it anew."
        )
    return found


def simulated_remark(source: DataSource) -> str:
    """Why this corpus is no answer to ``data.source=real``."""
    return (
        f"{source.path} holds simulated data; point EDAIC_ROOT (data.edaic_root) at the real E-DAIC corpus."
    )


def _checked(request: CorpusRequest, *, planning: bool) -> CorpusReport:
    assert request.root is not None

    def check(contents: bool) -> CorpusReport:
        return check_corpus(
            request.root or "",
            audio_features=request.audio_features,
            rule=request.rule,
            exclude=request.exclude,
            contents=contents,
        )

    try:
        return check(False)
    except DataError:
        if planning:
            raise
    return check(True)


def _check_same_recordings(
    layout: CorpusLayout, participants: Iterable[int], kinds: Iterable[str], files: Iterable[SourceFile]
) -> None:
    """Nobody's features may be those of someone else: one voice would be trained on and tested on."""
    digest = {file.path: file.sha256 for file in files}
    problems = Problems()
    for kind in kinds:
        first: dict[str, int] = {}
        for number in participants:
            owner = first.setdefault(digest[layout.features(number, kind)], number)
            if owner != number:
                problems.add("feature file of another participant", number, f"{kind}: the same as of {owner}")
    problems.raise_if_any(layout.root, REMEDY)


def _files(report: CorpusReport, request: CorpusRequest, digests: DigestCache) -> list[SourceFile]:
    from fedsynth.data.progress import tracked

    layout = report.layout
    paths = [layout.split_file(split) for split in SPLIT_FILES]
    paths += [layout.detailed_file] if layout.detailed_file.is_file() else []
    for number in report.participants:
        paths += [layout.transcript(number)]
        paths += [layout.features(number, kind) for kind in request.audio_features]
    return [
        SourceFile(path.relative_to(layout.root).as_posix(), path, digests.sha256(path), None, None)
        for path in tracked(paths, "Digesting E-DAIC")
    ]
