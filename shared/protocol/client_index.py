"""Client indices: the numbers that identify clients in frames and seeds."""

import hashlib
import re

MAX_CLIENT = 2**32 - 2
"""Largest client index; seeds are derived from index + 1, which must fit 32 bits."""


def client_index_of_key(public_key: bytes) -> int:
    """Derive a client's index from its public key, in the same way on server and client.

    Args:
        public_key: PEM, SubjectPublicKeyInfo, with its last newline.
    """
    return int.from_bytes(hashlib.sha256(public_key).digest()[:4], "little") % (MAX_CLIENT + 1)


_INDEX_LINE = re.compile(rb"^Samara-Client-Index: (\d{1,10})\r?$", re.MULTILINE)


def index_line(client: int) -> bytes:
    """Return the line that stores a client's old index in the file of its new private key.

    It is needed after a key rotation, because the index no longer follows from the key. Libraries
    that read keys ignore everything after the last line of the key.
    """
    return b"Samara-Client-Index: %d\n" % client


def index_in_key_file(content: bytes) -> int | None:
    """Return the client index stored in a private key file; None if none is stored."""
    match = _INDEX_LINE.search(content)
    return int(match[1]) if match else None
