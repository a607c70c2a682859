"""The settings framework: base classes of sections, and the declaration of settings.

A setting is declared once, by `setting`, with its default, help text, owner and more (`Setting`).
Documentation, checks and the run id are derived from the declaration.
"""

import json
import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from samara.shared.errors import ConfigError
from samara.shared.extensions import Kind, names, stored_name
from samara.shared.terms.values import MOST_WHOLE, TERMS

log = logging.getLogger(__name__)

SETTINGS_FILE = "settings.json"
"""File in a run's folder with the run's recorded settings."""

Scalar = bool | int | float | str
Owner = Literal["server", "device", "either"]
"""Side that decides a setting. ``either`` means the device's owner if they set it, otherwise the
server."""


def _number_as_text(value: object) -> object:
    """Convert a number to text, because ``--set adapter.layers=3`` means the text 3."""
    return str(value) if type(value) in (int, float) else value


Text = Annotated[str, BeforeValidator(_number_as_text)]


def choice(kind: Kind, built_in: Sequence[str]) -> PlainValidator:
    """Return a validator that accepts built-in values and names of registered or installed code.

    Args:
        kind: kind of the registered or installed code.
        built_in: built-in values.
    """

    def check(value: object) -> str:
        if isinstance(value, str):
            if value in built_in:
                return value
            if (stored := stored_name(kind, value)) is not None:
                return stored
        known = " or ".join(map(repr, [*built_in, *names(kind)]))
        raise PydanticCustomError("choice", f"Input should be {known}")

    return PlainValidator(check)


@dataclass(frozen=True)
class Setting:
    """The description of one setting.

    Attributes:
        key: dotted key, ``cohort.weight-cap``.
        default: default value; None if the setting is required.
        help: description for users.
        identity: whether the value is part of the run id.
        repetition: whether runs that differ only in this setting count as repetitions of one run.
        owner: side that decides the setting. A live device keeps its own value if its owner decides
            the setting, or if ``either`` side may decide and its owner has set a value.
        read_by: methods that use the value; empty for all.
        page: page and anchor under docs/ with details; may be empty.
        former: key under which earlier versions stored the setting; may be empty.
        blob: whether the value names a file that clients need (`samara.shared.settings.blobs`).
        words: keywords that a `blob` setting accepts instead of a file.
        before: value that describes the behaviour of versions without this setting; None if there
            are no such versions. This value is left out of the run id, so that runs of those
            versions keep their id.
        apart: reason why this setting of `samara tune` has another default, range or meaning than
            the setting of a run with the same key; empty if there is no difference or no such
            setting.
        retired: sentence that tells users how the value of a retired setting is now found; empty
            for other settings. A recorded run keeps its value, but a new run must not set one.
    """

    key: str
    default: object
    help: str
    identity: bool
    repetition: bool
    owner: Owner
    read_by: tuple[str, ...]
    page: str
    former: str
    blob: bool
    words: tuple[str, ...]
    before: Scalar | None
    apart: str
    retired: str

    @property
    def makes_a_variant(self) -> bool:
        """Return whether runs that differ in this setting are compared and not averaged."""
        return (self.identity or self.blob) and not self.repetition

    def is_read_by(self, method: str) -> bool:
        """Return whether a method uses the value."""
        return not self.read_by or method in self.read_by


def setting(
    default: Any,
    help: str,
    *,
    identity: bool = True,
    repetition: bool = False,
    owner: Owner = "server",
    read_by: tuple[str, ...] = (),
    page: str = "",
    former: str = "",
    blob: bool = False,
    words: tuple[str, ...] = (),
    before: Scalar | None = None,
    apart: str = "",
    retired: str = "",
    **constraints: Any,
) -> Any:
    """Declare a setting as a field of a `Section`; see also `Setting`.

    Args:
        default: default value; ``...`` makes the setting required.
        help: description for users; the documentation's tables show it.
        identity: whether the value is part of the run id. True for settings on which a run's
            results depend; false for locations and for settings that only affect speed.
        repetition: see `Setting`.
        owner: see `Setting`. The owner of a section applies to all settings in it.
        read_by: see `Setting`.
        page: see `Setting`.
        former: see `Setting`.
        blob: see `Setting`. The layout's hash must cover the file's content, because the value, a
            path or a hash, is not part of the run id.
        words: see `Setting`.
        before: see `Setting`.
        apart: see `Setting`.
        retired: see `Setting`.
        constraints: arguments of pydantic's ``Field``, such as ``ge``.
    """
    about: dict[str, Any] = {
        "identity": identity and not blob,
        "repetition": repetition,
        "owner": owner,
        "read_by": read_by,
        "page": page,
        "former": former,
        "blob": blob,
        "words": words,
        "before": before,
        "apart": apart,
        "retired": retired,
    }
    return Field(default, description=help, json_schema_extra=about, **constraints)


