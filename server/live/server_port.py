"""The port of a run's server, noted for what names its address later, and its addresses."""

import socket
from ipaddress import ip_address
from pathlib import Path

from samara.shared.files import write_durably

DEFAULT_PORT = 8000
"""Port of a server unless it is given another."""
DEFAULT_DASHBOARD_PORT = 8421
"""Port of a server's page and metrics unless it is given another."""
_FILE = "port"


def note_port(folder: Path, port: int) -> None:
    """Note the port that a server listens on.

    Args:
        folder: folder of its SuperLink's files.
        port: the port.
    """
    write_durably(folder / _FILE, f"{port}\n".encode())


def read_port(folder: Path) -> int:
    """Return the port that a server listened on last, or the usual one if none was noted."""
    try:
        return int((folder / _FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return DEFAULT_PORT


def listening_addresses(host: str, port: int) -> list[str]:
    """Return the addresses at which a server is reached, as host:port.

    Args:
        host: name or address that it listens on; one that stands for all addresses of this machine
            is replaced by these.
        port: its port.
    """
    import psutil

    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    hosts = {str(address[0])}
    if ip_address(address[0]).is_unspecified:
        families = {family, socket.AF_INET}  # a socket of IPv6 takes connections of both
        own = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
        hosts = {each.address for each in own if each.family in families}
    named = sorted((h for h in hosts if "%" not in h), key=lambda h: (":" in h, h))
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in named]
