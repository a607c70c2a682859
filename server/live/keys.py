"""The client keys of a run, which decide which devices may join and as which clients.

RUN/keys/NAME.json   the public key and its dates; kept after the key is revoked
RUN/keys/NAME.key    the private key, until the operator moves it to the client; missing if the
                        client made the key itself
"""

import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from samara.server.live.key_pairs import encode_key, new_key, read_public_key
from samara.shared.errors import ClientKeyError, RevokedKeyError, SamaraError
from samara.shared.protocol.client_index import MAX_CLIENT, client_index_of_key, index_line
from samara.shared.protocol.signing import fingerprint_of
from samara.shared.storage.files import make_folder, write_durably, write_secret
from samara.shared.storage.watched_folder import WatchedFolder

KEYS_FOLDER = "keys"
KEYS_VARIABLE = "SAMARA_KEYS"
"""Environment variable of the ServerApp: the folder of the client keys.

If the variable is not set, any client may join.
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ClientKey:
    """A client's public key.

    Attributes:
        name: client name chosen by the operator.
        public_key: PEM.
        created: time when the key was registered, UTC, ISO 8601.
        revoked: time when the key was revoked, UTC, ISO 8601; empty while it is valid.
        gateway: whether the key's holder relays messages to phones and is not a client itself.
        index: client index if this key replaced an earlier key of the client. Otherwise None; the
            index is then a hash of the key.
    """

    name: str
    public_key: str
    created: str
    revoked: str = ""
    gateway: bool = False
    index: int | None = None

    @property
    def client(self) -> int:
        """The index of the client that holds the key."""
        if self.index is not None:
            return self.index
        return client_index_of_key(self.public_key.encode())

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key's PEM text, 64 hex digits."""
        return fingerprint_of(self.public_key.encode())


class _Lookup(NamedTuple):
    """Lookup tables of keys by client index and by fingerprint.

    Attributes:
        names: key name by client index.
        fingerprints: fingerprints of the keys of clients that may take part.
    """

    names: dict[int, str]
    fingerprints: frozenset[str]

    @classmethod
    def of(cls, keys: Sequence[ClientKey]) -> Self:
        """Build the lookup tables; of two keys with the same client index, the first is used."""
        valid = (key for key in keys if not key.revoked and not key.gateway)
        return cls(
            {key.client: key.name for key in reversed(keys)},
            frozenset(key.fingerprint for key in valid),
        )


