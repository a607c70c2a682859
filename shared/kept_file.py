"""Files that a client keeps: small ones that are replaced whole, and logs that grow by lines.

A kind of file is a class that says its name, its form and the sentence about a damaged one.
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
from samara.shared.files import make_folder, sync_folder, write_durably

log = logging.getLogger("samara.client")

Content = TypeVar("Content")

DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(RecursionError, SamaraError),
)
"""Errors that reading a damaged file may raise."""


class _Kept:
    """A file of one kind; without a folder it keeps nothing.

    Args:
        folder: folder of the file, made when it is written; None if nothing is kept.

    Attributes:
        name: name of the file.
        damaged: sentence about a file that cannot be read, with ``{file}``, ``{problem}`` and the
            remedy, or the consequence if the file is not needed.
        unwritable: sentence about a file that cannot be written.
        error: class of the errors.
    """

    name: ClassVar[str]
    damaged: ClassVar[str]
    unwritable: ClassVar[str] = "{file}: cannot be written: {problem}"
    error: ClassVar[type[SamaraError]] = TrainerError

    def __init__(self, folder: Path | None) -> None:
        self.path: Path | None = folder and folder / self.name

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Make the file's folder, and raise the error of a block that cannot write it."""
        try:
            make_folder(path.parent)
            yield
        except OSError as error:
            raise self.error(self._tell(self.unwritable, error)) from error

    def _tell(self, sentence: str, error: Exception) -> str:
        """Return a sentence about this file and an error."""
        return sentence.format(file=self.path, problem=_describe(error))


class KeptFile(_Kept, Generic[Content]):
    """A small file, which is read whole and replaced whole; without a folder it is always empty.

    Attributes:
        is_needed: whether a damaged file is an error. A file of limits is needed, since an empty
            one would lift them. A file that is not needed is logged, and read as an empty one.
        empty: type of the content, made without arguments, where there is no file.
        style: arguments of `json.dumps`.
    """

    is_needed: ClassVar[bool] = True
    empty: ClassVar[type] = NoneType
    style: ClassVar[Mapping[str, Any]] = {"sort_keys": True, "indent": 1}

    def read(self) -> Content:
        """Return the content, an empty one if there is no file.

        Raises:
            SamaraError: of the class `error`, if the file is needed and cannot be read.
        """
        content: Content = self.empty()
        if self.path is None:
            return content
        try:
            return self._decode(self.path.read_bytes())
        except FileNotFoundError:
            return content
        except DAMAGE as error:
            message = self._tell(self.damaged, error)
            if self.is_needed:
                raise self.error(message) from error
            log.warning("%s", message)
            return content

    def write(self, content: Content) -> None:
        """Replace the content; it is on the disk when this returns.

        Raises:
            SamaraError: of the class `error`, if the file cannot be written.
        """
        if self.path is not None:
            with self._writing(self.path):
                self._put(self.path, self._encode(content))

    def _put(self, path: Path, data: bytes) -> None:
        """Write a whole file, so that a crash leaves the old content or the new one."""
        write_durably(path, data)

    def _encode(self, content: Content) -> bytes:
        """Return a content as the bytes of a file."""
        return json.dumps(self._to_json(content), default=_plain, **self.style).encode()

    def _decode(self, data: bytes) -> Content:
        """Read the bytes of a file. Damaged ones raise an error of `DAMAGE`."""
        return self._parse(json.loads(data))

    def _to_json(self, content: Content) -> Any:
        """Return a content as a JSON value, in which dataclasses are objects and bytes are hex."""
        return content

    def _parse(self, value: Any) -> Content:
        """Read a JSON value. An unfit one raises an error of `DAMAGE`."""
        raise NotImplementedError


class KeptLog(_Kept):
    """A file of lines that one process appends; without a folder it is always empty."""

    damaged = "{file}: cannot be read: {problem}"

    def read_lines(self) -> list[bytes]:
        """Return the lines; half a last one, of a write that goes on or was cut off, is left out.

        Raises:
            SamaraError: of the class `error`, if the file cannot be read.
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
        """Append a line after cutting half a last one off; return the size of the file in bytes.

        The line is on the disk when this returns.

        Raises:
            SamaraError: of the class `error`, if the file cannot be written.
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
        """Replace all lines; a crash leaves the old ones or the new.

        Raises:
            SamaraError: of the class `error`, if the file cannot be written.
        """
        if self.path is not None:
            with self._writing(self.path):
                write_durably(self.path, *(line + b"\n" for line in lines))


def _append_line(file: Path, line: bytes) -> int:
    """Append a line to a file's last whole one; return the size of the file.

    Half a last line is cut off. Its answer has never left.

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
    """Return the problem with a file in words."""
    match error:
        case OSError(strerror=str(reason)):
            return reason
        case KeyError():
            return f"it lacks {error}"
        case ValueError() | SamaraError():
            return str(error)
    return repr(error)
