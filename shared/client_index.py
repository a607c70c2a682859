"""Client indices: the numbers that stand for clients in frames and in the derivation of seeds."""

import hashlib

from shared.errors import FrameError

MAX_CLIENT = 2**32 - 2
"""The largest client index; index + 1, which seeds are derived from, must fit 32 bits."""


def client_index_of_key(public_key: bytes) -> int:
    """Return the index of the client that holds a key; server and client derive the same one.

    Args:
        public_key: PEM, SubjectPublicKeyInfo, with its last newline.
    """
    return int.from_bytes(hashlib.sha256(public_key).digest()[:4], "little") % (MAX_CLIENT + 1)


def check_client_index(client: int) -> None:
    """Raise an error if a client index from a frame is too large.

    Raises:
        FrameError: if it is over `MAX_CLIENT`.
    """
    if client > MAX_CLIENT:
        raise FrameError(f"client index {client} is over {MAX_CLIENT}")
