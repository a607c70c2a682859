"""Buckets: small random groups of a round's clients, each with a separate sum.

Masks hide a hostile client's vector too. With a single sum of all clients, such a client could move
the sum at will. The sums of several buckets can be compared, and an aggregation rule leaves out
sums far from the others (He, Karimireddy, Jaggi, Secure Byzantine-Robust Machine Learning, 2020;
Velicheti, Xia, Koyejo, Secure Byzantine-Robust Distributed Learning via Clustering, 2021).

The draw depends on the round's token and on the fresh keys of all clients. A client sends its keys
before it sees any other client's keys. So no client chooses its bucket, and every client can check
the server's draw.
"""

import hashlib
from collections.abc import Mapping

from samara.shared.protocol.secure_aggregation.graph import least_number

LEAST_TRIMMED = 5
"""Least number of buckets for a trimmed mean. The sums of fewer buckets are simply added up."""
DIGEST_BYTES = 32
"""Size in bytes of the digest of a client's keys."""


def draw_buckets(token: bytes, digests: Mapping[int, bytes], size: int) -> list[list[int]]:
    """Divide a round's clients at random into buckets, whose sizes differ by at most 1.

    Args:
        token: token of the round's instruction, 8 bytes.
        digests: digest of each client's keys, 32 bytes; empty without keys.
        size: least number of clients in a bucket; a round with fewer clients has one bucket.

    Returns:
        The client indices of each bucket, ascending.
    """
    lot = hashlib.sha256(b"samara-buckets-1\0" + token)
    for client, digest in sorted(digests.items()):
        lot.update(client.to_bytes(4, "little") + digest)
    drawn = lot.digest()

    def place(client: int) -> bytes:
        return hashlib.sha256(drawn + client.to_bytes(4, "little")).digest()

    order = sorted(digests, key=place)
    count = max(1, len(digests) // size)
    return [sorted(order[first::count]) for first in range(count)]


def fewest_in_a_sum(size: int, minimum: int) -> int:
    """Return the least number of surviving clients whose vectors form a sum.

    Args:
        size: least number of clients in a bucket when it is drawn; 0 without buckets.
        minimum: least number of clients in a round.
    """
    return least_number(size) if size else minimum
