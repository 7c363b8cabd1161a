"""Where the folder of a site is, and what its digest stands for. Needs no torch, and numpy only to read lists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedsynth.data.digest_cache import DigestCache
from fedsynth.data.source_files import DataSource, SourceFile, make_source
from fedsynth.errors import DataError

#: Lists that a site's images and labels are read from, each by the names it may have.
LISTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "mimic": (("mimic-cxr-2.0.0-chexpert.csv",), ("mimic-cxr-2.0.0-metadata.csv",)),
    "chexpert": (("train.csv",),),
    "chestxray14": (("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv"),),
}
CXR_SITES = tuple(LISTS)


def locate_site(
    name: str,
    root: Path | None,
    *,
    cache_dir: Path,
    allow_missing_files: bool = False,
    planning: bool = False,
) -> DataSource:
    """A site on disk; its digest is over the lists and the names of the images that are there.

    Not over the bytes of hundreds of thousands of images: one that changes under its name is opened again by the cache
    of pixels, but does not change the key of what was made of it.

    Args:
        name: One of ``CXR_SITES``.
        root: Its folder; None if it is not set.
        cache_dir: Digests and resized images are kept below it.
        allow_missing_files: Go on without listed images that are not there. Only those count that would be used:
            frontal, with at least one of the labels.
        planning: Write nothing.

    Raises:
        DataError: If the folder is not set or lacks a list, a list has faults, or images are missing.
    """
    if root is None or not root.is_dir():
        what = "is not set" if root is None else f"is no folder: {root}"
        raise DataError(
            f"{name} not found: data.roots.{name} {what}. Access is by the publisher only (PhysioNet, Stanford AIMI, "
            "NIH Clinical Center); unpack the data set and set data.roots to its folder."
        )
    digests = DigestCache(cache_dir / "digests.json", read_only=planning)
    files = []
    for names in LISTS[name]:
        candidates = [root / f"{one}{ending}" for one in names for ending in ("", ".gz")]
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is None:
            raise DataError(
                f"{root} lacks {' or '.join(names)} (or .gz). Is it the folder of {name} as published?"
            )
        files.append(SourceFile(path.name, path, digests.sha256(path), None, None))
    files.append(_images(name, root, allow_missing_files=allow_missing_files))
    digests.save()
    return make_source(name, root, files, simulated=False, cache_dir=cache_dir / "cxr")


def _images(name: str, root: Path, *, allow_missing_files: bool) -> SourceFile:
    """The images that are there as one entry, whose digest is over their names."""
    from fedsynth.data.cxr_sites.readers import read_listed  # pandas: only for who has such a folder

    listed = read_listed(name, root)
    there = listed.is_on_disk()
    present = [path for path, is_there in zip(listed.path, there, strict=True) if is_there]
    absent = [path for path, is_there in zip(listed.path, there, strict=True) if not is_there]
    if absent and not (allow_missing_files and present):
        remedy = "set data.allow_missing_files=true: what is made of the others has other keys and numbers"
        raise DataError(
            f"{root} lacks {len(absent)} of the {len(listed)} frontal images with a label that the lists of {name} "
            f"name, such as {absent[0]}. Fetch them" + (f", or {remedy}." if present else ".")
        )
    # By path, not by name alone: the order of paths is that of the rows.
    digest = hashlib.sha256("\n".join(present).encode()).hexdigest()
    return SourceFile(f"names of {len(present)} images", root, digest, None, None)
