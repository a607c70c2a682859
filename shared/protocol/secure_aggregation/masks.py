"""Masks: numbers modulo 2⁶⁴ that hide a vector and cancel in the sum over clients.

A client u adds its own mask to its vector. For each neighbour v it also adds the mask of the pair
(u, v) if u < v, and subtracts it otherwise. So the masks of pairs cancel in the sum over all
clients (Bonawitz et al., 2017, section 4). Sums of vectors are within ±2⁶²
(`samara.shared.privacy.vector`), so arithmetic modulo 2⁶⁴ loses nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Masked = NDArray[np.uint64]
"""A vector modulo 2⁶⁴."""


def mask_stream(key: bytes, count: int) -> Masked:
    """Return the mask of a key, uint64 [count]: AES-256 in counter mode from 0, little-endian.

    Args:
        key: 32 bytes, used for this mask only.
        count: number of elements.
    """
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def mask_vector(
    vector: NDArray[np.integer[Any]], client: int, seed: bytes, pair_keys: Mapping[int, bytes]
) -> Masked:
    """Return a client's masked vector, uint64 [n].

    Args:
        vector: integers [n].
        client: client index.
        seed: seed of the client's own mask, 32 bytes.
        pair_keys: mask key shared with each neighbour, by client index.
    """
    total: Masked = vector.astype(np.int64).view(np.uint64) + mask_stream(seed, len(vector))
    return total + pair_masks(client, pair_keys, len(vector))


def pair_masks(client: int, pair_keys: Mapping[int, bytes], count: int) -> Masked:
    """Return the sum of a client's pair masks with their signs, uint64 [count].

    Args:
        client: client index.
        pair_keys: mask key shared with each neighbour, by client index.
        count: number of elements.
    """
    total = np.zeros(count, np.uint64)
    for neighbour, key in pair_keys.items():
        mask = mask_stream(key, count)
        total = total + mask if client < neighbour else total - mask
    return total


def unmask_sum(
    masked: Iterable[Masked], seeds: Iterable[bytes], missing: Mapping[int, Mapping[int, bytes]]
) -> NDArray[np.int64]:
    """Remove all masks from a sum of masked vectors, int64 [n].

    Args:
        masked: masked vectors of the clients that stayed, uint64 [n].
        seeds: seeds of these clients' own masks.
        missing: for each client that left after its neighbours had added pair masks, the mask keys
            that it shares with the clients that stayed.
    """
    total: Masked = np.sum(list(masked), axis=0, dtype=np.uint64)
    for seed in seeds:
        total = total - mask_stream(seed, len(total))
    # The clients that stayed have added these masks with the opposite sign.
    for client, pair_keys in missing.items():
        total = total + pair_masks(client, pair_keys, len(total))
    return total.view(np.int64)
