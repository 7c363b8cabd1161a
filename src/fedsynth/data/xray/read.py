"""Read the X-ray data set of a source, whichever it is."""

from __future__ import annotations

from fedsynth.data.source_files import DataSource
from fedsynth.data.xray.images import XrayImages
from fedsynth.data.xray.kermany import read_kermany
from fedsynth.data.xray.nih import read_nih
from fedsynth.data.xray.pneumonia import read_pneumoniamnist
from fedsynth.errors import ConfigError


def read_dataset(name: str, source: DataSource, *, labels: str) -> XrayImages:
    """All images of a data set.

    Args:
        name: A key of ``fedsynth.data.xray.source.DATASETS``.
        source: Its files, images first.
        labels: One of the kinds that the data set knows.

    Raises:
        ConfigError: For a data set without a reader.
        DataError: If a file has faults.
    """
    paths = [file.path for file in source.files]
    if name == "kermany":
        return read_kermany(paths[0], labels=labels)
    if name == "nih1000":
        return read_nih(paths[0], labels=labels)
    if name == "pneumoniamnist":
        return read_pneumoniamnist(paths[0], paths[1], labels=labels)
    raise ConfigError(f"dataset must be one of kermany, nih1000, pneumoniamnist, got {name!r}.")
