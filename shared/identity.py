"""Who a client is: a number made of its public key, the same on both sides."""

import hashlib

from shared.frames import MAX_CLIENT


def client_index_of(public_key: bytes) -> int:
    """The index of the client that holds a key.

    Args:
        public_key: PEM, SubjectPublicKeyInfo, with its last newline.
    """
    return int.from_bytes(hashlib.sha256(public_key).digest()[:4], "little") % (MAX_CLIENT + 1)
