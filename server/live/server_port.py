"""The port and the addresses of a run's server, recorded for later commands."""

import socket
from ipaddress import ip_address
from pathlib import Path

from samara.shared.storage.files import write_durably

DEFAULT_PORT = 8000
"""Default port of a server."""
DEFAULT_DASHBOARD_PORT = 8421
"""Default port of a server's page and metrics."""
_FILE = "port"


def note_port(folder: Path, port: int) -> None:
    """Record the port that a server listens on.

    Args:
        folder: folder that holds the files of the server's SuperLink.
        port: the port.
    """
    write_durably(folder / _FILE, f"{port}\n".encode())


def read_port(folder: Path) -> int:
    """Return the recorded port of a server; the default port without a record."""
    try:
        return int((folder / _FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return DEFAULT_PORT


def listening_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a server, as host:port.

    Args:
        host: name or address on which the server listens; a wildcard is replaced by all addresses
            of this machine.
        port: port of the server.
    """
    import psutil

    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    hosts = {str(address[0])}
    if ip_address(address[0]).is_unspecified:
        families = {family, socket.AF_INET}  # an IPv6 socket accepts connections of both families
        own = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
        hosts = {each.address for each in own if each.family in families}
    named = sorted((h for h in hosts if "%" not in h), key=lambda h: (":" in h, h))
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in named]
