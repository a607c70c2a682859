"""Base classes of the files that hold a client's state: small files, and append-only logs.

A small file is replaced as a whole. A subclass defines a file's name, format and error messages.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar

from samara.shared.errors import SamaraError, TrainerError
from samara.shared.storage.files import make_folder, sync_folder, write_durably

log = logging.getLogger("samara.client")

Content = TypeVar("Content")

DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(RecursionError, SamaraError),
)
"""Errors that reading a damaged file can raise."""


class _Kept:
    """Common base of small files and logs; without a folder nothing is read or written.

    Args:
        folder: folder of the file, created with the first write; None to write nothing.

    Attributes:
        name: name of the file.
        damaged: message for an unreadable file, with ``{file}`` and ``{problem}``. It ends with the
            remedy or, for a file that is not needed, with the consequence.
        unwritable: message for a file that cannot be written.
        error: class of the raised errors.
    """

    name: ClassVar[str]
    damaged: ClassVar[str]
    unwritable: ClassVar[str] = "{file}: cannot be written: {problem}"
    error: ClassVar[type[SamaraError]] = TrainerError

    def __init__(self, folder: Path | None) -> None:
        self.path: Path | None = folder and folder / self.name

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Create the file's folder, and report an OSError of the block as `unwritable`."""
        try:
            make_folder(path.parent)
            yield
        except OSError as error:
            raise self.error(self._tell(self.unwritable, error)) from error

    def _tell(self, sentence: str, error: Exception) -> str:
        """Return a message with the file's path and the error filled in."""
        return sentence.format(file=self.path, problem=_describe(error))


class KeptFile(_Kept, Generic[Content]):
    """A small file, read and replaced as a whole; without a folder it is always empty.

    Attributes:
        is_needed: whether a damaged file is an error. Otherwise the damage is logged, and the
            content is empty. A file of limits is needed, because an empty one would lift the
            limits.
        empty: type of the content; a call without arguments makes the content for a missing file.
        style: arguments of `json.dumps`.
    """

    is_needed: ClassVar[bool] = True
    empty: ClassVar[type] = NoneType
    style: ClassVar[Mapping[str, Any]] = {"sort_keys": True, "indent": 1}

    def read(self) -> Content:
        """Return the content; empty if there is no file.

        Raises:
            SamaraError: if the file is needed and cannot be read; its class is `error`.
        """
        content: Content = self.empty()
        if self.path is None:
            return content
        try:
            return self._decode(self.path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return content
        except DAMAGE as error:
            message = self._tell(self.damaged, error)
            if self.is_needed:
                raise self.error(message) from error
            log.warning("%s", message)
            return content

    def write(self, content: Content) -> None:
        """Replace the content durably.

        Raises:
            SamaraError: if the file cannot be written; its class is `error`.
        """
        if self.path is not None:
            with self._writing(self.path):
                self._put(self.path, self._encode(content))

    def _put(self, path: Path, data: bytes) -> None:
        """Write a whole file; a crash leaves the old or the new content."""
        write_durably(path, data)

    def _encode(self, content: Content) -> bytes:
        """Encode the file's content as bytes."""
        return json.dumps(self._to_json(content), default=_plain, **self.style).encode()

    def _decode(self, data: bytes) -> Content:
        """Decode the file's bytes; damaged bytes raise an error of a type in `DAMAGE`."""
        return self._parse(json.loads(data))

    def _to_json(self, content: Content) -> Any:
        """Convert the file's content to JSON; dataclasses become objects and bytes become hex."""
        return content

    def _parse(self, value: Any) -> Content:
        """Convert a JSON value to the file's content; wrong values raise an error in `DAMAGE`."""
        raise NotImplementedError


class KeptLog(_Kept):
    """An append-only file of lines with one writer; without a folder it is always empty."""

    damaged = "{file}: cannot be read: {problem}"

    def read_lines(self) -> list[bytes]:
        """Return the whole lines; an incomplete last line is ignored.

        Raises:
            SamaraError: if the file cannot be read; its class is `error`.
        """
        if self.path is None:
            return []
        try:
            return self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self.error(self._tell(self.damaged, error)) from error

    def append(self, line: bytes) -> int:
        """Append a line durably after the last whole line; return the file's size in bytes.

        Raises:
            SamaraError: if the file cannot be written; its class is `error`.
        """
        if self.path is None:
            return 0
        with self._writing(self.path):
            is_new = not self.path.exists()
            size = _append_line(self.path, line)
            if is_new:
                sync_folder(self.path.parent)
        return size

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace all lines; a crash leaves the old or the new lines.

        Raises:
            SamaraError: if the file cannot be written; its class is `error`.
        """
        if self.path is not None:
            with self._writing(self.path):
                write_durably(self.path, *(line + b"\n" for line in lines))


def _append_line(file: Path, line: bytes) -> int:
    """Append a line after the last whole line; return the size of the file.

    An incomplete last line is cut off. It is safe to lose, because the client had not yet sent the
    answer that the line records.

    Raises:
        OSError: if reading or writing fails.
    """
    with file.open("a+b") as lines:
        size = lines.tell()
        if size and os.pread(lines.fileno(), 1, size - 1) != b"\n":
            whole = file.read_bytes().rfind(b"\n") + 1
            log.warning("%s: the last line is not whole; %d bytes are cut off", file, size - whole)
            lines.truncate(whole)
        lines.write(line + b"\n")
        lines.flush()
        os.fsync(lines.fileno())
        return lines.tell()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else asdict(value)


def _describe(error: Exception) -> str:
    """Describe an error of reading or writing a file."""
    match error:
        case OSError(strerror=str(reason)):
            return reason
        case KeyError():
            return f"it lacks {error}"
        case ValueError() | SamaraError():
            return str(error)
    return repr(error)
