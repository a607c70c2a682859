"""Free ports of this machine, each of which only one measurement or test uses at a time."""

import socket
from contextlib import suppress

_FIRST, _END = 20_000, 32_000
"""First port of the range, and its end. Linux gives higher ports to outgoing connections."""
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port on which no process listens, and claim it until this process ends.

    The claim is an abstract Unix socket named after the port, which other processes cannot claim.

    Raises:
        RuntimeError: if all ports are in use.
    """
    for port in range(_FIRST, _END):
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError), socket.socket() as probe:
            claim.bind(f"\0samara-port-{port}")
            probe.bind(("0.0.0.0", port))
            _claims.append(claim)
            return port
        claim.close()
    raise RuntimeError(f"no port from {_FIRST} to {_END} is free")


def free_address() -> str:
    """Return the address host:port of a free port on loopback."""
    return f"127.0.0.1:{free_port()}"
