"""A small network on one machine: a server and its clients in separate network namespaces.

The network needs root and a kernel with namespaces, veth and bridges. The server has the address
10.204.0.1, and the clients have 10.204.0.2 and higher. All namespaces are removed after the block.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

SERVER_ADDRESS = "10.204.0.1"


class Network:
    """The namespaces: the server's, with a bridge, and one for each client."""

    def __init__(self, clients: int) -> None:
        self._name, self.clients = f"field{os.getpid()}", clients

    @property
    def server(self) -> list[str]:
        """Return the command prefix for the server."""
        return ["ip", "netns", "exec", f"{self._name}s"]

    def client(self, number: int) -> list[str]:
        """Return the command prefix for a client."""
        return ["ip", "netns", "exec", f"{self._name}c{number}"]

    def make(self, undo: ExitStack) -> None:
        """Create all namespaces and interfaces."""
        server = self._namespace(f"{self._name}s", undo)
        _run(*server, "ip", "link", "add", "bridge0", "type", "bridge")
        _run(*server, "ip", "address", "add", f"{SERVER_ADDRESS}/24", "dev", "bridge0")
        _run(*server, "ip", "link", "set", "bridge0", "up")
        for number in range(self.clients):
            inside = self._namespace(f"{self._name}c{number}", undo)
            peer = ("peer", "name", "up0", "netns", f"{self._name}c{number}")
            port = f"c{number}"
            _run(*server, "ip", "link", "add", port, "type", "veth", *peer)
            _run(*server, "ip", "link", "set", port, "master", "bridge0")
            _run(*server, "ip", "link", "set", port, "up")
            address = f"10.204.0.{number + 2}/24"
            _run(*inside, "ip", "address", "add", address, "dev", "up0")
            _run(*inside, "ip", "link", "set", "up0", "up")

    def _namespace(self, name: str, undo: ExitStack) -> Sequence[str]:
        _run("ip", "netns", "add", name)
        undo.callback(_run_anyway, "ip", "netns", "del", name)
        inside = ["ip", "netns", "exec", name]
        _run(*inside, "ip", "link", "set", "lo", "up")
        return inside


@contextmanager
def network(clients: int) -> Iterator[Network]:
    """Create a network of a server and some clients for a ``with`` block.

    Raises:
        RuntimeError: if this machine does not permit it.
    """
    with ExitStack() as undo:
        made = Network(clients)
        made.make(undo)
        yield made


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _run_anyway(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
