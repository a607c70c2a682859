"""JSON arrays, read element by element."""

import json
from collections.abc import Iterator
from typing import TextIO

_PIECE = 2**16
_LONGEST_PIECE = 2**26
"""Largest number of characters in one read. Reads grow to it while an element is incomplete."""


class ArrayError(Exception):
    """A text is not a JSON array.

    Attributes:
        line: line number of the mistake.
        what: description of the mistake.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(line, what)
        self.line, self.what = line, what


def array_elements(text: TextIO, begun: str, line: int) -> Iterator[tuple[int, object]]:
    """Yield the elements of an array, each with the number of its first line.

    Only the current element's text is kept in memory.

    Args:
        text: the rest of the file.
        begun: first line of the array, which the caller has read; it begins with a bracket.
        line: line number of `begun`.

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
        raise ArrayError(reader.line, "is not JSON: there is text after the end of the array")


class _ElementReader:
    """A reader of an array's elements, one after another.

    Attributes:
        line: number of the current line.
    """

    def __init__(self, text: TextIO, begun: str, line: int) -> None:
        self._text, self._rest, self.line = text, begun, line
        self._decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """Return the next character that is not blank, or an empty text at the end."""
        while True:
            kept = self._rest.lstrip()
            self._advance(len(self._rest) - len(kept))
            if kept or not self._read(_PIECE):
                return kept[:1]

    def skip_character(self) -> None:
        """Skip the next non-blank character."""
        self.next_character()
        self._advance(1)

    def take_value(self) -> object:
        """Return the element at the current position, and move past it.

        Raises:
            ArrayError: if the element does not end, or is not JSON.
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
        """Read more text. Return False at the end of the text."""
        more = self._text.read(characters)
        self._rest += more
        return bool(more)

    def _advance(self, characters: int) -> None:
        self.line += self._rest.count("\n", 0, characters)
        self._rest = self._rest[characters:]