class ClientKeys:
    """The client keys of a run.

    Commands may change the files while the run is served; changed files are read again. The folder
    is listed again only after a file was added, replaced or removed, so that the cost of a check
    does not depend on the number of keys. A damaged file affects only the holder of its key, who
    is refused.

    Args:
        folder: folder of the keys; the first key creates it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = WatchedFolder(folder, ".json", _read)
        self._by_public_key: dict[str, ClientKey] = {}
        self._lookup: _Lookup | None = None  # None after a file has changed

    def create(self, name: str, gateway: bool = False) -> Path:
        """Create a key pair for a client or a gateway and register its public key.

        Returns:
            The file with the private key, readable by its owner only, in the format that
            ``flower-supernode`` reads.

        Raises:
            SamaraError: if the name is used already, or cannot be a file name.
        """
        self.check_name(name)
        private, public = new_key({key.client for key in self.read_all()})
        make_folder(self._folder)
        secret_file = self._folder / f"{name}.key"
        write_secret(secret_file, encode_key(private))
        self._write(ClientKey(name, public.decode(), _now(), gateway=gateway))
        return secret_file

    def add(self, name: str, file: Path) -> ClientKey:
        """Register the public key of a client that made its own key pair.

        Args:
            name: name of the client.
            file: file of the public key, PEM.

        Raises:
            SamaraError: if the name is used already or cannot be a file name, the file holds no
                public key on an elliptic curve, or another client has the same index.
        """
        return self.register(name, read_public_key(file), str(file))

    def register(self, name: str, public_key: bytes, source: str) -> ClientKey:
        """Register a public key, as `add` does for a file.

        Args:
            name: name of the client.
            public_key: PEM in the form that `normalize_public_key` returns.
            source: origin of the key, for messages.

        Raises:
            SamaraError: if the name is used already or cannot be a file name, or another client
                has the same index.
        """
        self.check_name(name)
        self._check_is_new(public_key, source)
        added = ClientKey(name, public_key.decode(), _now())
        make_folder(self._folder)
        self._write(added)
        return added

    def rotate(self, name: str) -> Path:
        """Create a new key pair for a client; the client keeps its index.

        The client's earlier key is refused from then on.

        Returns:
            The file with the private key, in the format of `create`. The file also contains the
            client's index.

        Raises:
            SamaraError: if there is no key of this name, or it was revoked.
        """
        key = self._key_to_rotate(name)
        private, public = new_key({each.client for each in self.read_all()})
        secret_file = self._folder / f"{name}.key"
        write_secret(secret_file, encode_key(private) + index_line(key.client))
        self._write(replace(key, public_key=public.decode(), created=_now(), index=key.client))
        return secret_file

    def rotate_to(self, name: str, file: Path) -> ClientKey:
        """Replace a client's public key with another of its keys; the client keeps its index.

        Args:
            name: name of the client.
            file: file of the client's new public key, PEM.

        Raises:
            SamaraError: as in `rotate` and `add`.
        """
        key = self._key_to_rotate(name)
        public = read_public_key(file)
        self._check_is_new(public, str(file))
        rotated = replace(key, public_key=public.decode(), created=_now(), index=key.client)
        self._write(rotated)
        return rotated

    def revoke(self, name: str) -> ClientKey:
        """Revoke a key; a key that is already revoked keeps its date.

        Raises:
            SamaraError: if there is no key of this name.
        """
        key = self._key_of(name)
        revoked = key if key.revoked else replace(key, revoked=_now())
        self._write(revoked)
        return revoked

    def read_all(self) -> list[ClientKey]:
        """Read all undamaged keys, sorted by name."""
        return [key for key in self._read_changes() if isinstance(key, ClientKey)]

    def count_clients(self) -> int:
        """Return the number of clients that may take part, phones included."""
        return sum(not key.revoked and not key.gateway for key in self.read_all())

    def find_damage(self) -> list[str]:
        """Describe each damaged key file and its remedy."""
        return [str(error) for error in self._read_changes() if isinstance(error, SamaraError)]

    def modification_stamp(self) -> int:
        """Return a number that changes whenever a key is registered or revoked."""
        return self._files.modification_stamp()

    def refusal(self, public_key: bytes) -> ClientKeyError | None:
        """Return the reason why the holder of a key may not take part; None if the holder may."""
        key = self.find(public_key)
        if key is None:
            fingerprint = fingerprint_of(public_key)[:16]
            return ClientKeyError(f"its key {fingerprint} is not registered here")
        if key.gateway:
            return ClientKeyError(f"its key {key.name} belongs to a gateway, which is not a client")
        if key.revoked:
            return RevokedKeyError(f"its key {key.name} was revoked on {key.revoked}")
        return None

    def refusal_reason(self, public_key: bytes) -> str:
        """Return the text of `refusal`; empty if the holder of the key may take part."""
        return str(self.refusal(public_key) or "")

    def find_by_name(self, name: str) -> ClientKey | None:
        """Return the key of this name; None if it is missing or its file is damaged."""
        return next((key for key in self.read_all() if key.name == name), None)

    def name_of(self, client: int) -> str:
        """Return the key name of a client; empty without a key."""
        return self._look_up().names.get(client, "")

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Return whether a client that may take part has the key with this fingerprint."""
        return fingerprint in self._look_up().fingerprints

    def is_gateway(self, public_key: bytes) -> bool:
        """Return whether a key is a valid gateway key."""
        key = self.find(public_key)
        return key is not None and key.gateway and not key.revoked

    def check(self, public_key: bytes, client: int) -> None:
        """Check that the holder of a key may take part as the client with this index.

        Raises:
            SamaraError: if the holder may not take part, or the key belongs to another client.
        """
        if error := self.refusal(public_key):
            raise error
        key = self.find(public_key)
        if key is None or client != key.client:
            holder = key.client if key else "nobody"
            raise ClientKeyError(f"its key belongs to client {holder}, not to client {client}")

    def _check_is_new(self, public_key: bytes, source: str) -> None:
        """Check that no key of this run, revoked or not, equals this key or has its client index.

        Raises:
            SamaraError: if a key equals this key or has its client index.
        """
        index = client_index_of_key(public_key)
        for key in self.read_all():
            if index in (key.client, client_index_of_key(key.public_key.encode())):
                raise SamaraError(
                    f"{source}: {key.name} already has this key, or a key with the same client "
                    "index; create another key"
                )

    def _key_to_rotate(self, name: str) -> ClientKey:
        """Return the valid key of this name.

        Raises:
            SamaraError: if there is no such key, or the key was revoked.
        """
        key = self._key_of(name)
        if key.revoked:
            raise SamaraError(
                f"{self._file(name)}: the key was revoked on {key.revoked}; create a key with "
                "another name, for a new client"
            )
        return key

    def _key_of(self, name: str) -> ClientKey:
        """Return the key of this name.

        Raises:
            SamaraError: if there is no such key.
        """
        key = self.find_by_name(name)
        if key is None:
            raise SamaraError(
                f"{self._folder}: has no key {name}; `samara server status --keys` shows all keys"
            )
        return key

    def find(self, public_key: bytes) -> ClientKey | None:
        """Return a key; None if it is not registered, or its file is damaged."""
        text = public_key.decode(errors="replace")
        known = self._by_public_key.get(text)
        if self._files.may_have_changed(self._file(known.name).name if known else ""):
            self._read_changes()
        return self._by_public_key.get(text)

    def _read_changes(self) -> Collection[ClientKey | SamaraError]:
        """Read new and changed files; return the contents of all files."""
        read = self._files.search().values()
        self._by_public_key, self._lookup = {}, None
        for key in read:
            if isinstance(key, ClientKey):
                self._by_public_key.setdefault(key.public_key, key)
        return read

    def _look_up(self) -> "_Lookup":
        """Return the lookup tables of all keys, rebuilt after a file was added or replaced."""
        if self._lookup is None or self._files.may_have_changed():
            self._lookup = _Lookup.of(self.read_all())
        return self._lookup

    def check_name(self, name: str) -> None:
        """Check that a name is available for a client.

        Raises:
            SamaraError: if the name cannot be a file name, or is already in use.
        """
        if not _NAME.fullmatch(name):
            raise SamaraError(
                f"{name!r}: not a client's name; use up to 64 letters, digits, '.', '_' and '-'"
            )
        if self._file(name).exists():
            raise SamaraError(
                f"{self._file(name)}: a key already has this name; choose another name for another "
                "device. For a new key of the same client use `samara server keys rotate "
                f"{name} --run {self._folder.parent}`"
            )

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, key: ClientKey) -> None:
        fields = {name: value for name, value in asdict(key).items() if value is not None}
        text = json.dumps(fields, indent=1) + "\n"
        write_durably(self._file(key.name), text.encode())


def keys_of_environment() -> ClientKeys | None:
    """Return the client keys in the folder of `KEYS_VARIABLE`; None if any client may join."""
    folder = os.environ.get(KEYS_VARIABLE)
    return ClientKeys(Path(folder)) if folder else None


def _read(file: Path) -> ClientKey | SamaraError:
    """Read a key file; return an error if the file is damaged."""
    try:
        key = ClientKey(**json.loads(file.read_text(encoding="utf-8")))
        for name, value in asdict(key).items():
            if not _is_value_of(name, value):
                raise ValueError(f"{name} is {value!r}")
        if key.name != file.stem:
            raise ValueError(f"it holds the key of {key.name}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        remedy = "restore the file, or delete it and create the key again"
        return SamaraError(f"{file}: damaged: {error}; its key is refused; {remedy}")
    return key


def _is_value_of(name: str, value: object) -> bool:
    """Return whether a value from a key file is valid for the field of this name."""
    if name == "index":
        return value is None or (type(value) is int and 0 <= value <= MAX_CLIENT)
    return type(value) is (bool if name == "gateway" else str)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
