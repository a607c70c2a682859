"""Connection state of a live run's nodes, as its server last recorded it in the run's folder."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from samara.server.live.superlink_process import Node
from samara.shared.storage.files import write_durably

CONNECTIONS_FILE = "connections.json"
"""File in a run's folder with the connection state of its nodes."""
_MOST_SECONDS = 60.0
"""Age in seconds beyond which the file is ignored, because no server is updating it."""


@dataclass(frozen=True)
class Connections:
    """The connections of a run's nodes.

    Attributes:
        connected: key names of the connected nodes; nodes without a key are not listed.
        away: key names of nodes that were connected before.
        nodes: number of connected nodes.
    """

    connected: frozenset[str]
    away: frozenset[str]
    nodes: int


def write_connections(run: Path, nodes: Iterable[Node]) -> None:
    """Write the connection state of the nodes.

    Args:
        run: folder of the run.
        nodes: all nodes known to Flower.

    Raises:
        OSError: if the file cannot be written.
    """
    known = [node for node in nodes if node.was_connected]
    content = {
        "connected": sorted(node.name for node in known if node.online and node.name),
        "away": sorted(node.name for node in known if not node.online and node.name),
        "nodes": sum(node.online for node in known),
    }
    write_durably(run / CONNECTIONS_FILE, json.dumps(content).encode() + b"\n")


def read_connections(run: Path) -> Connections | None:
    """Return the connection state; None if no server has recorded it in the last minute."""
    file = run / CONNECTIONS_FILE
    try:
        if abs(time.time() - file.stat().st_mtime) > _MOST_SECONDS:
            return None
        content = json.loads(file.read_text(encoding="utf-8"))
        connected, away = frozenset(content["connected"]), frozenset(content["away"])
        return Connections(connected, away, int(content["nodes"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
