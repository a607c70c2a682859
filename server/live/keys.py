"""The client keys of a run: who may join, and which client a key is.

RUN/keys/NAME.json   what the server knows of a key; RUN/keys/NAME.key   the private half, which is
copied to the client and deleted here. A client that made its key itself keeps it. A key that is
revoked stays on record.
"""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shared.client_index import client_index_of_key
from shared.errors import DeviceError, SamaraError
from shared.files import make_folder, write_durably
from shared.signing import normalize_public_key

KEYS_FOLDER = "keys"
KEYS_VARIABLE = "SAMARA_KEYS"
"""Environment variable that tells a ServerApp where the keys are; without it anybody may join."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class DeviceKey:
    """A key and what became of it.

    Attributes:
        name: that the operator gave it.
        public_key: PEM.
        created: UTC, ISO 8601.
        revoked: the same; empty while it is valid.
    """

    name: str
    public_key: str
    created: str
    revoked: str = ""

    @property
    def client(self) -> int:
        """Index of the client that holds it."""
        return client_index_of_key(self.public_key.encode())

    @property
    def fingerprint(self) -> str:
        """Of the public half, 64 hex digits."""
        return fingerprint_of(self.public_key.encode())


def fingerprint_of(public_key: bytes) -> str:
    """SHA-256 of a public key as PEM, in hex."""
    return hashlib.sha256(public_key).hexdigest()


class Keys:
    """The keys of a run, read anew at every question: commands change them while it runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, name: str) -> Path:
        """Make a key for a client.

        Returns:
            The file with the private half, readable by its owner only, as ``flower-supernode``
            takes it.

        Raises:
            SamaraError: if the name is taken or unfit for a file name.
        """
        self._check_name(name)
        private, public = _new_key({key.client for key in self.all()})
        secret = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        make_folder(self._folder)
        secret_file = self._folder / f"{name}.key"
        secret_file.touch(0o600, exist_ok=True)
        secret_file.chmod(0o600)
        secret_file.write_bytes(secret)
        self._write(DeviceKey(name, public.decode(), _now()))
        return secret_file

    def add(self, name: str, file: Path) -> DeviceKey:
        """Let in a client that made its key itself; its private half never leaves it.

        Args:
            name: of the client.
            file: the public half, PEM.

        Raises:
            SamaraError: if the name is taken or unfit for a file name, the file holds no public
                key on an elliptic curve, or another client has its index.
        """
        self._check_name(name)
        try:
            public = normalize_public_key(file.read_bytes())
        except OSError as error:
            raise SamaraError(f"{file}: cannot be read: {error.strerror}") from error
        except DeviceError as error:
            raise SamaraError(f"{file}: {error}") from error
        for key in self.all():
            if key.client == client_index_of_key(public):
                raise SamaraError(f"{file}: {key.name} has this key, or one of the same index")
        added = DeviceKey(name, public.decode(), _now())
        make_folder(self._folder)
        self._write(added)
        return added

    def revoke(self, name: str) -> DeviceKey:
        """Refuse a key from now on.

        Raises:
            SamaraError: if there is none of this name.
        """
        found = next((key for key in self.all() if key.name == name), None)
        if found is None:
            raise SamaraError(f"{self._folder}: there is no key {name}; see `samara server keys`")
        revoked = found if found.revoked else replace(found, revoked=_now())
        self._write(revoked)
        return revoked

    def all(self) -> list[DeviceKey]:
        """Every key, by name.

        Raises:
            SamaraError: if a file of one is damaged.
        """
        return [_read(file) for file in sorted(self._folder.glob("*.json"))]

    def stamp(self) -> int:
        """Another number whenever a key was made or changed."""
        return sum(file.stat().st_mtime_ns for file in self._folder.glob("*.json"))

    def refusal_reason(self, public_key: bytes) -> str:
        """Why the holder of a key may not take part; empty if it may."""
        found = self._of(public_key)
        if found is None:
            return f"its key {fingerprint_of(public_key)[:16]} is not registered here"
        return f"its key {found.name} was revoked on {found.revoked}" if found.revoked else ""

    def check(self, public_key: bytes, client: int) -> None:
        """Make sure that the holder of a key may take part, and is the client that it says.

        Raises:
            SamaraError: if it may not, or the key is another client's.
        """
        if reason := self.refusal_reason(public_key):
            raise SamaraError(reason)
        if client != client_index_of_key(public_key):
            raise SamaraError(
                f"its key is that of client {client_index_of_key(public_key)}, not {client}"
            )

    def _of(self, public_key: bytes) -> DeviceKey | None:
        text = public_key.decode(errors="replace")
        return next((key for key in self.all() if key.public_key == text), None)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise SamaraError(f"{name!r}: name a client by letters, digits, '.', '_' and '-'")
        if self._file(name).exists():
            raise SamaraError(f"{self._file(name)}: there is a key of this name; choose another")

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _write(self, key: DeviceKey) -> None:
        text = json.dumps(asdict(key), indent=1) + "\n"
        write_durably(self._file(key.name), text.encode())


def _read(file: Path) -> DeviceKey:
    try:
        return DeviceKey(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SamaraError(f"{file}: damaged: {error}; restore it or create the key anew") from error


def _new_key(taken: Collection[int]) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """A key whose client has none of these indices, and its public half as PEM."""
    while True:
        private = ec.generate_private_key(ec.SECP384R1())
        public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        if client_index_of_key(public) not in taken:
            return private, public


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
