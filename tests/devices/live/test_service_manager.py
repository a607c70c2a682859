"""A client's notifications to systemd."""

import socket
from pathlib import Path
from uuid import uuid4

import pytest

from samara.devices.live.service_manager import ALIVE, READY, notify_service_manager


@pytest.mark.parametrize("abstract", [False, True], ids=["file", "abstract"])
def test_states_arrive_at_the_socket_of_the_service_manager(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@{uuid4()}" if abstract else str(tmp_path_factory.mktemp("n") / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify_service_manager(READY)
        notify_service_manager(ALIVE)
        assert [manager.recv(64), manager.recv(64)] == [b"READY=1", b"WATCHDOG=1"]


def test_without_a_service_manager_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_service_manager(READY)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify_service_manager(READY)
    assert list(tmp_path.iterdir()) == []
