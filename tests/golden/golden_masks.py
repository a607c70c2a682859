"""The golden file of secure aggregation's cipher suite: keys, masks, ciphertexts and shares.

A client's random numbers are given, so that every implementation derives the same values.
"""

import hashlib
from typing import Any
from unittest.mock import patch

import numpy as np

from samara.shared.protocol.secure_aggregation import keys
from samara.shared.protocol.secure_aggregation.keys import (
    MASKING,
    SEALING,
    RoundKey,
    commit_to,
    digest_of_clients,
    pair_of,
    seal,
)
from samara.shared.protocol.secure_aggregation.masks import mask_stream, mask_vector
from samara.shared.protocol.secure_aggregation.shamir import PRIME, SHARE_BYTES, split_secret

TOKEN = bytes(range(8))
CLIENT, NEIGHBOURS = 4, (2, 2**32 - 2)
CLIENTS = tuple(sorted((CLIENT, *NEIGHBOURS)))
VECTOR = np.array([0, 1, -1, 2**24, -(2**62), 2**62 - 1, 123_456_789], np.int64)
NONCE = bytes(range(100, 112))
POINTS, THRESHOLD = (1, 2, 5, 2**32 - 1), 3
COEFFICIENTS = (PRIME - 1, 2**255 + 7)


def secret_of(client: int, use: int) -> bytes:
    """A client's secret, 32 bytes, below the order of P-256 as a number."""
    return hashlib.sha256(f"secret {use} of {client}".encode()).digest()


def client_of(client: int) -> dict[str, Any]:
    sealing, mask, seed = (secret_of(client, use) for use in range(3))
    return {
        "client": client,
        "sealing_secret": sealing,
        "sealing_key": RoundKey(sealing).public,
        "mask_secret": mask,
        "mask_key": RoundKey(mask).public,
        "mask_seed": seed,
        "commitment": commit_to(seed),
    }


def pair_with(neighbour: int) -> dict[str, Any]:
    """The common keys of the client and a neighbour, and the sealed message to the neighbour."""
    pair = pair_of(digest_of_clients(TOKEN, CLIENTS), CLIENT, neighbour)
    sealing, mask = (
        RoundKey(secret_of(CLIENT, use)).agree(
            RoundKey(secret_of(neighbour, use)).public, purpose, pair
        )
        for use, purpose in enumerate((SEALING, MASKING))
    )
    content = bytes((neighbour + place) % 256 for place in range(2 * SHARE_BYTES))
    with patch.object(keys.secrets, "token_bytes", lambda size: NONCE[:size]):
        sealed = seal(sealing, content, CLIENT, neighbour, TOKEN)
    return {
        "neighbour": neighbour,
        "key_for_shares": sealing,
        "key_for_masks": mask,
        "mask": [str(number) for number in mask_stream(mask, len(VECTOR)).tolist()],
        "content": content,
        "sealed": sealed,
    }


def made_masks() -> dict[str, Any]:
    """A client with one smaller and one larger neighbour, and a secret divided into shares."""
    pairs = [pair_with(neighbour) for neighbour in NEIGHBOURS]
    pair_keys = {pair["neighbour"]: pair["key_for_masks"] for pair in pairs}
    seed, drawn = secret_of(CLIENT, 2), iter(COEFFICIENTS)
    masked = mask_vector(VECTOR, CLIENT, seed, pair_keys)
    secret = int.from_bytes(seed, "little")
    shares = split_secret(secret, POINTS, THRESHOLD, lambda _: next(drawn))
    return {
        "token": TOKEN,
        "nonce": NONCE,
        "clients": [client_of(client) for client in CLIENTS],
        "clients_digest": digest_of_clients(TOKEN, CLIENTS),
        "client": CLIENT,
        "pairs": pairs,
        "vector": [str(number) for number in VECTOR.tolist()],
        "masked": [str(number) for number in masked.tolist()],
        "coefficients": [str(number) for number in COEFFICIENTS],
        "points": list(POINTS),
        "shares": [share.to_bytes(SHARE_BYTES, "little") for share in shares],
    }
