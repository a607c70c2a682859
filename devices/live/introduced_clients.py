"""Size limits of a gateway's messages, by the clients that have introduced themselves to it.

A message grows with the largest state of the clients' runs and with the number of clients. A file
passes both on to the gateway's SuperNode, which is another process.
"""

import json
from pathlib import Path
from typing import Any

from samara.shared.errors import SamaraError, TrainerError
from samara.shared.frames.hello import Hello
from samara.shared.kept_file import KeptFile
from samara.shared.layout import Layout
from samara.shared.log_budget import LogBudget
from samara.shared.message_sizes import MOST_OF_CLIENT_BYTES, most_message_bytes
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.sections import MOST_ELEMENTS

INTRODUCED_FILE = "introduced.json"


class _IntroducedFile(KeptFile[dict[str, int]]):
    """The number of clients, and the elements of the largest state."""

    name = INTRODUCED_FILE
    damaged = "{file}: {problem}; clients introduce themselves again"
    empty = dict
    is_needed = False

    def _parse(self, value: Any) -> dict[str, int]:
        return {name: int(value[name]) for name in ("clients", "elements")}


class IntroducedClients:
    """The clients of a gateway that have introduced themselves.

    Args:
        folder: folder of the gateway; None keeps nothing.
        lines: budget of the log's lines.
    """

    def __init__(self, folder: Path | None, lines: LogBudget) -> None:
        self._file, self._lines = _IntroducedFile(folder), lines
        self._kept, self._clients = self._file.read(), set[int]()

    def add(self, client: int, hello: bytes) -> None:
        """Note a client by its hello. Without a layout it has no size."""
        self._clients.add(client)
        try:
            layout = Layout.from_json(json.loads(Hello.decode(hello).layout))
            elements = min(layout.size, MOST_ELEMENTS)
        except (SamaraError, ValueError, LookupError, TypeError):
            elements = 0
        clients = 1 << (len(self._clients) - 1).bit_length()  # so that it is written few times
        now = {"clients": clients, "elements": elements}
        larger = {name: max(size, self._kept.get(name, 0)) for name, size in now.items()}
        if larger != self._kept:
            self._kept = larger
            try:
                self._file.write(larger)
            except TrainerError as error:
                self._lines.warn("the gateway", str(error))


def most_gateway_message_bytes(kind: TaskKind, folder: Path) -> int:
    """Return the most bytes of a message to a gateway; see `most_message_bytes`.

    Args:
        kind: kind of the message.
        folder: folder of the gateway.
    """
    kept = _IntroducedFile(folder).read()
    elements, clients = kept.get("elements", 0), kept.get("clients", 0)
    return most_message_bytes(kind, elements) + clients * MOST_OF_CLIENT_BYTES
