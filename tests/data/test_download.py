from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedsynth.data import download
from fedsynth.errors import DataError

CONTENT = bytes(range(256)) * 1200  # 300 kB
MD5 = hashlib.md5(CONTENT).hexdigest()

fetch = partial(download.download_file, show_progress=False, backoff_s=0.0)


@dataclass
class Site:
    """A local server with Range support whose next connections break after `breaks[i]` bytes."""

    files: dict[str, bytes]
    breaks: list[int] = field(default_factory=list)
    supports_range: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site({"data.npz": CONTENT})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            state.requests.append((name, wanted))
            if name not in state.files:
                self.send_error(404)
                return
            body = state.files[name]
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.supports_range else 0
            if first >= len(body) > 0:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(body) - first))
            self.end_headers()
            stop = state.breaks.pop(0) if state.breaks else len(body)
            self.wfile.write(body[first:][:stop])  # fewer bytes than promised, then the connection closes

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_download_is_complete_and_leaves_no_part(site: Site, tmp_path: Path) -> None:
    path = fetch(site.url + "data.npz", tmp_path / "sub" / "data.npz", md5=MD5)
    assert path.read_bytes() == CONTENT
    assert not path.with_name("data.npz.part").exists()


def test_existing_file_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"mine")
    assert fetch(site.url + "data.npz", tmp_path / "data.npz", md5=MD5).read_bytes() == b"mine"
    assert site.requests == []


def test_broken_connection_resumes_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.breaks = [100_000, 50_000]
    path = fetch(site.url + "data.npz", tmp_path / "data.npz", md5=MD5)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in site.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_nothing_half_written_under_the_final_name_and_next_call_resumes(site: Site, tmp_path: Path) -> None:
    site.breaks = [100_000]
    with pytest.raises(DataError, match="ended early"):
        fetch(site.url + "data.npz", tmp_path / "data.npz", md5=MD5, attempts=1)
    assert not (tmp_path / "data.npz").exists()
    assert (tmp_path / "data.npz.part").stat().st_size == 100_000
    assert fetch(site.url + "data.npz", tmp_path / "data.npz", md5=MD5).read_bytes() == CONTENT
    assert site.requests[-1][1] == "bytes=100000-"


def test_server_without_range_starts_over(site: Site, tmp_path: Path) -> None:
    site.supports_range = False
    (tmp_path / "data.npz.part").write_bytes(b"old bytes")
    assert fetch(site.url + "data.npz", tmp_path / "data.npz", md5=MD5).read_bytes() == CONTENT


@pytest.mark.parametrize("surplus", [b"", b"too long"])
def test_part_that_is_complete_or_too_long_is_mended(site: Site, tmp_path: Path, surplus: bytes) -> None:
    (tmp_path / "data.npz.part").write_bytes(CONTENT + surplus)
    assert fetch(site.url + "data.npz", tmp_path / "data.npz", md5=MD5).read_bytes() == CONTENT


@pytest.mark.parametrize("digest", [{"md5": "0" * 32}, {"sha256": "0" * 64}])
def test_wrong_digest_is_refused_and_the_bytes_deleted(
    site: Site, tmp_path: Path, digest: dict[str, str]
) -> None:
    with pytest.raises(DataError, match="expected 0000"):
        fetch(site.url + "data.npz", tmp_path / "data.npz", **digest)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_missing_file_fails_at_once(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="404"):
        fetch(site.url + "nothing.npz", tmp_path / "nothing.npz")
    assert len(site.requests) == 1


def test_unreachable_server_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Could not download"):
        fetch("http://127.0.0.1:9/data.npz", tmp_path / "data.npz", attempts=2, timeout_s=2)


def test_unwritable_place_is_a_data_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="Cannot write"):
        fetch(site.url + "data.npz", tmp_path / "file" / "data.npz")


def test_concurrent_requests_share_one_download(site: Site, tmp_path: Path) -> None:
    threads = [
        threading.Thread(
            target=fetch, args=(site.url + "data.npz", tmp_path / "data.npz"), kwargs={"md5": MD5}
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "data.npz").read_bytes() == CONTENT
    assert len(site.requests) == 1


def _serve_mitbih(site: Site) -> str:
    site.files = {f"7.{extension}": extension.encode() * 1000 for extension in ("hea", "dat", "atr")}
    site.files["RECORDS"] = b"7\n"
    sums = "".join(f"{hashlib.sha256(body).hexdigest()} {name}\n" for name, body in site.files.items())
    site.files["SHA256SUMS.txt"] = sums.encode()
    return hashlib.sha256(sums.encode()).hexdigest()


def test_mitbih_directory_appears_whole_and_keeps_gathered_files(site: Site, tmp_path: Path) -> None:
    sums_sha256 = _serve_mitbih(site)
    fetch_all = partial(download.download_mitbih, base_url=site.url, show_progress=False, backoff_s=0.0)
    lost = site.files.pop("7.atr")
    with pytest.raises(DataError, match="404"):
        fetch_all(tmp_path / "mitdb", sums_sha256=sums_sha256)
    assert not (tmp_path / "mitdb").exists()
    site.files["7.atr"] = lost
    site.requests.clear()
    directory = fetch_all(tmp_path / "mitdb", sums_sha256=sums_sha256)
    assert [name for name, _ in site.requests] == ["7.atr"]
    assert {path.name for path in directory.iterdir()} == set(site.files)
    assert not (tmp_path / "mitdb.part").exists()


def test_mitbih_listing_of_another_version_is_refused(site: Site, tmp_path: Path) -> None:
    _serve_mitbih(site)
    with pytest.raises(DataError, match=r"SHA256SUMS\.txt has SHA256"):
        download.download_mitbih(tmp_path / "mitdb", base_url=site.url, show_progress=False)
