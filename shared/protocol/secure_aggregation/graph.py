"""The graph of a round: its edges are the pairs of clients that share masks and secrets.

With up to `DEGREE` + 1 clients, every pair is connected. With more, the round's token orders the
clients in a circle, and the `DEGREE` nearest clients in this circle are a client's neighbours. With
this graph of Bell et al. (2020, section 3.1), a client's work does not depend on the number of
clients. A neighbourhood includes the client itself, because it keeps a share of its own secrets.
"""

import hashlib
from collections.abc import Iterable, Sequence

DEGREE = 100
"""Number of a client's neighbours, without the client itself; an even number.

Bell et al. (2020, Theorem 3.10) require three properties: no neighbourhood loses more clients than
its threshold t allows, no neighbourhood has t corrupt clients, and the graph of the remaining
clients is connected. The first property, which decides whether a round succeeds, may fail with a
probability of at most 2⁻³⁰. The other two decide security, and may fail with at most 2⁻⁴⁰.
docs/decisions/0030-masks-that-cancel.md has figures for this degree.
"""
LEAST_CLIENTS = 3
"""Least number of clients in a sum. In a sum of two, each client would know the other's vector."""


def least_number(count: int) -> int:
    """Return t, the least integer above two thirds of a number of clients."""
    return 2 * count // 3 + 1


def neighbourhoods(token: bytes, clients: Sequence[int]) -> dict[int, list[int]]:
    """Return each client's neighbourhood (itself included), ascending.

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
    """Return one client's neighbourhood (itself included), ascending; see `neighbourhoods`."""
    if len(clients) <= DEGREE + 1:
        return sorted(clients)
    circle = _circle(token, clients)
    return _around(circle, circle.index(client))


def _around(circle: Sequence[int], at: int) -> list[int]:
    half = DEGREE // 2
    count = len(circle)
    return sorted(circle[place % count] for place in range(at - half, at + half + 1))


def _circle(token: bytes, clients: Iterable[int]) -> list[int]:
    def place(client: int) -> bytes:
        return hashlib.sha256(b"samara-circle-1\0" + token + client.to_bytes(4, "little")).digest()

    return sorted(clients, key=place)
