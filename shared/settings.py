"""Settings in general: sections of dotted, hyphenated keys, and every mistake at once."""

import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
)

from shared.errors import ConfigError

Scalar = bool | int | float | str


def _number_as_text(value: object) -> object:
    """``--set adapter.layers=3`` means the text 3."""
    return str(value) if type(value) in (int, float) else value


Text = Annotated[str, BeforeValidator(_number_as_text)]


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


class Section(BaseModel):
    """Settings that belong together; keys are hyphenated, nothing unknown is taken."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=_hyphenated,
        validate_by_alias=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


class Settings(Section):
    """Sections of settings as a whole; every setting has a default."""

    def flat(self) -> dict[str, Scalar]:
        """All settings by dotted key, as Flower's run config holds them."""
        return flattened(self.model_dump(by_alias=True))

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate settings, nested or dotted.

        Args:
            settings: from a TOML file, ``--set`` or Flower.
            source: named in the error.

        Raises:
            ConfigError: listing every mistake.
        """
        try:
            return cls.model_validate(nest(flattened(settings)))
        except ValidationError as error:
            raise ConfigError(explain(error, source, list(cls().flat()))) from error


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key; those that are dotted already stay as they are."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of settings that are given by dotted keys; the inverse of `flattened`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place[last] = value
    return nested


def explain(error: ValidationError, source: str, known: list[str]) -> str:
    """Every mistake that pydantic found, one a line.

    Args:
        error: from validating a `Section`.
        source: of the settings, named first.
        known: keys that an unknown one may have been meant for.
    """
    lines = []
    for mistake in error.errors():
        key = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            lines.append(f"{key}: there is no such setting{_nearest(key, known)}")
        elif not key:
            lines += mistake["msg"].removeprefix("Value error, ").splitlines()
        else:
            lines.append(f"{key}: {mistake['msg']} (got {mistake['input']!r})")
    head = f"{source}: {len(lines)} mistake{'s' * (len(lines) != 1)} in the settings"
    return "\n  ".join([head, *lines])


def _nearest(key: str, known: list[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(key, known, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def parse_assignment(assignment: str) -> tuple[str, Scalar]:
    """Read ``key=value`` as given to ``--set``; the value is TOML, or else a plain string.

    Raises:
        ConfigError: if there is no ``=`` or no key.
    """
    key, separator, text = assignment.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {assignment}: write it as key=value, e.g. --set rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return key.strip(), value if isinstance(value, bool | int | float | str) else text
