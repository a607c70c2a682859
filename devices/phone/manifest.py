"""The manifest of a program: its model, layout, shapes and self-check."""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from samara.shared.errors import CodeError, DeviceError, SamaraError
from samara.shared.protocol.layout import LABEL_BIAS_GROUP, READOUT_GROUP, Layout
from samara.shared.storage.files import file_hash, write_requested

MANIFEST_VERSION = 5
"""Latest supported version of the manifest.

Version 5 adds adapters inside the model for ONNX Runtime, 4 adds `weights`, 3 adds readouts for
ONNX Runtime, and 2 adds `least_sequence`.
"""
MANIFEST_KIND = b'"program_sha256"'
"""Mark of every manifest, for `write_requested`."""
MAX_MANIFEST_BYTES = 16 * 2**20

Runtime = Literal["executorch", "onnx"]
PhoneQuantization = Literal["none", "float16", "int8", "8da4w", "int4"]
Delegate = Literal["xnnpack", "portable", "none"]
Form = Literal["functional", "algorithm-1"]


@dataclass(frozen=True)
class SelfCheck:
    """A self-check: a fixed batch with the eager model's results at the zero state.

    Attributes:
        ids: token ids [B][S], or [B][C][S] for candidates, padded with −1.
        positions: [B], position of the last token before the label word.
        labels: [B], index of each example's label.
        seeds: [q], 64-bit seeds of the directions to try and to replay.
        coefficients: [q], int64 with unit 2⁻⁴⁰, of the replayed directions.
        epsilon: ε.
        losses: [2q][B], nats, at the zero state.
        digest: digest (hex) of the state after replaying the coefficients from zero.
    """

    ids: list[Any]
    positions: list[int]
    labels: list[int]
    seeds: list[int]
    coefficients: list[int]
    epsilon: float
    losses: list[list[float]]
    digest: str


@dataclass(frozen=True)
class ReadoutDescription:
    """Facts about a readout that a phone needs in addition to the program's outputs.

    Attributes:
        labels: number of labels.
        features: number of features of an example.
        contrasts: orthonormal contrasts between labels [labels − 1][labels], in float32.
        damping: source of the damping, which is part of the program.
        damping_sha256: SHA-256 (hex) of the damping's mean and root as float32; empty for `none`.
    """

    labels: int
    features: int
    contrasts: list[list[float]]
    damping: Literal["none", "random-tokens", "file"]
    damping_sha256: str

    def check(self, layout: Layout, words: int) -> None:
        """Check that the description matches the layout and the number of label words.

        Raises:
            ValueError: if the description does not match, or the contrasts are not orthonormal.
        """
        tensors = [(t.group, t.rows, t.columns) for t in layout.tensors]
        readout = READOUT_GROUP, self.labels - 1, self.features
        bias = LABEL_BIAS_GROUP, self.labels, 1
        if tensors not in ([readout], [readout, bias]) or self.labels != words:
            raise ValueError(
                f"the readout of {self.labels} labels and {self.features} features does not match "
                f"the layout and the {words} label words"
            )
        basis = np.array(self.contrasts, np.float64)
        if basis.shape != (self.labels - 1, self.labels) or not (
            np.allclose(basis @ basis.T, np.eye(self.labels - 1), atol=1e-5)
            and np.allclose(basis.sum(axis=1), 0, atol=1e-5)
        ):
            raise ValueError(
                f"the readout's contrasts are not {self.labels - 1} orthonormal rows with sum 0"
            )
        source = layout.damping.source if layout.damping else None
        digits = 0 if self.damping == "none" else 32
        if self.damping != source or len(bytes.fromhex(self.damping_sha256)) != digits:
            raise ValueError(
                f"the readout's damping {self.damping!r} has no hash, or differs from the "
                f"layout's, {source!r}"
            )


@dataclass(frozen=True)
class WeightsFile:
    """A file of a program's weights.

    Attributes:
        path: name of the file beside the program, as the graph refers to it.
        sha256: SHA-256 (hex) of the content.
        bytes: size of the file.
    """

    path: str
    sha256: str
    bytes: int

    def check(self, program: Path) -> None:
        """Check that the file is unchanged beside the program.

        Raises:
            DeviceError: if the file is missing or has other content.
        """
        file = program.parent / self.path
        if hash_program(file) != self.sha256:
            raise DeviceError(f"{file}: not a file of {program.name}; copy all its files again")


