"""The clients that have not heard yet that a run is finished.

Who is connected when a run ends is told so by the access filter of its SuperLink. Who was away is
told by a later `server up` of the finished run, which serves until nobody is left.
"""

from collections.abc import Iterable
from pathlib import Path

from samara.server.live.keys import ClientKeys
from samara.server.live.superlink_process import Node
from samara.server.live.told_clients import TOLD_FILE, ToldClients

_NAMES_SHOWN = 5


def count_untold(run: Path, nodes: Iterable[Node]) -> int:
    """Return how many of some nodes have not been told that a run is finished.

    Args:
        run: folder of the run.
        nodes: the nodes.
    """
    told = ToldClients(run / TOLD_FILE)
    return sum(node.public_key not in told for node in nodes)


def find_untold(run: Path, nodes: Iterable[Node], keys: ClientKeys) -> list[str]:
    """Return the names of the clients that took part in a run and have not heard of its end.

    Args:
        run: folder of the run.
        nodes: nodes that Flower knows of.
        keys: client keys of the run; those that were revoked are not waited for.
    """
    told = ToldClients(run / TOLD_FILE)
    valid = {key.public_key.encode() for key in keys.read_all() if not key.revoked}
    return sorted(
        node.name
        for node in nodes
        if node.was_connected and node.public_key in valid and node.public_key not in told
    )


def describe_names(names: list[str]) -> str:
    """Return names as a list of which a line has room."""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
