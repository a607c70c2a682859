"""The index of a program for browsers: its files, the task, and the tokenization of texts.

The index is a file beside the program; docs/reference/wire.md defines its format. A page server
serves the listed files by their hashes, so that a browser can cache them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samara.devices.phone.manifest import manifest_file
from samara.shared.errors import DeviceError
from samara.shared.storage.files import write_durably

PROGRAM_PATH = "/program"
INDEX_PATH = f"{PROGRAM_PATH}/index.json"
TOKENIZER_FOLDER = ".tokenizer"
"""Suffix of a program's folder of tokenizer files."""

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ListedFile(_Strict):
    """A file identified by its SHA-256 (64 hex digits), with its size in bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class ListedWeights(ListedFile):
    """A shard of the weights; ``path`` is the name by which the graph refers to it."""

    path: _Name


class Tokenization(_Strict):
    """The rule that turns the text of an example into tokens.

    Attributes:
        special: whether the tokenizer adds its special tokens.
        before: token ids before the example's text. In a chat, a string. White space around the
            example's text is then removed.
        after: text after the example's text.
        limit: maximum tokens of the example's text, without special tokens.
        answers: tokens of each label word if any has several; otherwise empty.
    """

    special: bool
    before: list[int] | str
    after: str
    limit: int = Field(ge=1)
    answers: list[list[int]]


class ProgramIndex(_Strict):
    """The index of a program.

    Attributes:
        version: version of the format.
        manifest: manifest of the program.
        graph: ONNX graph.
        weights: shards of the graph's weights.
        tokenizer: files of the tokenizer, by name.
        task: content of the task, plus ``fields``, the fields of a row that its text uses.
        tokenization: rule for tokenizing a text.
        examples: rows with their expected token ids and position.
    """

    version: Literal[1]
    manifest: ListedFile
    graph: ListedFile
    weights: list[ListedWeights]
    tokenizer: dict[_Name, ListedFile]
    task: dict[str, Any]
    tokenization: Tokenization
    examples: list[dict[str, Any]]

    def write(self, program: Path) -> None:
        """Write the index beside its program.

        Raises:
            OSError: if the index cannot be written.
        """
        write_durably(index_file(program), self.model_dump_json(indent=1).encode())

    @classmethod
    def read(cls, program: Path) -> Self:
        """Read the index of a program.

        Raises:
            DeviceError: if the index is missing or damaged.
        """
        file = index_file(program)
        try:
            return cls.model_validate_json(file.read_bytes())
        except FileNotFoundError as error:
            raise DeviceError(
                f"{program}: this is not a program for browsers, because {file.name} is missing "
                f"beside it; export a program with `samara phone export --runtime onnx`"
            ) from error
        except OSError as error:
            raise DeviceError(
                f"{file}: the index cannot be read: {error.strerror}; copy the file again"
            ) from error
        except ValidationError as error:
            raise DeviceError(
                f"{file}: this is not the index of a program: {error.errors()[0]['msg']}; export "
                f"the program again"
            ) from error

    def files(self, program: Path) -> list[tuple[Path, str]]:
        """Return the files of the index beside its program, each with its SHA-256."""
        folder = program.parent
        tokenizer = tokenizer_folder(program)
        return [
            (manifest_file(program), self.manifest.sha256),
            (program, self.graph.sha256),
            *((folder / shard.path, shard.sha256) for shard in self.weights),
            *((tokenizer / name, file.sha256) for name, file in self.tokenizer.items()),
        ]


def index_file(program: Path) -> Path:
    """Return the path of a program's index."""
    return program.with_suffix(".index.json")


def tokenizer_folder(program: Path) -> Path:
    """Return the folder of a program's tokenizer files."""
    return program.with_suffix(TOKENIZER_FOLDER)
