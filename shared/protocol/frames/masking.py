"""Masking frames: the messages of secure aggregation between clients and server.

In a round they follow each other in this order:

1. The server sends a key request, and every client answers with its masking keys.
2. The server sends each client a key list, and every client answers with sealed shares for its
   neighbours.
3. The server sends each client the shares that its neighbours sealed for it, and the train
   instruction. Clients answer with masked reports.
4. The server sends a survivor list, and every client answers with its signature of the list.
5. The server sends a signature list, and every client answers with shares.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Self, TypeVar

import numpy as np

from samara.shared.errors import FrameError
from samara.shared.privacy.vector import MAX_VECTORS
from samara.shared.protocol.secure_aggregation.graph import DEGREE
from samara.shared.protocol.secure_aggregation.keys import KEY_BYTES, SEAL_BYTES, digest_of_clients
from samara.shared.protocol.secure_aggregation.shamir import SHARE_BYTES
from samara.shared.protocol.wire import Kind, Reader, check_client_index, pack, unpack

COMMITMENT_BYTES = 32
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
"""Size in bytes of a ciphertext with two shares: 94."""
MAX_NEIGHBOURS = DEGREE + 1
"""Largest number of clients in a neighbourhood, the client itself included."""
_MAX_BYTES = 1024
"""Largest size in bytes of a public key (PEM) or a signature (DER)."""
_TOKEN = struct.Struct("<8s")
_HEADER = struct.Struct("<8sI")
_LISTED = struct.Struct("<8sII")
_SIZE = struct.Struct("<H")
_COUNT = struct.Struct("<I")
_SEAL = struct.Struct(f"<I{SEALED_BYTES}s")
_SHARE = struct.Struct(f"<IB{SHARE_BYTES}s")

_T = TypeVar("_T")


@dataclass(frozen=True)
class KeyRequest:
    """The server's request for the keys of a round.

    Attributes:
        token: token of the round's instruction, 8 bytes; the instruction follows later.
    """

    token: bytes

    def encode(self) -> bytes:
        """Encode the key request as a frame."""
        return pack(Kind.KEY_REQUEST, _TOKEN.pack(self.token))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a key request from a frame.

        Raises:
            FrameError: if the frame is not a valid key request.
        """
        reader = Reader(unpack(frame, Kind.KEY_REQUEST))
        (token,) = reader.fields(_TOKEN)
        reader.end()
        return cls(token)


@dataclass(frozen=True)
class MaskingKeys:
    """A client's fresh keys for a round, signed by its device key.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        client: client index.
        sealing_key: public key with which neighbours encrypt shares for this client, 65 bytes.
        mask_key: public key from which the masks of each pair are derived, 65 bytes.
        commitment: hash of the seed of the client's own mask, 32 bytes.
        device_key: public key of the device, PEM.
        signature: the device's signature of all other fields, DER.
    """

    token: bytes
    client: int
    sealing_key: bytes
    mask_key: bytes
    commitment: bytes
    device_key: bytes
    signature: bytes

    KIND: ClassVar = Kind.MASKING_KEYS
    _FIELDS: ClassVar = struct.Struct(f"<8sI{KEY_BYTES}s{KEY_BYTES}s{COMMITMENT_BYTES}s")

    @property
    def signed(self) -> bytes:
        """The bytes that the device signs: all fields except the signature."""
        own = self.token, self.client, self.sealing_key, self.mask_key, self.commitment
        return b"samara-masking-keys-1\0" + self._FIELDS.pack(*own) + self.device_key

    @property
    def digest(self) -> bytes:
        """The digest of these keys from which buckets are drawn, 32 bytes."""
        return hashlib.sha256(self.signed).digest()

    def encode(self) -> bytes:
        """Encode the masking keys as a frame."""
        own = self.token, self.client, self.sealing_key, self.mask_key, self.commitment
        return pack(
            self.KIND, self._FIELDS.pack(*own) + _sized(self.device_key) + _sized(self.signature)
        )

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode masking keys from a frame.

        Raises:
            FrameError: if the frame does not hold valid keys; the signature is not checked.
        """
        reader = Reader(unpack(frame, cls.KIND))
        values = [*reader.fields(cls._FIELDS), _read_sized(reader), _read_sized(reader)]
        keys = cls(*values)
        reader.end()
        check_client_index(keys.client)
        return keys


@dataclass(frozen=True)
class KeyList:
    """The clients of a round and the keys of the receiver's neighbours.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        clients: all clients that sent keys, ascending.
        keys: keys of the receiver's neighbours, itself included, in order of client index.
    """

    token: bytes
    clients: tuple[int, ...]
    keys: tuple[MaskingKeys, ...]

    @cached_property
    def clients_digest(self) -> bytes:
        """The digest of the clients, 32 bytes; keys and signatures are bound to it."""
        return digest_of_clients(self.token, self.clients)

    def encode(self) -> bytes:
        """Encode the key list as a frame."""
        body = self.token + _clients(self.clients) + _COUNT.pack(len(self.keys))
        return pack(Kind.KEY_LIST, body + b"".join(_sized(keys.encode()) for keys in self.keys))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a key list from a frame.

        Raises:
            FrameError: if the frame is not a valid key list, or keys belong to other clients or
                another token.
        """
        reader = Reader(unpack(frame, Kind.KEY_LIST))
        (token,) = reader.fields(_TOKEN)
        clients = _read_clients(reader)
        keys = _read_entries(
            reader, lambda: MaskingKeys.decode(_read_sized(reader, 2 * _MAX_BYTES))
        )
        reader.end()
        _check_ascending([own.client for own in keys])
        if any(own.token != token for own in keys) or not {o.client for o in keys} <= set(clients):
            raise FrameError("a key list has keys of another round, or of a client not listed")
        return cls(token, clients, keys)


