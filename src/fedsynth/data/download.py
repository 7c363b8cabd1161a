"""Resumable, atomic, locked downloads: a file under its final name is complete and matches its digest.

Torch-free. Interrupted bytes stay in ``<file>.part`` and the next call continues there (HTTP Range).
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

from filelock import FileLock

from fedsynth.data.official import MITDB_SUMS_SHA256, MITDB_URL
from fedsynth.errors import DataError

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16


def download_file(
    url: str,
    destination: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    attempts: int = 5,
    backoff_s: float = 1.0,
    timeout_s: float = 30.0,
    show_progress: bool = True,
) -> Path:
    """Download `url` to `destination`; returns at once if the file is already there.

    Two processes asking for the same file share one download: the second waits on ``<file>.lock``. A file
    that is already there is not checked again; see `fedsynth.data.sources.locate` for that.

    Args:
        url: http(s) address.
        destination: Final path; its directory is created.
        md5: Expected hexadecimal MD5, or None.
        sha256: Expected hexadecimal SHA-256, or None.
        attempts: Connections tried; each continues where the last one broke.
        backoff_s: Pause before the second attempt, in seconds; doubles with each further one.
        timeout_s: Longest silence of the server, in seconds.
        show_progress: Draw a progress bar.

    Raises:
        DataError: If the server refuses, every attempt breaks, the disk fails, or the digest is wrong (the
            bytes are deleted then, since continuing them would never help).
    """
    if destination.exists():  # before locking: the place may be read-only by now
        return destination
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{destination}.lock"):
            if destination.exists():
                return destination
            part = destination.with_name(destination.name + ".part")
            _fetch(url, part, attempts, backoff_s, timeout_s, show_progress)
            _check_digest(url, part, {"md5": md5, "sha256": sha256})
            part.replace(destination)
    except OSError as error:
        raise DataError(
            f"Cannot write {destination}: {error}. Check space and permissions of its directory."
        ) from error
    return destination


def download_mitbih(
    directory: Path,
    *,
    base_url: str = MITDB_URL,
    sums_sha256: str | None = MITDB_SUMS_SHA256,
    show_progress: bool = True,
    attempts: int = 5,
    backoff_s: float = 1.0,
) -> Path:
    """Download the MIT-BIH Arrhythmia Database (.hea, .dat, .atr; about 100 MB) into `directory`.

    Files are gathered in ``<directory>.part`` and the directory is renamed when all are there and match
    SHA256SUMS.txt, which itself must match `sums_sha256`. Files already gathered are kept by the next call.

    Raises:
        DataError: As `download_file`, and if `directory` already exists with other content.
    """
    base = base_url.rstrip("/") + "/"
    staging = directory.with_name(directory.name + ".part")
    fetch = partial(download_file, attempts=attempts, backoff_s=backoff_s)
    try:
        staging.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{directory}.lock"):
            if any(directory.glob("*.hea")):
                return directory
            listing = staging / "SHA256SUMS.txt"
            fetch(base + listing.name, listing, sha256=sums_sha256, show_progress=False)
            lines = [line.split(maxsplit=1) for line in listing.read_text().splitlines()]
            sums = {name: digest for digest, name in lines}
            records = staging / "RECORDS"
            fetch(base + records.name, records, sha256=sums.get(records.name), show_progress=False)
            for record in records.read_text().split():
                for file in (f"{record}.hea", f"{record}.dat", f"{record}.atr"):
                    fetch(base + file, staging / file, sha256=sums.get(file), show_progress=show_progress)
            for lock in staging.glob("*.lock"):
                lock.unlink()
            staging.replace(directory)
    except OSError as error:
        raise DataError(
            f"Cannot write {directory}: {error}. Check space and permissions; remove the directory if it "
            "holds something else."
        ) from error
    return directory


def _fetch(
    url: str, part: Path, attempts: int, backoff_s: float, timeout_s: float, show_progress: bool
) -> None:
    """Fill `part` until the server's length is reached, reconnecting after breaks."""
    problem = "no attempt was made"
    for attempt in range(attempts):
        if attempt:
            time.sleep(backoff_s * 2 ** (attempt - 1))
        try:
            if _fetch_once(url, part, timeout_s, show_progress):
                return
            problem = "the connection ended early"
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if (
                error.code == 416
            ):  # Range Not Satisfiable: nothing is left, or the part is longer than the file
                if error.headers.get("Content-Range", "").rpartition("/")[2] == str(part.stat().st_size):
                    return
                part.unlink(missing_ok=True)
            elif error.code < 500:
                break
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            problem = str(error)
        logger.info("Download of %s broke (%s), attempt %d of %d.", url, problem, attempt + 1, attempts)
    raise DataError(
        f"Could not download {url}: {problem}. Check the network, or fetch it by hand to "
        f"{part.with_suffix('')}; a later attempt continues where this one stopped."
    )


def _fetch_once(url: str, part: Path, timeout_s: float, show_progress: bool) -> bool:
    """One connection; True when the file is complete."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        if response.status != 206:
            have = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with (
            Progress(*columns, transient=True, disable=not show_progress) as progress,
            part.open("ab" if have else "wb") as file,
        ):
            task = progress.add_task(part.stem, total=total, completed=have)
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                progress.advance(task, len(chunk))
    return total is None or have == total


def _check_digest(url: str, part: Path, expected: dict[str, str | None]) -> None:
    for algorithm, digest in expected.items():
        if digest is None:
            continue
        with part.open("rb") as file:
            actual = hashlib.file_digest(file, algorithm).hexdigest()
        if actual != digest:
            part.unlink()
            raise DataError(
                f"{url} has {algorithm.upper()} {actual}, expected {digest}. The download was damaged or "
                "the file changed; the bytes were deleted. Try again, or fetch the file by hand."
            )
