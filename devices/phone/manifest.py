"""The manifest beside a program: what it was made from, its shapes, and how it checks itself."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from shared.errors import DeviceError, SamaraError
from shared.files import write_durably
from shared.layout import Layout

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 16 * 2**20

PhoneQuantization = Literal["none", "int8", "8da4w"]
Delegate = Literal["xnnpack", "portable"]
Form = Literal["functional", "algorithm-1"]


@dataclass(frozen=True)
class SelfCheck:
    """A fixed batch, and what the eager model makes of it at the zero state.

    Attributes:
        ids: token ids [B][S].
        positions: [B], where the label word is read.
        labels: [B].
        seeds: [q], 64-bit, also what the replayed coefficients belong to.
        coefficients: [q], int64 with unit 2⁻⁴⁰.
        epsilon: ε.
        losses: [2q][B], nats, at the zero state.
        digest: hex, of the state after replaying seeds and coefficients once from zero.
    """

    ids: list[list[int]]
    positions: list[int]
    labels: list[int]
    seeds: list[int]
    coefficients: list[int]
    epsilon: float
    losses: list[list[float]]
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What a phone must know of its program.

    Attributes:
        program_sha256: hex, of the program's file.
        model_id: hex, of the base model.
        layout: canonical JSON of the adapter's layout.
        layout_hash: hex.
        queries: q, directions of a call.
        batch: B, rows of a call.
        sequence: S, tokens of a row.
        replay_seeds: directions of a call of ``replay``.
        words: label words of the task.
        word_tokens: the token of each.
        quantization: of the linear layers in the blocks.
        delegate: what runs the float part.
        form: ``functional``, or the paper's stateful ``algorithm-1``.
        check: for the self-check.
    """

    program_sha256: str
    model_id: str
    layout: str
    layout_hash: str
    queries: int
    batch: int
    sequence: int
    replay_seeds: int
    words: list[str]
    word_tokens: list[int]
    quantization: PhoneQuantization
    delegate: Delegate
    form: Form
    check: SelfCheck

    def write(self, program: Path) -> None:
        """Leave it beside the program.

        Raises:
            DeviceError: if the disk refuses.
        """
        file = manifest_file(program)
        text = json.dumps({"version": MANIFEST_VERSION} | asdict(self), indent=1)
        try:
            write_durably(file, text.encode())
        except OSError as error:
            raise DeviceError(f"{file}: cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, program: Path) -> Self:
        """That of a program, whose bytes must be those that it was written for.

        Raises:
            DeviceError: if either file is missing, damaged, or of another version.
        """
        file = manifest_file(program)
        try:
            if file.stat().st_size > MAX_MANIFEST_BYTES:
                raise ValueError(f"larger than {MAX_MANIFEST_BYTES} bytes")
            content: dict[str, Any] = json.loads(file.read_bytes())
            if content.pop("version") != MANIFEST_VERSION:
                raise ValueError("of another version")
            check = SelfCheck(**content.pop("check"))
            manifest = cls(**content, check=check)
            layout = Layout.from_json(manifest.layout)
            sound = (
                manifest._shaped()
                and layout.hash.hex() == manifest.layout_hash
                and len(bytes.fromhex(manifest.model_id)) == 32
            )
        except OSError as error:
            raise DeviceError(f"{file}: cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError, SamaraError) as error:
            raise DeviceError(f"{file}: not a manifest: {error}; export again") from error
        if not sound:
            raise DeviceError(f"{file}: its numbers do not fit each other; export again")
        if hash_program(program) != manifest.program_sha256:
            raise DeviceError(
                f"{program}: not the program that {file.name} describes; copy both again"
            )
        return manifest

    def _shaped(self) -> bool:
        sizes = self.queries, self.batch, self.sequence, self.replay_seeds
        check = self.check
        return (
            all(type(size) is int and size >= 1 for size in sizes)
            and len(self.words) == len(self.word_tokens) >= 2
            and self.quantization in get_args(PhoneQuantization)
            and self.delegate in get_args(Delegate)
            and self.form in get_args(Form)
            and len(check.ids) == len(check.positions) == len(check.labels) == self.batch
            and all(len(row) == self.sequence for row in check.ids)
            and len(check.seeds) == len(check.coefficients) == self.queries
            and len(check.losses) == 2 * self.queries
            and all(len(row) == self.batch for row in check.losses)
        )


def manifest_file(program: Path) -> Path:
    """Where the manifest of a program lies."""
    return program.with_suffix(".json")


def hash_program(program: Path) -> str:
    """SHA-256 of a program's file, hex.

    Raises:
        DeviceError: if it cannot be read.
    """
    try:
        with program.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DeviceError(f"{program}: cannot be read: {error.strerror}") from error
