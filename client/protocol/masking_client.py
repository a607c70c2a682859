"""A client's part in the secure aggregation of a round, from fresh keys to revealed shares.

In a round a client sends one set of keys, one masked vector, and its signature of one survivor
list. For each neighbour it reveals its share of only one of two secrets (Bonawitz et al., 2017,
figure 4). The client refuses any other request of the server, and deletes the keys after the round.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

from samara.shared.errors import FrameError, MaskingError
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.masking import (
    KeyList,
    KeyRequest,
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SignatureList,
    SurvivorList,
    SurvivorSignature,
)
from samara.shared.protocol.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.protocol.secure_aggregation.buckets import fewest_in_a_sum
from samara.shared.protocol.secure_aggregation.graph import (
    LEAST_CLIENTS,
    least_number,
    neighbourhood_of,
)
from samara.shared.protocol.secure_aggregation.keys import (
    MASKING,
    SEALING,
    SECRET_BYTES,
    RoundKey,
    commit_to,
    fresh_seed,
    pair_of,
    seal,
    unseal,
)
from samara.shared.protocol.secure_aggregation.masks import mask_vector
from samara.shared.protocol.secure_aggregation.shamir import SHARE_BYTES, split_secret
from samara.shared.protocol.signing import is_signed_by, normalize_public_key
from samara.shared.protocol.wire import Kind, kind_of


class Signer(Protocol):
    """The private key of a device."""

    @property
    def public(self) -> bytes:
        """The public key, PEM."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes, DER."""


@dataclass(frozen=True, repr=False)
class MaskingState:
    """The state of a client between the messages of a round; fields of later messages are empty.

    The repr hides all fields, so that logs contain no secrets.

    Attributes:
        token: token of the round's instruction, 8 bytes.
        rules: minimum number of clients of a round and of a bucket, as bytes.
        sealing_secret: private key that decrypts the shares for this client, 32 bytes.
        mask_secret: private key from which the pair masks are derived, 32 bytes.
        seed: seed of the client's individual mask, 32 bytes.
        keys: masking keys that the client has sent, a frame.
        own_share: the share of the seed that the client keeps, 33 bytes.
        key_list: key list, a frame.
        received: sealed shares for this client, a frame.
        is_masked: the byte 1 after a masked report was made, else empty.
        survivors: survivor list that the client has signed, a frame.
    """

    token: bytes = b""
    rules: bytes = b""
    sealing_secret: bytes = b""
    mask_secret: bytes = b""
    seed: bytes = b""
    keys: bytes = b""
    own_share: bytes = b""
    key_list: bytes = b""
    received: bytes = b""
    is_masked: bytes = b""
    survivors: bytes = b""

    def to_bytes(self) -> dict[str, bytes]:
        """Return the state as named byte strings."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def generate(cls, token: bytes, rules: bytes) -> Self:
        """Return the initial state of a round, with fresh secrets."""
        secrets = RoundKey.generate().secret, RoundKey.generate().secret, fresh_seed()
        return cls(token, rules, *secrets)


class MaskingStore(Protocol):
    """Protocol of stores for a client's masking state.

    If the state is lost with the process, the client has dropped out of the round.
    """

    def read_masking(self) -> MaskingState:
        """Return the stored state, or an empty state if none was stored."""

    def write_masking(self, state: MaskingState) -> None:
        """Store the state."""


class MaskingMemory:
    """A store of the masking state in memory, so that no secret is ever written to a disk."""

    def __init__(self) -> None:
        self._state = MaskingState()

    def read_masking(self) -> MaskingState:
        """Return the stored state."""
        return self._state

    def write_masking(self, state: MaskingState) -> None:
        """Store the state."""
        self._state = state


class Masking(Protocol):
    """Protocol of a client's part in the secure aggregation of a run."""

    def answer(self, frame: bytes) -> bytes:
        """Return the answer to a masking frame; empty for sealed shares, which are only stored."""

    def mask(self, report: AnyVectorReport) -> MaskedReport:
        """Return a report with the masks of the round added."""


