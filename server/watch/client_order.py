"""The display order of clients, in which clients that may need the operator come first."""

import re

from samara.server.live.run_status import AWAY, STREAM, ClientStatus, RunStatus

_REFUSED, _RESTING, _AWAY, _SOUND, _REVOKED = range(5)


def clients_to_show(status: RunStatus) -> list[tuple[int, ClientStatus]]:
    """Return client indices with status, in the order refused, resting, away, others, revoked."""
    return sorted(status.clients.items(), key=_place)


def _place(pair: tuple[int, ClientStatus]) -> tuple[int, list[str | int], int]:
    """Return a client's sort key; digits in names are compared as numbers."""
    number, client = pair
    parts = re.split(r"([0-9]+)", client.name)
    return _rank(client), [int(p) if i % 2 else p for i, p in enumerate(parts)], number


def _rank(client: ClientStatus) -> int:
    ranks = {"refused": _REFUSED, "resting": _RESTING, "revoked": _REVOKED}
    return ranks.get(client.state, _AWAY if client.link == AWAY else _SOUND)


def reason_of(client: ClientStatus) -> str:
    """Return the reason why a client is refused or resting; empty for other clients."""
    return client.last_failure if client.state in ("refused", "resting") else ""


def power_of(client: ClientStatus) -> str:
    """Return a round's mean power and time on a client's device; empty if not shared."""
    if client.seconds is None:
        return ""
    watts = "" if client.watts is None else f"{client.watts:,.1f} W, "
    return f"{watts}{client.seconds:,.1f} s"


def link_of(client: ClientStatus) -> str:
    """Return the state of a client's node, or ``stream`` if the client is behind a gateway."""
    return client.link or (STREAM if client.wire == STREAM else "")
