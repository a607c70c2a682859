"""The signed scenario: a small file that states an operator's demands on clients.

It has three lines of sorted JSON:

1. the operator's public key and signature
2. the settings that are part of the run id, in exactly the bytes that the run id hashes
3. the settings that name files

The signature covers the second and third line. docs/reference/wire.md describes the format.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from samara.shared.errors import DeviceError, ScenarioError
from samara.shared.protocol.run_id import hash_identity
from samara.shared.protocol.signing import SigningKey, is_signed_by, normalize_public_key
from samara.shared.terms.description import describe_terms
from samara.shared.terms.run_terms import RunTerms

MAX_SCENARIO_BYTES = 2**16
_FORMAT, _VERSION = "samara scenario", 1
SIGNED_KIND = f'"{_FORMAT}"'.encode()
"""Mark of every signed scenario, for `write_requested`."""
_PREFIX = b"samara scenario 1\0"
_LINES = 3


@dataclass(frozen=True)
class SignedScenario:
    """A scenario with a valid signature.

    Attributes:
        operator: public key of the operator, PEM.
        identity: settings that are part of the run id, sorted JSON.
        files: values of the settings that name files, by dotted key: hashes, or words such as
            ``none`` that stand for no file.
        signature: signature of the operator, DER.
    """

    operator: bytes
    identity: bytes
    files: Mapping[str, str]
    signature: bytes

    @classmethod
    def sign(cls, identity: bytes, files: Mapping[str, str], key: SigningKey) -> Self:
        """Create a scenario signed by an operator.

        Args:
            identity: settings that are part of the run id, sorted JSON.
            files: values of the settings that name files, by dotted key.
            key: private key of the operator.
        """
        return cls(key.public, identity, files, key.sign(_signed_bytes(identity, files)))

    def encode(self) -> bytes:
        """Encode the scenario as a file."""
        header = {
            _FORMAT: _VERSION,
            "operator": self.operator.decode(),
            "signature": self.signature.hex(),
        }
        lines = _sorted_json(header), self.identity, _sorted_json(self.files)
        return b"".join(line + b"\n" for line in lines)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a file written by `encode`, and check its signature.

        Raises:
            ScenarioError: if the file is too large, incomplete, not a signed scenario of this
                version, or was changed after the signature.
        """
        if len(data) > MAX_SCENARIO_BYTES:
            raise ScenarioError(
                f"this signed scenario is larger than {MAX_SCENARIO_BYTES} bytes, the most "
                "allowed; get the operator's file again"
            )
        lines = data.split(b"\n")
        if len(lines) != _LINES + 1 or lines.pop():
            raise ScenarioError(
                "not a signed scenario: it does not have three lines; `samara server sign` writes "
                "one"
            )
        header, settings, files = map(_read_object, lines)
        if header.get(_FORMAT) != _VERSION:
            raise ScenarioError("not a signed scenario of this version of Samara")
        if set(header) != {_FORMAT, "operator", "signature"} or not all(
            type(value) is str for key, value in (header | files).items() if key != _FORMAT
        ):
            raise ScenarioError(
                "not a signed scenario: its first or third line has wrong keys or values"
            )
        try:
            operator = normalize_public_key(header["operator"].encode())
            signature = bytes.fromhex(header["signature"])
        except (DeviceError, ValueError) as error:
            raise ScenarioError(f"not a signed scenario: {error}") from error
        if not is_signed_by(operator, signature, _signed_bytes(lines[1], files)):
            raise ScenarioError(
                "the signature is wrong: the file was changed after the operator signed it; copy "
                "the file again"
            )
        RunTerms.of(settings)
        return cls(operator, lines[1], files, signature)

    @property
    def settings(self) -> dict[str, Any]:
        """The signed settings by dotted key."""
        return _read_object(self.identity) | dict(self.files)

    @property
    def terms(self) -> RunTerms:
        """The terms of the run: its demands on a client."""
        return RunTerms.of(self.settings)

    @property
    def name(self) -> str:
        """The scenario's name: the first 16 hex digits of the SHA-256 of the signed bytes."""
        return hashlib.sha256(_signed_bytes(self.identity, self.files)).hexdigest()[:16]

    def run_id(self, layout_hash: bytes, model_id: bytes) -> bytes:
        """Return the id of the scenario's run for a layout and a base model, 8 bytes.

        Args:
            layout_hash: hash of the layout, 32 bytes.
            model_id: hash of the base model, 32 bytes.
        """
        return hash_identity(self.identity, layout_hash, model_id)

    def describe(self) -> list[str]:
        """Return sentences that describe the scenario to the owner of a client's examples."""
        return [
            f"signed by operator {describe_operator(self.operator)}",
            *describe_terms(self.terms),
        ]


def read_scenario(file: Path) -> SignedScenario:
    """Read a file with a signed scenario.

    Raises:
        ScenarioError: if the file cannot be read, or is not a valid signed scenario.
    """
    try:
        with file.open("rb") as opened:
            return SignedScenario.decode(opened.read(MAX_SCENARIO_BYTES + 1))
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read: {error.strerror}") from error
    except ScenarioError as error:
        raise ScenarioError(f"{file}: {error}") from error


def describe_operator(public_key: bytes) -> str:
    """Return a short name of an operator: 16 hex digits of the SHA-256 of the public key (PEM)."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def _signed_bytes(identity: bytes, files: Mapping[str, str]) -> bytes:
    return _PREFIX + identity + b"\n" + _sorted_json(files)


def _sorted_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(values), sort_keys=True).encode()


def _read_object(line: bytes) -> dict[str, Any]:
    """Parse a line of sorted JSON. Its bytes must be the canonical encoding of its values.

    Raises:
        ScenarioError: if the line is anything else.
    """
    try:
        value = json.loads(line)
        if isinstance(value, dict) and _sorted_json(value) == line:
            return value
    except (ValueError, RecursionError):
        pass
    raise ScenarioError("not a signed scenario: a line is not an object of sorted JSON")
