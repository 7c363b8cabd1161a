"""Opens, resizes and keeps the images of a site.

Each image is turned into grey levels, its shorter side resized to the wanted size with antialiasing, and its center cut
out. Finished blocks of images are kept in a folder under a name that depends on the files and the size, so that a
killed run goes on where it was, and the next one opens nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from fedsynth.data.progress import tracked
from fedsynth.errors import DataError

BLOCK = 1024  # images
VERSION = 1  # of what becomes of the pixels
MODES = ("L", "RGB", "RGBA", "P", "1")


def load_images(
    root: Path, paths: Sequence[str], *, size: int, cache_dir: Path | None, num_workers: int = 1
) -> UInt8[np.ndarray, "n size size"]:
    """The images in the order of their paths.

    Args:
        root: Folder that the paths start from.
        paths: Image files.
        size: Side in pixels.
        cache_dir: Where finished blocks are kept; None keeps none.
        num_workers: Threads that decode.

    Raises:
        DataError: If files are missing, damaged, too small or of a mode that cannot be read as 8-bit grey levels; all of
            a block in one message.
    """
    blocks = [paths[start : start + BLOCK] for start in range(0, len(paths), BLOCK)]
    images = np.empty((len(paths), size, size), dtype=np.uint8)
    with ThreadPoolExecutor(num_workers) as pool:
        for number, block in enumerate(tracked(blocks, f"images of {root.name}, blocks of {BLOCK}")):
            start = number * BLOCK
            images[start : start + len(block)] = _block(root, block, size, cache_dir, pool)
    return images


def _block(
    root: Path, paths: Sequence[str], size: int, cache_dir: Path | None, pool: ThreadPoolExecutor
) -> UInt8[np.ndarray, "n size size"]:
    kept = None if cache_dir is None else cache_dir / f"{_name(root, paths, size)}.npy"
    if kept is not None and kept.is_file():
        try:
            stored = np.load(kept, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            stored = None  # cut off by a full disk: made again below
        if stored is not None and stored.shape == (len(paths), size, size) and stored.dtype == np.uint8:
            return stored
    made = list(pool.map(partial(_open, root, size), paths))
    faults = [one for one in made if isinstance(one, str)]
    if faults:
        shown = "\n".join(f"- {fault}" for fault in faults[:5])
        raise DataError(
            f"{len(faults)} of {len(paths)} images of {root} cannot be used:\n{shown}\nFetch them again, or give the "
            "folder of the whole data set."
        )
    block = np.stack([one for one in made if not isinstance(one, str)])
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial_file = kept.with_suffix(f".{os.getpid()}.partial")
        with partial_file.open("wb") as file:
            np.save(file, block)
        partial_file.replace(kept)
    return block


def _name(root: Path, paths: Sequence[str], size: int) -> str:
    """Another name whenever a file of the block, its length or its time changes."""
    digest = hashlib.blake2b(f"{VERSION} {size} {root}".encode(), digest_size=16)
    for path in paths:
        try:
            found = (root / path).stat()
            digest.update(f"\n{path} {found.st_size} {found.st_mtime_ns}".encode())
        except OSError:
            digest.update(f"\n{path} missing".encode())
    return digest.hexdigest()


def _open(root: Path, size: int, path: str) -> UInt8[np.ndarray, "size size"] | str:
    """The image, or what is wrong with it."""
    try:
        with Image.open(root / path) as file:
            if file.mode not in MODES:
                return f"{path}: mode {file.mode}, 8-bit grey levels or colors are needed"
            if min(file.size) < size:
                return f"{path}: {file.size[0]} × {file.size[1]} pixels, at least {size} a side are needed"
            # JPEG files are decoded at a reduced size where that is still twice the wanted one.
            file.draft("L", (2 * size, 2 * size))
            return _square(file.convert("L"), size)
    except FileNotFoundError:
        return f"{path}: no such file"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{path}: {error}"


def _square(image: Image.Image, size: int) -> UInt8[np.ndarray, "size size"]:
    # fidelity: cxr-pixels
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    cut = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=cut), dtype=np.uint8)
