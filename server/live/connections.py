"""The connections of a live run's nodes, as its server last saw them, in a file of the run."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from samara.server.live.superlink_process import Node
from samara.shared.files import write_durably

CONNECTIONS_FILE = "connections.json"
"""Name of the file in a run's folder."""
_MOST_SECONDS = 60.0
"""Age from which on the file says nothing any more: nobody serves the run."""


@dataclass(frozen=True)
class Connections:
    """The connections of a run's nodes.

    Attributes:
        connected: names of the connected nodes' keys; those without a key have none.
        away: names of the keys whose nodes were connected before.
        nodes: number of connected nodes.
    """

    connected: frozenset[str]
    away: frozenset[str]
    nodes: int


def write_connections(run: Path, nodes: Iterable[Node]) -> None:
    """Write which nodes are connected.

    Args:
        run: folder of the run.
        nodes: the nodes that Flower knows of.

    Raises:
        OSError: if it cannot be written.
    """
    known = [node for node in nodes if node.was_connected]
    content = {
        "connected": sorted(node.name for node in known if node.online and node.name),
        "away": sorted(node.name for node in known if not node.online and node.name),
        "nodes": sum(node.online for node in known),
    }
    write_durably(run / CONNECTIONS_FILE, json.dumps(content).encode() + b"\n")


def read_connections(run: Path) -> Connections | None:
    """Return which nodes are connected; None if no server has noted it within a minute."""
    file = run / CONNECTIONS_FILE
    try:
        if abs(time.time() - file.stat().st_mtime) > _MOST_SECONDS:
            return None
        content = json.loads(file.read_text(encoding="utf-8"))
        connected, away = frozenset(content["connected"]), frozenset(content["away"])
        return Connections(connected, away, int(content["nodes"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
