"""Templates: texts with fields of a row in braces. A field may have alternative names."""

import string
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

TemplatePieces = tuple[tuple[str, str | None], ...]
"""Pieces of a template: each has a literal text and the field after it, or None at the end."""


@lru_cache
def parse_template(template: str) -> TemplatePieces:
    """Split a template into literal texts and fields.

    Raises:
        ValueError: if braces are not closed, or contain anything but the name of a field.
    """
    pieces: list[tuple[str, str | None]] = []
    for literal, field, form, conversion in string.Formatter().parse(template):
        if field is not None:
            if form or conversion or not field:
                raise ValueError(
                    "braces must contain a field's name and nothing else; write {{ for a brace"
                )
            field_names(field)
        pieces.append((literal, field))
    return tuple(pieces)


@lru_cache
def template_fields(*templates: str) -> Mapping[str, tuple[str, ...]]:
    """Return the fields of templates in order of appearance, with all names of each field."""
    fields: dict[str, tuple[str, ...]] = {}
    for template in templates:
        for _, field in parse_template(template):
            if field is not None:
                names = field_names(field)
                fields.setdefault(names[0], names)
    return MappingProxyType(fields)


def split_at_field(template: str, name: str) -> tuple[TemplatePieces, TemplatePieces]:
    """Return the pieces before and after a field that occurs once."""
    pieces = parse_template(template)
    index = [field for _, field in pieces].index(name)
    return (*pieces[:index], (pieces[index][0], None)), pieces[index + 1 :]


@lru_cache
def field_names(field: str) -> tuple[str, ...]:
    """Return the names of a field. ``text|sentence`` means text, or sentence if text is absent.

    Raises:
        ValueError: if a name is empty.
    """
    names = tuple(field.split("|"))
    if "" in names:
        raise ValueError(
            f"contains the field {field!r} with an empty name; write for example text, or "
            "text|sentence"
        )
    return names