def term(key: str, help: str, default: Any = None, least: float | None = None, **about: Any) -> Any:
    """Declare a setting that is a term of the run; `TERMS` holds its range and usually its default.

    Args:
        key: dotted key in `TERMS`.
        help: description for users.
        default: default value, for a term without a default in `TERMS`.
        least: least value of the setting if it is below the term's range; it marks the term as
            open.
        about: further arguments of `setting`.
    """
    own = TERMS[key]
    default = own.default if default is None else default
    if own.pattern:
        about["pattern"] = own.pattern
    if type(default) in (int, float):
        begin = own.least if least is None else least
        about["gt" if own.above else "ge"] = begin
        if isinstance(default, int) or own.most is not None:
            about["le"] = MOST_WHOLE if own.most is None else own.most
    return setting(default, help, **about)


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


class Fixed(NamedTuple):
    """A former setting whose value is now fixed.

    Attributes:
        value: the fixed value.
        identity: whether the value is part of the run id, so that runs of earlier versions keep
            their id.
        instead: sentence for users about the replacement of a setting that changed no result. With
            it, other values are ignored with a warning. Without it, other values are refused.
    """

    value: Scalar
    identity: bool = True
    instead: str = ""


class Section(BaseModel):
    """A group of settings; keys are hyphenated, and unknown keys are refused.

    Attributes:
        fixed: former settings of this section whose values are now fixed, by key. Stored settings
            may still contain them.
    """

    fixed: ClassVar[Mapping[str, Fixed]] = {}

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=_hyphenated,
        validate_by_alias=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    def with_owners_values(self, other: Self, owner: Owner) -> Self:
        """Return these settings, with values from `other` for the settings that `owner` decides.

        A setting with the owner ``either`` also gets its value from `other` if `other` sets it. The
        result is not validated, because each side has validated its own settings.
        """
        changes: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            own = getattr(self, name)
            others = getattr(other, name)
            decides = _about(info)["owner"]
            if decides == owner or (decides == "either" and name in other.model_fields_set):
                changes[name] = others
            elif isinstance(own, Section):
                changes[name] = own.with_owners_values(others, owner)
        return self.model_copy(update=changes)

    def with_values(self, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Return a copy with new values, given by dotted key, without validation."""
        changes: dict[str, Any] = {}
        for name in type(self).model_fields:
            own = getattr(self, name)
            key = prefix + _hyphenated(name)
            if isinstance(own, Section):
                changes[name] = own.with_values(values, f"{key}.")
            elif key in values:
                changes[name] = values[key]
        return self.model_copy(update=changes)


class Settings(Section):
    """A complete set of sections; every setting has a default."""

    def flat(self) -> dict[str, Scalar]:
        """Return all settings by dotted key, the form of Flower's run config."""
        return flattened(self.model_dump(by_alias=True))

    @classmethod
    def given(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate a user's settings as `of` does, and refuse retired settings.

        A run in the folder ``out`` may keep a retired setting that it has recorded.

        Raises:
            ConfigError: if a setting is retired or wrong. The error lists every mistake.
        """
        flat = flattened(settings)
        out = flat.get("out")
        recorded = cls.recorded(Path(out)) if isinstance(out, str) and out else {}
        refuse_retired(cls, flat, recorded, source)
        return cls.of(flat, source)

    @staticmethod
    def recorded(folder: Path) -> Mapping[str, Any]:
        """Return the recorded settings of the run in a folder; empty without a run."""
        return read_recorded(folder / SETTINGS_FILE)

    def identity(self) -> dict[str, Scalar]:
        """Return the settings that are part of a run's identity, by dotted key."""
        described = describe(type(self))
        fixed = {key: one.value for key, one in fixed_in(type(self)).items() if one.identity}
        return fixed | {
            key: value
            for key, value in self.flat().items()
            if described[key].identity and value != described[key].before
        }

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate settings, nested or dotted; former keys are accepted, with a warning.

        Args:
            settings: settings from a TOML file, ``--set`` or Flower.
            source: origin of the settings, named in the error.

        Raises:
            ConfigError: listing every mistake.
        """
        given = flattened(settings)
        for former, key in former_keys(cls).items():
            if former in given and key not in given:
                _warn_of_former_key(former, key)
        try:
            return cls.model_validate(nest(with_current_names(cls, given)))
        except ValidationError as error:
            raise ConfigError(explain(error, source, list(describe(cls)), cls)) from error


@cache
def describe(section: type[Section]) -> Mapping[str, Setting]:
    """Return the descriptions of all settings of a section and its subsections, by dotted key."""
    return {setting.key: setting for setting in _described(section, "", None)}


def _described(section: type[Section], prefix: str, owner: Owner | None) -> list[Setting]:
    described = []
    for name, info in section.model_fields.items():
        key = prefix + _hyphenated(name)
        kind = info.annotation
        about = _about(info)
        if isinstance(kind, type) and issubclass(kind, Section):
            inherited = "device" if about["owner"] == "device" else owner
            described += _described(kind, f"{key}.", inherited)
        else:
            default = None if info.is_required() else info.default
            about |= {"owner": owner or about["owner"]}
            described.append(
                Setting(key=key, default=default, help=info.description or "", **about)
            )
    return described


def _about(info: FieldInfo) -> dict[str, Any]:
    extra = info.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {"owner": "server"}


@cache
def former_keys(section: type[Section]) -> Mapping[str, str]:
    """Map former keys of settings to their present keys."""
    return {s.former: key for key, s in describe(section).items() if s.former}


@cache
def fixed_in(section: type[Section], prefix: str = "") -> Mapping[str, Fixed]:
    """Return the `Section.fixed` settings of a section and its subsections, by dotted key."""
    fixed = {prefix + key: one for key, one in section.fixed.items()}
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            fixed |= fixed_in(kind, f"{prefix}{_hyphenated(name)}.")
    return fixed


def read_recorded(file: Path) -> Mapping[str, Any]:
    """Read a JSON object from a file; empty if the file is missing."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@cache
def _warn_of_unread_key(key: str, instead: str) -> None:
    log.warning("%s: is no longer a setting and is ignored: %s", key, instead)


@cache
def _warn_of_former_key(former: str, key: str) -> None:
    log.warning("%s: this setting is called %s now; the old name still works", former, key)


def with_current_names(section: type[Section], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Rename former keys to present keys, and drop settings whose value is now fixed.

    Two kinds of keys stay, so that validation refuses them: former keys beside their present key,
    and `Fixed` settings without a replacement whose value is not the fixed one.
    """
    former = former_keys(section)
    fixed = fixed_in(section)
    named = {
        former[key] if key in former and former[key] not in flat else key: value
        for key, value in flat.items()
    }
    others = {k: v for k, v in named.items() if k in fixed and not _is_same(v, fixed[k].value)}
    for key in [key for key in others if fixed[key].instead]:
        _warn_of_unread_key(key, fixed[key].instead)
        del others[key]
    return {k: v for k, v in named.items() if k not in fixed} | others


def refuse_retired(
    section: type[Section], given: Mapping[str, Any], recorded: Mapping[str, Any], source: str
) -> None:
    """Check that no retired setting has a value that the run has not recorded.

    Args:
        section: section that declares the settings.
        given: settings by dotted key.
        recorded: recorded settings of the run; empty for a new run.
        source: origin of the settings, named in the error.

    Raises:
        ConfigError: naming each retired setting and the source of its value now.
    """
    mistakes = [
        f"{key}: is no longer a setting of new runs: {setting.retired}; leave it out"
        for key, setting in describe(section).items()
        if setting.retired
        and not _is_same(given.get(key, setting.default), setting.default)
        and given[key] != recorded.get(key)
    ]
    if mistakes:
        head = f"{source}: {len(mistakes)} mistake{'s' * (len(mistakes) != 1)} in the settings"
        goes_on = (
            "to continue a run that was begun with such a setting, set out to the run's folder"
        )
        raise ConfigError("\n  ".join([head, *mistakes, goes_on]))


def unknown_keys(section: type[Section], flat: Mapping[str, Any]) -> list[str]:
    """Return the keys that no version of this section knows."""
    known = describe(section).keys() | fixed_in(section).keys() | former_keys(section).keys()
    return sorted(flat.keys() - known)


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def with_current_keys(section: type[Section], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings stored by an earlier version to this version.

    Former keys become present keys. Missing settings get the value that describes the behaviour of
    the earlier version (`Setting.before`).
    """
    before = {key: s.before for key, s in describe(section).items() if s.before is not None}
    return before | with_current_names(section, flat)


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested tables to settings by dotted key; dotted keys stay unchanged."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings by dotted key to nested tables; the inverse of `flattened`.

    A key below another setting, such as ``rounds.x`` beside ``rounds``, stays dotted.
    """
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(".")
        table: Any = nested
        for section in sections:
            table = table.setdefault(section, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[last] = value
        else:
            nested[key] = value
    return nested


def explain(
    error: ValidationError, source: str, known: list[str], section: type[Section] = Section
) -> str:
    """Describe every mistake that pydantic found, one per line.

    Args:
        error: error from the validation of settings.
        source: origin of the settings; the message begins with it.
        known: keys that can be suggested in place of an unknown key.
        section: section whose former keys and fixed values get their own explanations.
    """
    mistakes = []
    unions: dict[tuple[str, str], list[str]] = {}
    former = former_keys(section)
    fixed = fixed_in(section)
    settings = describe(section)
    for mistake in error.errors():
        key = ".".join(str(part) for part in mistake["loc"])
        of_union = ".".join(str(part) for part in mistake["loc"][:-1])
        if mistake["type"] == "extra_forbidden":
            given = mistake["input"]
            within = flattened(given) if isinstance(given, dict) else {}
            for unknown in [f"{key}.{name}" for name in within] or [key]:
                if unknown in settings:  # its section has a single value, which is the mistake
                    continue
                if unknown in fixed:
                    hint = f" any more; its value is always {fixed[unknown].value}; leave it out"
                elif unknown in former:
                    hint = f"; it is now called {former[unknown]}, which is also given"
                else:
                    hint = _nearest(unknown, known)
                mistakes.append(f"{unknown}: there is no such setting{hint}")
        elif not key:
            mistakes += mistake["msg"].removeprefix("Value error, ").splitlines()
        elif mistake["type"] == "string_pattern_mismatch" and key in settings:
            values, *_ = settings[key].help.split(". ")
            mistakes.append(f"{key}: {mistake['input']!r} is not a value of this setting: {values}")
        elif of_union in settings:  # a setting of several types has a mistake for each type
            wanted = mistake["msg"].removeprefix("Input should be ")
            unions.setdefault((of_union, repr(mistake["input"])), []).append(wanted)
        else:
            mistakes.append(f"{key}: {mistake['msg']} (got {mistake['input']!r})")
    for (key, given), wanted_ones in unions.items():
        mistakes.append(f"{key}: Input should be {' or '.join(wanted_ones)} (got {given})")
    head = f"{source}: {len(mistakes)} mistake{'s' * (len(mistakes) != 1)} in the settings"
    return "\n  ".join([head, *mistakes])


def _nearest(key: str, known: list[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(key, known, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def parse_assignment(assignment: str) -> tuple[str, Scalar]:
    """Parse a ``key=value`` argument of ``--set``; a value that is not TOML is a plain string.

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
