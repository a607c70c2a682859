"""Buckets: small groups of a round's clients, each with a sum of its own, drawn by lot.

Vectors under masks cannot be told apart, and one hostile client can move their sum at will. Sums of
several buckets can be compared, and a rule leaves out those that are far from the others (He,
Karimireddy, Jaggi, Secure Byzantine-Robust Machine Learning, 2020; Velicheti, Xia, Koyejo, Secure
Byzantine-Robust Distributed Learning via Clustering, 2021).

The lot follows from the round's token and every client's fresh keys, which clients send before they
see anyone else's. So no client chooses its bucket, and every client can check what the server says.
"""

import hashlib
from collections.abc import Mapping

from samara.shared.secure_aggregation.graph import least_number

LEAST_TRIMMED = 5
"""The fewest buckets of which a trimmed mean is taken; of fewer a plain sum."""
DIGEST_BYTES = 32
"""The bytes of the digest of a client's keys."""


def draw_buckets(token: bytes, digests: Mapping[int, bytes], size: int) -> list[list[int]]:
    """Return the buckets of a round, each ascending: as many as fit, of sizes that differ by 1.

    Args:
        token: token of the round's instruction, 8 bytes.
        digests: digest of each client's keys, 32 bytes, or nothing if there are no keys.
        size: the fewest clients of a bucket, unless there are fewer in all.
    """
    lot = hashlib.sha256(b"samara-buckets-1\0" + token)
    for client, digest in sorted(digests.items()):
        lot.update(client.to_bytes(4, "little") + digest)
    drawn = lot.digest()

    def place(client: int) -> bytes:
        return hashlib.sha256(drawn + client.to_bytes(4, "little")).digest()

    order, count = sorted(digests, key=place), max(1, len(digests) // size)
    return [sorted(order[first::count]) for first in range(count)]


def fewest_in_a_sum(size: int, minimum: int) -> int:
    """Return the fewest clients of a sum: of a bucket's survivors, or of a round's.

    Args:
        size: fewest clients of a bucket when it is drawn; 0 without buckets.
        minimum: fewest clients of a round.
    """
    return least_number(size) if size else minimum
