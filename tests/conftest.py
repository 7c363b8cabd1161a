"""What every test starts from: no network, few threads, no settings of the developer's machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before torch is imported anywhere: it reads these once. Subprocesses inherit them.
if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # tests run side by side (make test); the parent has set its own number
    os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", str(min(2, os.cpu_count() or 1)))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ISOLATED_ENVIRONMENT = {
    "PYTHON_DOTENV_DISABLED": "1",
    "WANDB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    # Subprocesses are out of reach of the socket guard below; a dead proxy stops most of what they could try.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "localhost,127.0.0.1,::1",
    "MPLBACKEND": "Agg",
}
DEVELOPER_SETTINGS = (
    "WANDB_API_KEY", "WANDB_PROJECT", "WANDB_ENTITY", "RUN_ID", "EDAIC_ROOT",
    "MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS",
    "http_proxy", "https_proxy", "no_proxy", "all_proxy", "ALL_PROXY",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
os.environ.update(ISOLATED_ENVIRONMENT)
for _name in DEVELOPER_SETTINGS:
    os.environ.pop(_name, None)

# Times vary on shared machines, so no deadline; the same examples on every run of the CI.
settings.register_profile("fedsynth", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("fedsynth")

NO_DATA = "DATA_DIR is not set to a folder with the data files; run: make test DATA_DIR=/path/to/data"


def _data_folder() -> Path | None:
    value = os.environ.get("DATA_DIR")
    return Path(value).resolve() if value and Path(value).is_dir() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in needs_gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
    if _data_folder() is None:
        for item in items:
            if item.get_closest_marker("real_data"):
                item.add_marker(pytest.mark.skip(reason=NO_DATA))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data files; the test is skipped when there is none."""
    folder = _data_folder()
    if folder is None:
        pytest.skip(NO_DATA)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _logs_outside_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOG_DIR", str(tmp_path_factory.mktemp("logs")))
        yield


def _is_local(host: Any) -> bool:
    if isinstance(host, bytes):
        host = host.decode()
    own_names = {None, "", "localhost", "::1", "::", "0.0.0.0", socket.gethostname()}
    return host in own_names or str(host).startswith(("127.", "::ffff:127."))


def _refuse(host: Any) -> None:
    # Not an OSError: code that retries or falls back on connection errors must not hide the attempt.
    raise RuntimeError(f"a test tried to reach {host!r} over the network; tests use local files only")


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    connect, connect_ex, lookup = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def check(family: int, address: Any) -> None:
        if family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            _refuse(address[0])

    def guarded_connect(self: socket.socket, address: Any) -> None:
        check(self.family, address)
        return connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        check(self.family, address)
        return connect_ex(self, address)

    def guarded_lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_local(host):
            _refuse(host)
        return lookup(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_lookup)
        yield
