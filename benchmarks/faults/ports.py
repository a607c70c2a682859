"""Ports of this machine that no other measurement or test takes meanwhile."""

import socket
from contextlib import suppress

_FIRST, _END = 20_000, 32_000
"""Below the ports that Linux gives to outgoing connections."""
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port that nobody listens on, claimed until this process ends.

    The claim is an abstract Unix socket of the port's name, so that processes beside this one
    claim others.

    Raises:
        RuntimeError: if all are taken.
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
    """Return host:port of this machine's loopback, with a free port."""
    return f"127.0.0.1:{free_port()}"