@dataclass(frozen=True)
class SealedShares:
    """Encrypted shares of two secrets, from a client to its neighbours or from them to the client.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        client: sender of the shares in a frame to the server; receiver in a frame from the server.
        sealed: ciphertexts, 94 bytes each, by index of the other client, ascending.
    """

    token: bytes
    client: int
    sealed: Mapping[int, bytes]

    KIND: ClassVar = Kind.SEALED_SHARES

    def encode(self) -> bytes:
        """Encode the sealed shares as a frame."""
        body = _LISTED.pack(self.token, self.client, len(self.sealed))
        return pack(self.KIND, body + b"".join(_SEAL.pack(*one) for one in self.sealed.items()))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode sealed shares from a frame.

        Raises:
            FrameError: if the frame does not hold valid sealed shares.
        """
        reader = Reader(unpack(frame, cls.KIND))
        token, client = reader.fields(_HEADER)
        sealed = _read_entries(reader, lambda: reader.fields(_SEAL))
        reader.end()
        check_client_index(client)
        _check_ascending([neighbour for neighbour, _ in sealed])
        return cls(token, client, dict(sealed))


@dataclass(frozen=True)
class SurvivorList:
    """The list of clients whose masked reports the server adds up.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        survivors: client indices, ascending.
    """

    token: bytes
    survivors: tuple[int, ...]

    def signed(self, clients_digest: bytes) -> bytes:
        """Return the bytes that a client signs to confirm that it got no other list in this round.

        Args:
            clients_digest: digest of the clients in the signer's key list; the survivors are some
                of these clients.
        """
        listed = hashlib.sha256(_clients(self.survivors)).digest()
        return b"samara-survivors-2\0" + self.token + clients_digest + listed

    def encode(self) -> bytes:
        """Encode the survivor list as a frame."""
        return pack(Kind.SURVIVOR_LIST, self.token + _clients(self.survivors))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a survivor list from a frame.

        Raises:
            FrameError: if the frame is not a valid survivor list.
        """
        reader = Reader(unpack(frame, Kind.SURVIVOR_LIST))
        (token,) = reader.fields(_TOKEN)
        survivors = _read_clients(reader)
        reader.end()
        return cls(token, survivors)