class MaskingClient:
    """One client's answers to the frames of secure aggregation, and its masked reports.

    Args:
        client: client index.
        signer: private key of the device.
        store: store of the state between messages.
        minimum: minimum number of clients of a round.
        bucket: minimum number of clients in a drawn bucket; 0 if a round has only one sum.
    """

    def __init__(
        self, client: int, signer: Signer, store: MaskingStore, minimum: int, bucket: int = 0
    ) -> None:
        self._client, self._signer, self._store = client, signer, store
        self._minimum, self._bucket = max(minimum, LEAST_CLIENTS), bucket
        self._fewest = max(fewest_in_a_sum(bucket, minimum), LEAST_CLIENTS)
        # Masking frames name no run, so the rules distinguish runs: keys sent under one run's
        # rules do not count for a run with other rules.
        self._rules = f"{minimum} {bucket}".encode()

    def answer(self, frame: bytes) -> bytes:
        """Return the answer to a masking frame; empty for sealed shares, which are only stored.

        Raises:
            MaskingError: if the frame requests something that the protocol forbids.
            FrameError: if the frame is invalid.
        """
        match kind_of(frame):
            case Kind.KEY_REQUEST:
                return self._send_keys(KeyRequest.decode(frame).token)
            case Kind.KEY_LIST | Kind.BUCKET_KEY_LIST:
                return self._send_shares(self._read_key_list(frame))
            case Kind.SEALED_SHARES:
                return self._keep_shares(frame)
            case Kind.SURVIVOR_LIST:
                return self._sign(frame)
            case Kind.SIGNATURE_LIST:
                return self._reveal(frame)
            case kind:
                raise FrameError(f"a {kind.name.lower()} frame is not part of secure aggregation")

    def mask(self, report: AnyVectorReport) -> MaskedReport:
        """Return a report with this round's masks added; a round's report is masked only once.

        Args:
            report: report clipped as a whole, with the noise that the client adds.

        Raises:
            MaskingError: if the report is for another round, or this round's report was already
                masked.
        """
        state = self._state_of(report.token)
        if not state.received or state.is_masked:
            raise MaskingError("the server asks for a masked report out of turn")
        listed, secret = KeyList.decode(state.key_list), RoundKey(state.mask_secret)
        keys, digest = _keys_of(listed), listed.clients_digest
        pair_keys = {
            one: secret.agree(keys[one].mask_key, MASKING, pair_of(digest, self._client, one))
            for one in SealedShares.decode(state.received).sealed
        }
        masked = mask_vector(report.vector, self._client, state.seed, pair_keys)
        self._store.write_masking(replace(state, is_masked=b"\1"))
        return MaskedReport(report.token, self._client, masked)

    def _send_keys(self, token: bytes) -> bytes:
        """Return this client's keys for a round; a repeated request gets the same keys."""
        state = self._store.read_masking()
        if (state.token, state.rules) == (token, self._rules):
            if not state.keys:
                raise MaskingError("the keys of this round have been used and deleted")
            return state.keys
        state = MaskingState.generate(token, self._rules)
        keys = MaskingKeys(
            token,
            self._client,
            RoundKey(state.sealing_secret).public,
            RoundKey(state.mask_secret).public,
            commit_to(state.seed),
            self._signer.public,
            b"",
        )
        frame = replace(keys, signature=self._signer.sign(keys.signed)).encode()
        self._store.write_masking(replace(state, keys=frame))
        return frame

    def _read_key_list(self, frame: bytes) -> KeyList:
        """Return the key list of a round or, in a run with buckets, of this client's bucket.

        The client draws its bucket from the frame itself.

        Raises:
            MaskingError: if the round has too few clients, or the frame has the wrong kind for the
                run.
            FrameError: if the frame is invalid, or the client draws another bucket.
        """
        expected = Kind.BUCKET_KEY_LIST if self._bucket else Kind.KEY_LIST
        if kind_of(frame) is not expected:
            raise MaskingError(f"the list of keys is not a {expected.name.lower()} frame")
        drawn = BucketKeyList.decode(frame) if self._bucket else None
        listed = drawn.listed if drawn else KeyList.decode(frame)
        if len(listed.clients) < self._minimum or self._client not in listed.clients:
            raise MaskingError(
                f"the list of {len(listed.clients)} clients lacks this client, or is shorter than "
                f"the run's minimum of {self._minimum}"
            )
        return drawn.bucket_of(self._client, self._bucket) if drawn else listed

    def _send_shares(self, listed: KeyList) -> bytes:
        """Return this client's secrets as sealed shares for its neighbours, once per round."""
        state = self._state_of(listed.token)
        if state.key_list:
            raise MaskingError("the server sent a second list of keys for this round")
        neighbours = self._check_keys(listed, state)
        points = [neighbour + 1 for neighbour in neighbours]
        secrets = (int.from_bytes(s, "little") for s in (state.seed, state.mask_secret))
        seeds, keys = (split_secret(s, points, least_number(len(points))) for s in secrets)
        sealed, own, sealing = {}, b"", RoundKey(state.sealing_secret)
        for theirs, seed_share, key_share in zip(listed.keys, seeds, keys, strict=True):
            content = seed_share.to_bytes(SHARE_BYTES, "little")
            if theirs.client == self._client:
                own = content
                continue
            content += key_share.to_bytes(SHARE_BYTES, "little")
            pair = pair_of(listed.clients_digest, self._client, theirs.client)
            key = sealing.agree(theirs.sealing_key, SEALING, pair)
            sealed[theirs.client] = seal(key, content, self._client, theirs.client, state.token)
        self._store.write_masking(replace(state, own_share=own, key_list=listed.encode()))
        return SealedShares(state.token, self._client, sealed).encode()

    def _check_keys(self, listed: KeyList, state: MaskingState) -> list[int]:
        """Return this client's neighbourhood, after checking the listed keys and signatures.

        Raises:
            MaskingError: if keys of the client or a neighbour are missing, differ or are not
                signed.
        """
        neighbours = neighbourhood_of(self._client, listed.token, listed.clients)
        if [keys.client for keys in listed.keys] != neighbours:
            raise MaskingError(
                "the list of keys must have the keys of this client's neighbours and no others"
            )
        for keys in listed.keys:
            if keys.client == self._client and keys.encode() != state.keys:
                raise MaskingError(
                    "the list of keys has keys for this client that this client has not sent"
                )
            if not is_signed_by(keys.device_key, keys.signature, keys.signed):
                raise MaskingError(f"the keys of client {keys.client} are not signed by its device")
        devices = {normalize_public_key(keys.device_key) for keys in listed.keys}
        if len(devices) < len(neighbours):
            raise MaskingError("two clients of the list have the same device key")
        return neighbours

    def _keep_shares(self, frame: bytes) -> bytes:
        """Store the sealed shares that neighbours sent to this client, for later decryption."""
        shares = SealedShares.decode(frame)
        state = self._state_of(shares.token)
        if state.received == frame:
            return b""  # the repetition of an instruction, which gets the stored report
        if not state.key_list or state.received or shares.client != self._client:
            raise MaskingError("the sealed shares come out of turn, or are for another client")
        neighbours = [keys.client for keys in KeyList.decode(state.key_list).keys]
        if not shares.sealed.keys() < set(neighbours) or self._client in shares.sealed:
            raise MaskingError(
                "sealed shares come from clients that are not neighbours of this client"
            )
        if len(shares.sealed) + 1 < least_number(len(neighbours)):
            raise MaskingError("too few neighbours are left to mask the report")
        self._store.write_masking(replace(state, received=frame))
        return b""

    def _sign(self, frame: bytes) -> bytes:
        """Return this client's signature of a survivor list; only one list per round is signed."""
        listed = SurvivorList.decode(frame)
        state = self._state_of(listed.token)
        if not state.is_masked or state.survivors not in (b"", frame):
            raise MaskingError(
                "the server sent the list of survivors before the masked report, or twice"
            )
        asked = KeyList.decode(state.key_list)
        self._check_survivors(listed.survivors, asked, state)
        signature = self._signer.sign(listed.signed(asked.clients_digest))
        self._store.write_masking(replace(state, survivors=frame))
        return SurvivorSignature(listed.token, self._client, signature).encode()

    def _check_survivors(
        self, survivors: Collection[int], asked: KeyList, state: MaskingState
    ) -> None:
        """Raise `MaskingError` if the survivors' sum would not hide this client's vector."""
        chosen = set(survivors)
        if self._client not in chosen or not chosen <= set(asked.clients):
            raise MaskingError(
                "the list of survivors lacks this client, or names clients that the server did "
                "not ask"
            )
        if len(chosen) < max(self._fewest, least_number(len(asked.clients))):
            raise MaskingError(f"{len(chosen)} survivors are too few to mask the report")
        counted = SealedShares.decode(state.received).sealed.keys() | {self._client}
        if chosen & {keys.client for keys in asked.keys} - counted:
            raise MaskingError("a survivor shares no mask with this client")

    def _reveal(self, frame: bytes) -> bytes:
        """Return one secret's share for each neighbour, and forget this round's secrets.

        So many neighbours must have signed the same survivor list that no second list can have
        enough signatures. A signature also covers the list of the round's clients. The signature of
        a neighbour that received another list of clients therefore does not count.
        """
        listed = SignatureList.decode(frame)
        state = self._state_of(listed.token)
        if not state.survivors:
            raise MaskingError(
                "the server asks for shares before this client has signed a list of survivors"
            )
        survivors, asked = SurvivorList.decode(state.survivors), KeyList.decode(state.key_list)
        keys, signed = _keys_of(asked), survivors.signed(asked.clients_digest)
        signers = listed.signatures.keys() & keys.keys() & set(survivors.survivors)
        if len(signers) < len(listed.signatures) or len(signers) < least_number(len(keys)):
            raise MaskingError("too few neighbours have signed the list of survivors")
        for signer in signers:
            if not is_signed_by(keys[signer].device_key, listed.signatures[signer], signed):
                raise MaskingError(f"client {signer} has not signed this list of survivors")
        shares = self._read_shares(state, asked, set(survivors.survivors))
        self._store.write_masking(MaskingState(state.token, state.rules))
        return shares.encode()

    def _read_shares(
        self, state: MaskingState, asked: KeyList, survivors: set[int]
    ) -> RevealedShares:
        """Return the shares to reveal for a survivor list, without forged shares.

        Args:
            state: state of the round.
            asked: key list of the round or bucket.
            survivors: the survivors.
        """
        seeds, mask_keys = {self._client: state.own_share}, {}
        secret, keys = RoundKey(state.sealing_secret), _keys_of(asked)
        for sender, sealed in SealedShares.decode(state.received).sealed.items():
            pair = pair_of(asked.clients_digest, self._client, sender)
            key = secret.agree(keys[sender].sealing_key, SEALING, pair)
            try:
                content = unseal(key, sealed, sender, self._client, state.token)
            except MaskingError:
                continue
            if sender in survivors:
                seeds[sender] = content[:SHARE_BYTES]
            else:
                mask_keys[sender] = content[SHARE_BYTES:]
        return RevealedShares(state.token, self._client, seeds, mask_keys)

    def _state_of(self, token: bytes) -> MaskingState:
        """Return the state of a round that has begun.

        Raises:
            MaskingError: if there is no such state, for example after a restart, or the state
                was created under the rules of another run.
        """
        state = self._store.read_masking()
        is_of_it = (state.token, state.rules) == (token, self._rules)
        if not is_of_it or len(state.seed) != SECRET_BYTES:
            raise MaskingError("this client has no keys for this round")
        return state


def _keys_of(listed: KeyList) -> dict[int, MaskingKeys]:
    return {keys.client: keys for keys in listed.keys}
