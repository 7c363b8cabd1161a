"""Where the folder of a site is, and what its digest stands for. Needs neither torch nor numpy."""

from __future__ import annotations

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


def locate_site(name: str, root: Path | None, *, cache_dir: Path, planning: bool = False) -> DataSource:
    """A site on disk; its digest is over the lists, not over hundreds of thousands of images.

    An image that changes without its list is opened again by the cache of pixels, but does not change the key of
    what was made of it.

    Args:
        name: One of ``CXR_SITES``.
        root: Its folder; None if it is not set.
        cache_dir: Digests and resized images are kept below it.
        planning: Write nothing.

    Raises:
        DataError: If the folder is not set or lacks a list.
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
    digests.save()
    return make_source(name, root, files, simulated=False, cache_dir=cache_dir / "cxr")