@dataclass(frozen=True)
class Manifest:
    """The description of a program, in a JSON file beside it.

    Attributes:
        program_sha256: SHA-256 (hex) of the program's file.
        model_id: model id (hex) of the base model.
        layout: canonical JSON of the adapter's layout.
        layout_hash: hash (hex) of the layout.
        queries: q, number of directions in a call, or in the self-check of a readout's program.
        batch: B, number of examples in a call.
        sequence: S, maximum tokens of an example; see `least_sequence`.
        replay_seeds: number of directions in a call of ``replay``, or of a readout's
            ``directions``.
        words: label words of the task.
        word_tokens: token of each label word; empty for a sentence encoder or for answers of
            several tokens.
        quantization: quantization of the linear layers in the blocks.
        delegate: backend for the float part; ``none`` for ONNX Runtime, which chooses when loading.
        form: ``functional``, or the paper's stateful ``algorithm-1``.
        check: self-check of the program.
        readout: description of the readout; None for adapters inside the model.
        start: content of the adapter's start file in base64; empty if there is none.
        answer_tokens: maximum tokens of an answer if examples have a sequence per candidate; 0 if
            label words have one token each.
        least_sequence: minimum tokens in a call of ``forward``; 0 if every call has S tokens.
        runtime: runtime of the program: ExecuTorch, or ONNX Runtime, whose programs have only the
            method ``forward``.
        weights: files of weights beside a program for ONNX Runtime.
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
    readout: ReadoutDescription | None = None
    start: str = ""
    answer_tokens: int = 0
    least_sequence: int = 0
    runtime: Runtime = "executorch"
    weights: tuple[WeightsFile, ...] = ()

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of an example's ids: (S,), or (C, S) for candidates."""
        candidates = (len(self.words),) if self.answer_tokens else ()
        return (*candidates, self.sequence)

    def call_length(self, longest: int) -> int:
        """Return the number of tokens in a call, given the longest example's tokens.

        Args:
            longest: tokens of the longest example, at most S.
        """
        return max(longest, self.least_sequence) if self.least_sequence else self.sequence

    def write(self, program: Path) -> None:
        """Write the manifest beside the program.

        Raises:
            SamaraError: if the file cannot be written, or another file is in its place.
        """
        file = manifest_file(program)
        version = max(2 if self.least_sequence else 1, self._version_of_onnx())
        content = {"version": version} | asdict(self)
        content = {key: value for key, value in content.items() if value not in (None, "", 0, ())}
        if version < 3:
            del content["runtime"]
        text = json.dumps(content, indent=1)
        write_requested(file, text.encode(), MANIFEST_KIND)

    @classmethod
    def read(cls, program: Path) -> Self:
        """Read a program's manifest and check that it matches the program's bytes.

        Raises:
            DeviceError: if the program or the manifest is missing, damaged, or of a later version.
        """
        file = manifest_file(program)
        try:
            if file.stat().st_size > MAX_MANIFEST_BYTES:
                raise ValueError(f"larger than {MAX_MANIFEST_BYTES} bytes")
            content: dict[str, Any] = json.loads(file.read_bytes())
            _check_version(content.pop("version"), file)
            check = SelfCheck(**content.pop("check"))
            described = content.pop("readout", None)
            readout = None if described is None else ReadoutDescription(**described)
            weights = tuple(WeightsFile(**one) for one in content.pop("weights", ()))
            manifest = cls(**content, check=check, readout=readout, weights=weights)
            layout = Layout.from_json(manifest.layout)
            if readout is not None:
                readout.check(layout, len(manifest.words))
            elif layout.group(READOUT_GROUP):
                raise ValueError("the layout has a readout without a description")
            manifest.start_values()
            sound = (
                manifest._shaped()
                and layout.hash.hex() == manifest.layout_hash
                and len(bytes.fromhex(manifest.model_id)) == 32
            )
        except OSError as error:
            what = f"{file}: the manifest of {program.name}" if program.exists() else f"{program}:"
            raise DeviceError(f"{what} cannot be read: {error.strerror}") from error
        except CodeError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, SamaraError) as error:
            raise DeviceError(
                f"{file}: this file is not a manifest: {error}; export the program again"
            ) from error
        if not sound:
            raise DeviceError(
                f"{file}: the manifest's shapes contradict each other; export the program again"
            )
        if hash_program(program) != manifest.program_sha256:
            raise DeviceError(
                f"{program}: this is not the program that {file.name} describes; copy both files "
                f"again"
            )
        for one in manifest.weights:
            one.check(program)
        return manifest

    def start_values(self) -> NDArray[np.int64]:
        """Return the adapter's initial weights, int64 [d] in units of a state.

        Raises:
            ValueError: if the initial weights do not match the layout, or their number is wrong.
        """
        layout = Layout.from_json(self.layout)
        data = base64.b64decode(self.start, validate=True)
        if (hashlib.sha256(data).hexdigest() if data else "") != layout.start:
            raise ValueError("the initial weights do not have the layout's hash")
        if not data:
            return np.zeros(layout.size, np.int64)
        try:
            values = load(data)["start"]
        except SafetensorError as error:
            raise ValueError(f"the initial weights cannot be read: {error}") from error
        if values.dtype != np.int64 or values.shape != (layout.size,):
            raise ValueError(
                f"there are {values.size} initial weights, but the layout has {layout.size}"
            )
        return values

    def _version_of_onnx(self) -> int:
        """Return the lowest version for a program of ONNX Runtime; 0 for other programs."""
        if self.runtime != "onnx":
            return 0
        return 5 if self.readout is None else 4 if self.weights else 3

    def _token_counts(self) -> set[int]:
        """Return the valid numbers of label word tokens."""
        if self.answer_tokens:
            return {0}
        return {len(self.words)} | ({0} if self.readout else set())

    def _takes_shorter_calls(self) -> bool:
        """Return whether `least_sequence` is a valid minimum for the calls of a readout."""
        is_readout = self.readout is not None
        return is_readout and self.answer_tokens + 2 <= self.least_sequence < self.sequence

    def _shaped(self) -> bool:
        sizes = self.queries, self.batch, self.sequence, self.replay_seeds
        check = self.check
        return (
            all(type(size) is int and size >= 1 for size in sizes)
            and len(self.words) >= 2
            and len(self.word_tokens) in self._token_counts()
            and type(self.answer_tokens) is int
            and 0 <= self.answer_tokens <= self.sequence - 2
            and type(self.least_sequence) is int
            and (self.least_sequence == 0 or self._takes_shorter_calls())
            and self.quantization in get_args(PhoneQuantization)
            and self.delegate in get_args(Delegate)
            and self.form in get_args(Form)
            and self.runtime in get_args(Runtime)
            and (self.runtime == "onnx") == (self.delegate == "none")
            and all(_is_file_name(one.path) for one in self.weights)
            and (self.runtime == "onnx" or not self.weights)
            and len(check.positions) == len(check.labels) == self.batch
            and np.array(check.ids).shape == (self.batch, *self.row_shape)
            and len(check.seeds) == len(check.coefficients) == self.queries
            and len(check.losses) == 2 * self.queries
            and all(len(row) == self.batch for row in check.losses)
        )


def _is_file_name(path: object) -> bool:
    """Return whether a path is a plain file name, without folders."""
    return isinstance(path, str) and path not in ("", "..") and Path(path).name == path


def _check_version(version: object, file: Path) -> None:
    """Check that a manifest's version is supported.

    Raises:
        CodeError: if the version is later than the supported versions.
        ValueError: if the version is invalid.
    """
    if type(version) is not int or version < 1:
        raise ValueError(f"of version {version!r}")
    if version > MANIFEST_VERSION:
        raise CodeError(
            f"{file}: the manifest has version {version}, but this phone's Samara is too old and "
            f"reads up to version {MANIFEST_VERSION}; update Samara here, or export the program "
            f"with this version"
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
        return file_hash(program).hex()
    except OSError as error:
        raise DeviceError(f"{program}: cannot be read: {error.strerror}") from error
