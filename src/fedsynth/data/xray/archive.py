"""Arrays of an .npz file, checked key by key: what one reader after the other would otherwise repeat."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsynth.data.xray.faults import Faults
from fedsynth.errors import DataError


def read_arrays(path: Path, keys: Sequence[str], faults: Faults) -> dict[str, Any]:
    """The arrays of these keys; a missing key is a fault, any other key of the file is left alone.

    Raises:
        DataError: If the file is absent, no .npz archive, or damaged: then nothing more can be said of it.
    """
    if not path.is_file():
        raise DataError(f"No file at {path}. Set DATA_DIR, or use simulated data (data.source=simulated).")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is a single array, not an .npz archive with {', '.join(keys)}.")
        with archive:
            held = [key for key in keys if key in archive.files]
            if len(held) < len(keys):
                missing = ", ".join(key for key in keys if key not in held)
                faults.add(f"key {missing} missing; it holds {', '.join(archive.files) or 'nothing'}")
            return {key: array for key in held if (array := _read(archive, key, faults)) is not None}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        # NumPy's own words for a file of another format advise to run the code in it.
        fault = "it is no .npz archive" if "pickle" in str(error) else str(error)
        raise DataError(
            f"{path} is truncated or damaged ({fault}). Delete it and make or download it again."
        ) from error


def _read(archive: np.lib.npyio.NpzFile, key: str, faults: Faults) -> np.ndarray | None:
    """One array; None, and a fault, if it holds Python objects, which could be read by running their code only."""
    try:
        return archive[key]
    except ValueError as error:
        if not str(error).startswith("Object arrays"):
            raise
        faults.add(f"key {key}: an array of Python objects, which are never read; save it as numbers or text")
        return None


def check_images(arrays: Mapping[str, Any], key: str, faults: Faults) -> None:
    """Square grey images [n, h, h] of uint8, n ≥ 1, not all pixels alike."""
    if key not in arrays:
        return
    array = arrays[key]
    grey = array.ndim == 3 and array.shape[1] == array.shape[2] and 0 not in array.shape
    if array.ndim == 4:
        faults.add(f"key {key}: color or 3-D images of shape {array.shape}; grey images [n, h, h] are needed")
    elif not grey:
        faults.add(f"key {key}: shape {array.shape}; square grey images [n, h, h] with n ≥ 1 are needed")
    if array.dtype != np.uint8:
        nan = np.issubdtype(array.dtype, np.floating) and bool(np.isnan(array).any())
        faults.add(
            f"key {key}: dtype {array.dtype}{' with NaN pixels' if nan else ''}; uint8 grey levels 0..255 are needed"
        )
    elif grey and array.min() == array.max():
        faults.add(f"key {key}: every pixel is {array.flat[0]}")


def check_lengths(arrays: Mapping[str, Any], key: str, others: Sequence[str], faults: Faults) -> None:
    """One entry an image in each of the others."""
    if key not in arrays or arrays[key].ndim == 0:
        return
    wanted = len(arrays[key])
    for other in others:
        if other in arrays and (arrays[other].ndim == 0 or len(arrays[other]) != wanted):
            held = "no list" if arrays[other].ndim == 0 else len(arrays[other])
            faults.add(f"key {other}: {held} entries for {wanted} {key}")


def check_texts(arrays: Mapping[str, Any], key: str, faults: Faults, known: Sequence[str] = ()) -> None:
    """One non-empty text an image, of the known ones if any are given."""
    if key not in arrays:
        return
    array = arrays[key]
    if array.ndim != 1 or array.dtype.kind != "U":
        faults.add(f"key {key}: dtype {array.dtype} of shape {array.shape}; one text an image is needed")
        return
    odd = array[~np.isin(array, known)] if known else array[array == ""]
    if len(odd):
        needed = f"one of {', '.join(known)} is needed" if known else "no text may be empty"
        faults.add(f"key {key}: {len(odd)} entries such as {str(odd[0])!r}; {needed}")
