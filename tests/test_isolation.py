"""The guards of conftest.py hold: a guard nobody tests is a guard nobody has."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest


@pytest.mark.parametrize("host", ["example.org", "192.0.2.1", "2001:db8::1"])
def test_connections_to_other_machines_are_refused(host: str) -> None:
    with pytest.raises(RuntimeError, match="over the network"):
        socket.create_connection((host, 80), timeout=1)


def test_address_without_lookup_is_refused_too() -> None:
    with socket.socket() as client, pytest.raises(RuntimeError, match="over the network"):
        client.connect(("192.0.2.1", 80))
    with socket.socket() as client, pytest.raises(RuntimeError, match="over the network"):
        client.connect_ex(("192.0.2.1", 80))


def test_loopback_stays_open_for_local_ranks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[tuple[str, int]] = []
        thread = threading.Thread(target=lambda: accepted.append(server.accept()[1]))
        thread.start()
        with socket.create_connection(server.getsockname(), timeout=5) as client:
            thread.join(timeout=5)
            assert accepted == [client.getsockname()]


def test_logs_go_outside_the_checkout() -> None:
    checkout = Path(__file__).parents[1]
    assert checkout not in Path(os.environ["LOG_DIR"]).resolve().parents


def test_env_file_of_the_developer_is_not_read(tmp_path: Path) -> None:
    from dotenv import load_dotenv

    (tmp_path / ".env").write_text("FEDSYNTH_TEST_SETTING=from the file\n")
    assert load_dotenv(tmp_path / ".env") is False
    assert "FEDSYNTH_TEST_SETTING" not in os.environ
