"""The manifest of a program: its model, layout and shapes, and a self-check."""

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
    """A self-check: a fixed batch with the eager model's results at the zero state.

    Attributes:
        ids: token ids [B][S].
        positions: [B], last token before the label word.
        labels: [B].
        seeds: [q], 64-bit seeds of the directions that are tried and replayed.
        coefficients: [q], int64 with unit 2⁻⁴⁰, of the replayed directions.
        epsilon: ε.
        losses: [2q][B], nats, at the zero state.
        digest: digest (hex) of the state after replaying the coefficients from zero.
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
    """The description of a program, in a JSON file beside it.

    Attributes:
        program_sha256: SHA-256 (hex) of the program's file.
        model_id: model id (hex) of the base model.
        layout: canonical JSON of the adapter's layout.
        layout_hash: hash (hex) of the layout.
        queries: q, directions of a call.
        batch: B, examples of a call.
        sequence: S, tokens of an example.
        replay_seeds: directions of a call of ``replay``.
        words: label words of the task.
        word_tokens: token of each label word.
        quantization: quantization of the linear layers in the blocks.
        delegate: backend of the float part.
        form: ``functional``, or the paper's stateful ``algorithm-1``.
        check: self-check of the program.
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
        """Write the manifest beside the program.

        Raises:
            DeviceError: if the file cannot be written.
        """
        file = manifest_file(program)
        text = json.dumps({"version": MANIFEST_VERSION} | asdict(self), indent=1)
        try:
            write_durably(file, text.encode())
        except OSError as error:
            raise DeviceError(f"{file}: cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, program: Path) -> Self:
        """Read the manifest of a program and check that it belongs to the program's bytes.

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
            raise DeviceError(
                f"{file}: not a manifest: {error}; export the program again"
            ) from error
        if not sound:
            raise DeviceError(f"{file}: its shapes contradict each other; export the program again")
        if hash_program(program) != manifest.program_sha256:
            raise DeviceError(
                f"{program}: not the program that {file.name} describes; copy both files again"
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
    """Return the path of a program's manifest."""
    return program.with_suffix(".json")


def hash_program(program: Path) -> str:
    """Return the SHA-256 of a program's file in hexadecimal.

    Raises:
        DeviceError: if the file cannot be read.
    """
    try:
        with program.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DeviceError(f"{program}: cannot be read: {error.strerror}") from error