@dataclass(frozen=True)
class SurvivorSignature:
    """A client's signature of a survivor list, by its device key.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        client: client index.
        signature: the signature, DER.
    """

    token: bytes
    client: int
    signature: bytes

    KIND: ClassVar = Kind.SURVIVOR_SIGNATURE

    def encode(self) -> bytes:
        """Encode the survivor signature as a frame."""
        return pack(self.KIND, _HEADER.pack(self.token, self.client) + _sized(self.signature))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a survivor signature from a frame.

        Raises:
            FrameError: if the frame is not a valid survivor signature; the signature itself is not
                checked.
        """
        reader = Reader(unpack(frame, cls.KIND))
        token, client = reader.fields(_HEADER)
        made = cls(token, client, _read_sized(reader))
        reader.end()
        check_client_index(client)
        return made


@dataclass(frozen=True)
class SignatureList:
    """Signatures of a survivor list by a client's neighbours.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        signatures: signature by neighbour, ascending.
    """

    token: bytes
    signatures: Mapping[int, bytes]

    def encode(self) -> bytes:
        """Encode the signature list as a frame."""
        each = (_COUNT.pack(client) + _sized(own) for client, own in self.signatures.items())
        body = self.token + _COUNT.pack(len(self.signatures)) + b"".join(each)
        return pack(Kind.SIGNATURE_LIST, body)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a signature list from a frame.

        Raises:
            FrameError: if the frame is not a valid signature list; the signatures themselves are
                not checked.
        """
        reader = Reader(unpack(frame, Kind.SIGNATURE_LIST))
        (token,) = reader.fields(_TOKEN)
        signatures = _read_entries(reader, lambda: (reader.fields(_COUNT)[0], _read_sized(reader)))
        reader.end()
        _check_ascending([client for client, _ in signatures])
        return cls(token, dict(signatures))


@dataclass(frozen=True)
class RevealedShares:
    """A client's shares of its neighbours' secrets, one secret for each neighbour.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        client: client index.
        seeds: shares of the seeds of survivors' own masks, 33 bytes each, by owner, ascending.
        keys: shares of the mask keys of clients that left, 33 bytes each, by owner, ascending.
    """

    token: bytes
    client: int
    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]

    KIND: ClassVar = Kind.REVEALED_SHARES

    def encode(self) -> bytes:
        """Encode the revealed shares as a frame."""
        both = [(owner, 0, share) for owner, share in self.seeds.items()]
        both += [(owner, 1, share) for owner, share in self.keys.items()]
        body = _LISTED.pack(self.token, self.client, len(both))
        return pack(self.KIND, body + b"".join(_SHARE.pack(*one) for one in sorted(both)))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode revealed shares from a frame.

        Raises:
            FrameError: if the frame does not hold valid shares, or holds both kinds of share for
                one client.
        """
        reader = Reader(unpack(frame, cls.KIND))
        token, client = reader.fields(_HEADER)
        entries = _read_entries(reader, lambda: reader.fields(_SHARE))
        reader.end()
        check_client_index(client)
        _check_ascending([owner for owner, _, _ in entries])
        if any(kind > 1 for _, kind, _ in entries):
            raise FrameError("a share is of an unknown kind")
        of_kind = [{o: share for o, kind, share in entries if kind == k} for k in (0, 1)]
        return cls(token, client, *of_kind)


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _read_sized(reader: Reader, most: int = _MAX_BYTES) -> bytes:
    (size,) = reader.fields(_SIZE)
    if not 0 < size <= most:
        raise FrameError(f"a key or a signature of {size} bytes is out of range")
    return bytes(reader.take(size))


def _clients(clients: Sequence[int]) -> bytes:
    return _COUNT.pack(len(clients)) + np.array(clients, "<u4").tobytes()


def _read_clients(reader: Reader) -> tuple[int, ...]:
    (count,) = reader.fields(_COUNT)
    if not 0 < count <= MAX_VECTORS:
        raise FrameError(f"a list of {count} clients is out of range")
    clients = reader.array("<u4", count).tolist()
    _check_ascending(clients)
    return tuple(clients)


def _read_entries(reader: Reader, read: Callable[[], _T]) -> tuple[_T, ...]:
    (count,) = reader.fields(_COUNT)
    if not 0 < count <= MAX_NEIGHBOURS:
        raise FrameError(f"a list of {count} neighbours is out of range")
    return tuple(read() for _ in range(count))


def _check_ascending(clients: Sequence[int]) -> None:
    """Raise `FrameError` unless client indices are valid and strictly ascending."""
    check_client_index(clients[-1])
    if any(one >= other for one, other in pairwise(clients)):
        raise FrameError("clients are not listed in ascending order, each once")
