"""The graph of a round: which clients share masks and secrets, and how many of them must stay.

Up to `DEGREE` + 1 clients everyone does with everyone. Above it, clients stand in a circle in an
order that follows from the round's token, and each has the `DEGREE` nearest ones as neighbours: the
graph of Bell et al. (2020, section 3.1), with which a client's work does not grow with the number
of clients. A client counts as its own neighbour here, since it keeps a share of its own secrets.
"""

import hashlib
from collections.abc import Iterable, Sequence

DEGREE = 100
"""The number of a client's neighbours, itself not counted; even.

Bell et al. (2020, Theorem 3.10) ask that no neighbourhood lose more than it may, none has t corrupt
clients, and the graph of those that stay hangs together, each but for a probability of 2⁻⁴⁰ and
2⁻³⁰. docs/decisions/0030-masks-that-cancel.md has figures for this degree.
"""
LEAST_CLIENTS = 3
"""The fewest clients in a sum: of two, each knows the other's vector."""


def least_number(count: int) -> int:
    """Return t, the least number above two thirds of a count."""
    return 2 * count // 3 + 1


def neighbourhoods(token: bytes, clients: Sequence[int]) -> dict[int, list[int]]:
    """Return each client's neighbours and itself, ascending, by client.

    Args:
        token: token of the round's instruction, 8 bytes.
        clients: client indices, all different.
    """
    if len(clients) <= DEGREE + 1:
        everyone = sorted(clients)
        return dict.fromkeys(everyone, everyone)
    circle = _circle(token, clients)
    return {client: _around(circle, at) for at, client in enumerate(circle)}


def neighbourhood_of(client: int, token: bytes, clients: Sequence[int]) -> list[int]:
    """Return a client's neighbours and itself, ascending; `neighbourhoods` of one client."""
    if len(clients) <= DEGREE + 1:
        return sorted(clients)
    circle = _circle(token, clients)
    return _around(circle, circle.index(client))


def _around(circle: Sequence[int], at: int) -> list[int]:
    half, count = DEGREE // 2, len(circle)
    return sorted(circle[place % count] for place in range(at - half, at + half + 1))


def _circle(token: bytes, clients: Iterable[int]) -> list[int]:
    def place(client: int) -> bytes:
        return hashlib.sha256(b"samara-circle-1\0" + token + client.to_bytes(4, "little")).digest()

    return sorted(clients, key=place)
