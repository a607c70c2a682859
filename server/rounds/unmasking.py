"""Unmasking: the sum of masked vectors, computed from the shares that survivors reveal.

Every recovered secret is checked: a seed against its commitment, and a private key against its
public key. Forged shares can therefore prevent a sum, but cannot cause a wrong sum.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import MaskingError
from samara.shared.protocol.frames.masking import MaskingKeys, RevealedShares
from samara.shared.protocol.secure_aggregation.graph import least_number
from samara.shared.protocol.secure_aggregation.keys import (
    MASKING,
    SECRET_BYTES,
    RoundKey,
    commit_to,
    digest_of_clients,
    pair_of,
)
from samara.shared.protocol.secure_aggregation.masks import Masked, unmask_sum
from samara.shared.protocol.secure_aggregation.shamir import PRIME, combine_shares


@dataclass(frozen=True)
class MaskedRound:
    """The server's data about the masks of a round, or of one of its buckets.

    Attributes:
        keys: keys of each client that has sent its keys.
        neighbourhoods: neighbours of each client, including the client.
        partners: clients that have shared their secrets; each shares masks with its neighbours.
        clients_digest: digest of the clients, 32 bytes; keys and signatures are bound to it.
    """

    keys: Mapping[int, MaskingKeys]
    neighbourhoods: Mapping[int, Sequence[int]]
    partners: Collection[int]
    clients_digest: bytes

    @classmethod
    def of(
        cls,
        token: bytes,
        clients: Sequence[int],
        keys: Mapping[int, MaskingKeys],
        neighbourhoods: Mapping[int, Sequence[int]],
        sent: Collection[int],
    ) -> Self:
        """Return the masks' data for some of a round's clients, such as the clients of a bucket.

        Args:
            token: token of the round's instruction, 8 bytes.
            clients: the clients, ascending.
            keys: keys of all clients.
            neighbourhoods: neighbours of all clients.
            sent: the clients of the round that have shared their secrets.
        """
        return cls(
            {client: keys[client] for client in clients},
            {client: neighbourhoods[client] for client in clients},
            [client for client in clients if client in sent],
            digest_of_clients(token, clients),
        )

    def pair_of(self, one: int, other: int) -> bytes:
        """Return the bytes that bind two clients' common key to the round and to these clients."""
        return pair_of(self.clients_digest, one, other)

    def threshold_of(self, client: int) -> int:
        """Return the number of shares that recover a client's secrets."""
        return least_number(len(self.neighbourhoods[client]))


def recover_sum(
    known: MaskedRound, masked: Mapping[int, Masked], revealed: Collection[RevealedShares]
) -> NDArray[np.int64]:
    """Return the sum of the survivors' vectors, int64 [n].

    Args:
        known: keys, neighbours and partners of the round.
        masked: the survivors' masked vectors.
        revealed: shares that survivors have revealed, at most one entry per survivor.

    Raises:
        MaskingError: if a required secret cannot be recovered.
    """
    seeds = [_find_seed(known, client, revealed) for client in sorted(masked)]
    missing = {}
    for client in sorted(set(known.partners) - masked.keys()):
        with_it = [one for one in known.neighbourhoods[client] if one in masked]
        key = _find_key(known, client, revealed) if with_it else None
        if key:
            missing[client] = {
                one: key.agree(known.keys[one].mask_key, MASKING, known.pair_of(client, one))
                for one in with_it
            }
    return unmask_sum((masked[client] for client in sorted(masked)), seeds, missing)


def _find_seed(known: MaskedRound, owner: int, revealed: Collection[RevealedShares]) -> bytes:
    """Recover the seed of a survivor's own mask."""
    shares = {one.client: one.seeds[owner] for one in revealed if owner in one.seeds}
    commitment = known.keys[owner].commitment
    return _find(known, owner, shares, lambda secret: commit_to(secret) == commitment)


def _find_key(known: MaskedRound, owner: int, revealed: Collection[RevealedShares]) -> RoundKey:
    """Recover the private mask key of a client that shared its secrets but sent no report."""
    shares = {one.client: one.keys[owner] for one in revealed if owner in one.keys}

    def fits(secret: bytes) -> bool:
        try:
            return RoundKey(secret).public == known.keys[owner].mask_key
        except MaskingError:
            return False

    return RoundKey(_find(known, owner, shares, fits))


def _find(
    known: MaskedRound, owner: int, shares: Mapping[int, bytes], fits: Callable[[bytes], bool]
) -> bytes:
    """Recover a client's secret, 32 bytes, from shares.

    The shares are ordered by client in a circle. The function tries every sequence of consecutive
    shares whose length is the threshold. If only one client has forged its share, at least one
    sequence does not contain this share.

    Args:
        known: keys and neighbours of the round.
        owner: the client whose secret is recovered.
        shares: shares of the secret, by the client that revealed the share.
        fits: function that returns whether bytes are the secret.

    Raises:
        MaskingError: if the secret is not found.
    """
    points = {client + 1: int.from_bytes(share, "little") for client, share in shares.items()}
    sound = {point: share for point, share in sorted(points.items()) if share < PRIME}
    for chosen in _windows(list(sound), known.threshold_of(owner)):
        secret = combine_shares({point: sound[point] for point in chosen})
        if secret < 2 ** (8 * SECRET_BYTES):
            found = secret.to_bytes(SECRET_BYTES, "little")
            if fits(found):
                return found
    raise MaskingError(
        f"{len(sound)} shares do not recover the secret of client {owner}; "
        f"{known.threshold_of(owner)} valid shares are needed"
    )


def _windows(points: list[int], size: int) -> Iterator[list[int]]:
    if len(points) < size:
        return
    beginnings = range(len(points) if len(points) > size else 1)
    for begin in beginnings:
        yield (points + points)[begin : begin + size]
