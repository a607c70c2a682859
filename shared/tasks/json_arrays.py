"""JSON arrays, read element by element."""

import json
from collections.abc import Iterator
from typing import TextIO

_PIECE = 2**16
_LONGEST_PIECE = 2**26
"""Characters that are read at once; more each time while an element has not ended."""


class ArrayError(Exception):
    """Text that is not an array.

    Attributes:
        line: number of the line of the mistake.
        what: the mistake.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(line, what)
        self.line, self.what = line, what


def array_elements(text: TextIO, begun: str, line: int) -> Iterator[tuple[int, object]]:
    """Yield the elements of an array, each with the number of its first line.

    No more of the text is kept than the element at hand.

    Args:
        text: the rest of the file.
        begun: the line already read, which begins with the array's bracket.
        line: number of that line.

    Raises:
        ArrayError: if the text is not an array.
    """
    reader = _ElementReader(text, begun, line)
    reader.skip_character()
    while (character := reader.next_character()) and character != "]":
        yield reader.line, reader.take_value()
        if (character := reader.next_character()) == ",":
            reader.skip_character()
        elif character and character != "]":
            raise ArrayError(reader.line, "is not JSON: a comma is missing between two elements")
    if not character:
        raise ArrayError(reader.line, "is not JSON: the array does not end with a bracket")
    reader.skip_character()
    if reader.next_character():
        raise ArrayError(reader.line, "is not JSON: something follows the end of the array")


class _ElementReader:
    """The text of an array from the element at hand on.

    Attributes:
        line: number of the line that is read.
    """

    def __init__(self, text: TextIO, begun: str, line: int) -> None:
        self._text, self._rest, self.line = text, begun, line
        self._decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """Return the next character that is not blank; empty at the end of the text."""
        while True:
            kept = self._rest.lstrip()
            self._advance(len(self._rest) - len(kept))
            if kept or not self._read(_PIECE):
                return kept[:1]

    def skip_character(self) -> None:
        """Go on behind the next character that is not blank."""
        self.next_character()
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

    def _read(self, characters: int) -> bool:
        """Read on; return False at the end of the text."""
        more = self._text.read(characters)
        self._rest += more
        return bool(more)

    def _advance(self, characters: int) -> None:
        self.line += self._rest.count("\n", 0, characters)
        self._rest = self._rest[characters:]
