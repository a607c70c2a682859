"""JSON arrays, read element by element."""

import json
from collections.abc import Iterator
from typing import TextIO

_PIECE = 2**16
_LONGEST_PIECE = 2**26
"""Letters that are read at once; more each time while an element has not ended."""


class ArrayError(Exception):
    """A text that is no array.

    Attributes:
        line: number of the line where it is none.
        what: what is wrong there.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(line, what)
        self.line, self.what = line, what


def array_elements(text: TextIO, begun: str, line: int) -> Iterator[tuple[int, object]]:
    """Yield the elements of an array, each with the number of its first line.

    No more of the text is kept than the element at hand.

    Args:
        text: what follows in the file.
        begun: what was read of it: a line that begins with the array's bracket.
        line: number of that line.

    Raises:
        ArrayError: if the text is no array.
    """
    reader = _ElementReader(text, begun, line)
    reader.skip_letter()
    while (letter := reader.next_letter()) and letter != "]":
        yield reader.line, reader.take_value()
        if (letter := reader.next_letter()) == ",":
            reader.skip_letter()
        elif letter and letter != "]":
            raise ArrayError(reader.line, "is not JSON: a comma is missing between two elements")
    if not letter:
        raise ArrayError(reader.line, "is not JSON: the array does not end with a bracket")
    reader.skip_letter()
    if reader.next_letter():
        raise ArrayError(reader.line, "is not JSON: something follows the end of the array")


class _ElementReader:
    """The text of an array from the element at hand on.

    Attributes:
        line: number of the line that is read.
    """

    def __init__(self, text: TextIO, begun: str, line: int) -> None:
        self._text, self._rest, self.line = text, begun, line
        self._decoder = json.JSONDecoder()

    def next_letter(self) -> str:
        """Return the next letter that is not blank; empty at the end of the text."""
        while True:
            kept = self._rest.lstrip()
            self._advance(len(self._rest) - len(kept))
            if kept or not self._read(_PIECE):
                return kept[:1]

    def skip_letter(self) -> None:
        """Go on behind the next letter that is not blank."""
        self.next_letter()
        self._advance(1)

    def take_value(self) -> object:
        """Return the element that begins here, and go on behind it.

        Raises:
            ArrayError: if it does not end, or is no JSON.
        """
        piece = _PIECE
        while True:
            try:
                value, end = self._decoder.raw_decode(self._rest)
            except (ValueError, RecursionError) as error:
                if not self._read(piece):
                    what = "is not JSON that can be read"
                    if isinstance(error, json.JSONDecodeError):
                        what = "is not JSON, in the element that begins here"
                    raise ArrayError(self.line, f"{what}: {error}") from error
                piece = min(2 * piece, _LONGEST_PIECE)
            else:
                self._advance(end)
                return value

    def _read(self, letters: int) -> bool:
        """Read on; return False at the end of the text."""
        more = self._text.read(letters)
        self._rest += more
        return bool(more)

    def _advance(self, letters: int) -> None:
        self.line += self._rest.count("\n", 0, letters)
        self._rest = self._rest[letters:]
