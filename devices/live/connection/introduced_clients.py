"""Size limits of a gateway's messages, derived from the clients that have introduced themselves.

The size of a message grows with the largest state of the clients' runs and with the number of
clients. The gateway writes both numbers to a file. Its SuperNode, a separate process, reads them
there.
"""

import json
from pathlib import Path
from typing import Any

from samara.shared.errors import SamaraError, TrainerError
from samara.shared.network.log_budget import LogBudget
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.message_sizes import MOST_OF_CLIENT_BYTES, most_message_bytes
from samara.shared.settings.sections import MOST_ELEMENTS
from samara.shared.storage.kept_file import KeptFile

INTRODUCED_FILE = "introduced.json"


class _IntroducedFile(KeptFile[dict[str, int]]):
    """File with the number of clients and the elements of the largest state."""

    name = INTRODUCED_FILE
    damaged = "{file}: {problem}; the file is written anew from the clients' next hellos"
    empty = dict
    is_needed = False

    def _parse(self, value: Any) -> dict[str, int]:
        return {name: int(value[name]) for name in ("clients", "elements")}


class IntroducedClients:
    """The clients that have introduced themselves to a gateway.

    Args:
        folder: folder of the gateway; None stores nothing.
        lines: limit on the number of log lines.
    """

    def __init__(self, folder: Path | None, lines: LogBudget) -> None:
        self._file = _IntroducedFile(folder)
        self._lines = lines
        self._kept = self._file.read()
        self._clients = set[int]()

    def add(self, client: int, hello: bytes) -> None:
        """Record a client by its hello.

        If the hello has no readable layout, the state counts as empty.
        """
        self._clients.add(client)
        try:
            layout = Layout.from_json(json.loads(Hello.decode(hello).layout))
            elements = min(layout.size, MOST_ELEMENTS)
        except (SamaraError, ValueError, LookupError, TypeError):
            elements = 0
        # a power of two, so that the file is rarely rewritten
        clients = 1 << (len(self._clients) - 1).bit_length()
        now = {"clients": clients, "elements": elements}
        larger = {name: max(size, self._kept.get(name, 0)) for name, size in now.items()}
        if larger != self._kept:
            self._kept = larger
            try:
                self._file.write(larger)
            except TrainerError as error:
                self._lines.warn("the gateway", str(error))


def most_gateway_message_bytes(kind: TaskKind, folder: Path) -> int:
    """Return the size limit in bytes of a message to a gateway; see `most_message_bytes`.

    Args:
        kind: kind of the message.
        folder: folder of the gateway.
    """
    kept = _IntroducedFile(folder).read()
    elements = kept.get("elements", 0)
    clients = kept.get("clients", 0)
    return most_message_bytes(kind, elements) + clients * MOST_OF_CLIENT_BYTES
