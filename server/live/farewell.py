"""Search for clients that do not know yet that their run is finished.

When a run ends, the access filter of the SuperLink informs the connected clients. Afterwards, or
after a later `server up` of the finished run, the server waits for the other clients and informs
them.
"""

from collections.abc import Iterable
from pathlib import Path

from samara.server.live.keys import ClientKeys
from samara.server.live.superlink_process import Node
from samara.server.live.told_clients import TOLD_FILE, ToldClients

_NAMES_SHOWN = 5


def count_untold(run: Path, nodes: Iterable[Node]) -> int:
    """Count the nodes that have not been told that a run is finished.

    Args:
        run: folder of the run.
        nodes: all nodes known to Flower.
    """
    told = ToldClients(run / TOLD_FILE)
    return sum(node.public_key not in told for node in nodes)


def find_untold(run: Path, nodes: Iterable[Node], keys: ClientKeys) -> list[str]:
    """Return the names of the clients that took part in a run and were not told of its end.

    Args:
        run: folder of the run.
        nodes: all nodes known to Flower.
        keys: client keys of the run; clients with revoked keys are left out.
    """
    told = ToldClients(run / TOLD_FILE)
    valid = {key.public_key.encode() for key in keys.read_all() if not key.revoked}
    return sorted(
        node.name
        for node in nodes
        if node.was_connected and node.public_key in valid and node.public_key not in told
    )


def describe_names(names: list[str]) -> str:
    """Return names as one line of text; a long list ends with the number of further names."""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
