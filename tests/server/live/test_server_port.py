"""The addresses that a server reports."""

import socket
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from samara.server.live.server_port import listening_addresses
from samara.server.live.superlink_process import SuperLinkProcess

Address = namedtuple("Address", "family address")


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = {
        "lo": [Address(socket.AF_INET, "127.0.0.1"), Address(socket.AF_INET6, "::1")],
        "eth0": [
            Address(socket.AF_INET, "192.0.2.7"),
            Address(socket.AF_INET6, "2001:db8::7"),
            Address(socket.AF_INET6, "fe80::7%eth0"),
            Address(17, "00:00:5e:00:53:af"),
        ],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", ["127.0.0.1:8000"]),
        ("localhost", ["127.0.0.1:8000"]),
        ("0.0.0.0", ["127.0.0.1:8000", "192.0.2.7:8000"]),
        (
            "::",
            ["127.0.0.1:8000", "192.0.2.7:8000", "[2001:db8::7]:8000", "[::1]:8000"],
        ),
    ],
)
def test_all_addresses_of_a_server_are_named(host: str, addresses: list[str]) -> None:
    assert listening_addresses(host, 8000) == addresses


def test_a_server_says_on_which_addresses_it_listens(tmp_path: Path) -> None:
    superlink = SuperLinkProcess(tmp_path, "0.0.0.0", 8000, None, 100)
    assert superlink.address == "127.0.0.1:8000, 192.0.2.7:8000 (plain text)"
