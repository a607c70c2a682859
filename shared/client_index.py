"""Client indices: the numbers that stand for clients in frames and in the derivation of seeds."""

import hashlib
import re

MAX_CLIENT = 2**32 - 2
"""The largest client index; index + 1, which seeds are derived from, must fit 32 bits."""


def client_index_of_key(public_key: bytes) -> int:
    """Return the index of the client that holds a key; server and client derive the same one.

    Args:
        public_key: PEM, SubjectPublicKeyInfo, with its last newline.
    """
    return int.from_bytes(hashlib.sha256(public_key).digest()[:4], "little") % (MAX_CLIENT + 1)


_INDEX_LINE = re.compile(rb"^Samara-Client-Index: (\d{1,10})\r?$", re.MULTILINE)


def index_line(client: int) -> bytes:
    """Return the line of a private key file that holds the index of a client whose key is new.

    Libraries that read keys skip what follows a key's last line.
    """
    return b"Samara-Client-Index: %d\n" % client


def index_in_key_file(content: bytes) -> int | None:
    """Return the client index that a private key file holds; None if it follows from the key."""
    match = _INDEX_LINE.search(content)
    return int(match[1]) if match else None
