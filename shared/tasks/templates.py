"""Templates: text with fields of a row in braces, which may go by several names."""

import string
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

Pieces = tuple[tuple[str, str | None], ...]
"""Literal texts, each with the field that follows it, or None."""


@lru_cache
def pieces_of(template: str) -> Pieces:
    """Cut a template into its pieces.

    Raises:
        ValueError: if braces are not closed, or hold something else than a field.
    """
    pieces: list[tuple[str, str | None]] = []
    for literal, field, form, conversion in string.Formatter().parse(template):
        if field is not None:
            if form or conversion or not field:
                raise ValueError(
                    "braces hold a field's name and nothing else; write {{ for a brace"
                )
            names_of(field)
        pieces.append((literal, field))
    return tuple(pieces)


@lru_cache
def fields_of(*templates: str) -> Mapping[str, tuple[str, ...]]:
    """The fields of templates in order of appearance, and the names of each; not to be changed."""
    found: dict[str, tuple[str, ...]] = {}
    for template in templates:
        for _, field in pieces_of(template):
            if field is not None:
                names = names_of(field)
                found.setdefault(names[0], names)
    return MappingProxyType(found)


def around(template: str, place: str) -> tuple[Pieces, Pieces]:
    """The pieces before and behind a field that is there once."""
    pieces = pieces_of(template)
    index = [field for _, field in pieces].index(place)
    return (*pieces[:index], (pieces[index][0], None)), pieces[index + 1 :]


@lru_cache
def names_of(field: str) -> tuple[str, ...]:
    """The names of a field: ``text|sentence`` is called text, and sentence where a row lacks text.

    Raises:
        ValueError: if one of them is empty.
    """
    names = tuple(field.split("|"))
    if "" in names:
        raise ValueError(f"names the field {field!r}; write for example text, or text|sentence")
    return names
