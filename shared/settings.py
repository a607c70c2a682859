"""Settings in general: sections of dotted, hyphenated keys, each with a description of itself.

A setting is declared once, by `setting`: default, help, whether it belongs to a run's identity, who
owns it and which methods read it. Documentation, checks and the run id are made of that.
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
from samara.shared.setting_values import MOST_WHOLE, TERMS

log = logging.getLogger(__name__)

SETTINGS_FILE = "settings.json"
"""Name of the file in a run's folder with the settings that it was begun with."""

Scalar = bool | int | float | str
Owner = Literal["server", "device", "either"]
"""The side that decides a setting; ``either`` is the server unless the device's owner sets it."""


def _number_as_text(value: object) -> object:
    """Return a number as text: ``--set adapter.layers=3`` means the text 3."""
    return str(value) if type(value) in (int, float) else value


Text = Annotated[str, BeforeValidator(_number_as_text)]


def choice(kind: Kind, built_in: Sequence[str]) -> PlainValidator:
    """Return the validator of a setting that is built in, or names registered or installed code.

    Args:
        kind: kind of that code.
        built_in: values that are built in.
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
        default: value where nothing is set; None if the setting is required.
        help: meaning, for people.
        identity: whether the value is part of the run id.
        repetition: whether two runs that differ in this setting alone repeat each other.
        owner: the side that decides it; a live device keeps its own value, of one that ``either``
            may decide only if its owner has set it.
        read_by: methods that the value means something to; empty for all.
        page: page and anchor under docs/ that says more; may be empty.
        former: key under which earlier versions stored it; may be empty.
        blob: whether the value names a file that clients need (`samara.shared.blobs`).
        words: values of such a setting that are no file.
        before: value that versions without this setting computed with; None if there is none. It
            is left out of the run id, so that runs of those versions keep theirs.
        apart: why `samara tune` has a default, a range or a meaning of its own for a key of a run;
            empty where it has the run's, or the key is no key of a run.
        retired: what its value follows from now, for people; empty for a setting that there is. A
            run that was recorded with another value goes on with it, and no new run may have it.
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
        """Return whether runs with other values are compared with each other, not averaged."""
        return (self.identity or self.blob) and not self.repetition

    def is_read_by(self, method: str) -> bool:
        """Return whether the value means anything to a method."""
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
    """Declare a setting as a field of a `Section`; see `Setting` for what is not listed here.

    Args:
        default: value where nothing is set; ``...`` makes the setting required.
        help: meaning, for people; the documentation's tables are made of it.
        identity: whether the value is part of the run id: it decides which numbers a run
            computes, and neither where something lies nor how fast a machine is.
        repetition: see `Setting`.
        owner: of a section, of all settings in it.
        read_by: see `Setting`.
        page: see `Setting`.
        former: see `Setting`.
        blob: see `Setting`. The layout's hash must cover the file's content; the value itself, a
            path or a hash, is then not part of the run id.
        words: see `Setting`.
        before: see `Setting`.
        apart: see `Setting`.
        retired: see `Setting`.
        constraints: what pydantic's ``Field`` takes, such as ``ge``.
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
    """Declare a setting that is a term of the run; `TERMS` has its range, and perhaps its default.

    Args:
        key: its dotted key in `TERMS`.
        help: meaning, for people.
        default: value where nothing is set, of a term that stored settings must have.
        least: least value, where one below the range leaves the term open.
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
    """A value that settings of earlier versions could change.

    Attributes:
        value: the value that it always has.
        identity: whether it is part of the run id, so that runs of those versions keep theirs.
        instead: what decides in its place, for people. Another value is then read past, with a
            warning, since it changed no result; without, it is refused.
    """

    value: Scalar
    identity: bool = True
    instead: str = ""


class Section(BaseModel):
    """Settings that belong together; keys are hyphenated, unknown keys are refused.

    Attributes:
        fixed: values that were settings of this section, by key. Stored settings may have them.
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
        """Return these settings with those of an owner taken from other ones.

        Those that either side may decide are taken if the other settings set them. The result is
        not validated: each side has checked its own settings.
        """
        changes: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            own, others, decides = getattr(self, name), getattr(other, name), _about(info)["owner"]
            if decides == owner or (decides == "either" and name in other.model_fields_set):
                changes[name] = others
            elif isinstance(own, Section):
                changes[name] = own.with_owners_values(others, owner)
        return self.model_copy(update=changes)

    def with_values(self, values: Mapping[str, Any], prefix: str = "") -> Self:
        """Return these settings with other values by dotted key; the result is not validated."""
        changes: dict[str, Any] = {}
        for name in type(self).model_fields:
            own, key = getattr(self, name), prefix + _hyphenated(name)
            if isinstance(own, Section):
                changes[name] = own.with_values(values, f"{key}.")
            elif key in values:
                changes[name] = values[key]
        return self.model_copy(update=changes)


class Settings(Section):
    """Sections of settings as a whole; every setting has a default."""

    def flat(self) -> dict[str, Scalar]:
        """Return all settings by dotted key, as Flower's run config holds them."""
        return flattened(self.model_dump(by_alias=True))

    @classmethod
    def given(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate settings that somebody gives, as `of` does, and refuse retired ones.

        A run that was begun with a retired setting may have it in the folder ``out``.

        Raises:
            ConfigError: if there are retired ones, or listing every mistake.
        """
        flat = flattened(settings)
        out = flat.get("out")
        recorded = cls.recorded(Path(out)) if isinstance(out, str) and out else {}
        refuse_retired(cls, flat, recorded, source)
        return cls.of(flat, source)

    @staticmethod
    def recorded(folder: Path) -> Mapping[str, Any]:
        """Return the settings that the run in a folder was begun with; none if there is no run."""
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
        """Validate settings, nested or dotted; former keys are read, with a warning.

        Args:
            settings: from a TOML file, ``--set`` or Flower.
            source: place that they come from, named in the error.

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
    """Return the descriptions of all settings of a section and its sections, by dotted key."""
    return {setting.key: setting for setting in _described(section, "", None)}


def _described(section: type[Section], prefix: str, owner: Owner | None) -> list[Setting]:
    described = []
    for name, info in section.model_fields.items():
        key, kind, about = prefix + _hyphenated(name), info.annotation, _about(info)
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
    """Return the keys of settings by those that earlier versions stored them under."""
    return {s.former: key for key, s in describe(section).items() if s.former}


@cache
def fixed_in(section: type[Section], prefix: str = "") -> Mapping[str, Fixed]:
    """Return the values that are no settings any more, of a section and its sections, by key."""
    fixed = {prefix + key: one for key, one in section.fixed.items()}
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            fixed |= fixed_in(kind, f"{prefix}{_hyphenated(name)}.")
    return fixed


def read_recorded(file: Path) -> Mapping[str, Any]:
    """Return the object in a file of JSON; an empty one if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@cache
def _warn_of_unread_key(key: str, instead: str) -> None:
    log.warning("%s: is no setting any more, and not read: %s", key, instead)


@cache
def _warn_of_former_key(former: str, key: str) -> None:
    log.warning("%s: this setting is called %s now; the old name still works", former, key)


def with_current_names(section: type[Section], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their keys of now, without those whose value is fixed.

    One whose value is another than the fixed one stays, and is refused, if it changed results; so
    does a former key beside its key of now.
    """
    former, fixed = former_keys(section), fixed_in(section)
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
    """Refuse retired settings that somebody gives to a new run.

    Args:
        section: where they are declared.
        given: settings by dotted key.
        recorded: settings that the run was begun with; empty for a new one.
        source: place that they come from, named in the error.

    Raises:
        ConfigError: naming each, and what its value follows from now.
    """
    mistakes = [
        f"{key}: is no setting of new runs any more: {setting.retired}; leave it out"
        for key, setting in describe(section).items()
        if setting.retired
        and not _is_same(given.get(key, setting.default), setting.default)
        and given[key] != recorded.get(key)
    ]
    if mistakes:
        head = f"{source}: {len(mistakes)} mistake{'s' * (len(mistakes) != 1)} in the settings"
        goes_on = "a run that was begun with it goes on in its own folder: name that by out"
        raise ConfigError("\n  ".join([head, *mistakes, goes_on]))


def unknown_keys(section: type[Section], flat: Mapping[str, Any]) -> list[str]:
    """Return the keys of settings that neither this version nor an earlier one had."""
    known = describe(section).keys() | fixed_in(section).keys() | former_keys(section).keys()
    return sorted(flat.keys() - known)


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def with_current_keys(section: type[Section], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that an earlier version stored, as this version would have stored them.

    Those that have another key now get it, and those that it did not have the value that it
    computed with.
    """
    before = {key: s.before for key, s in describe(section).items() if s.before is not None}
    return before | with_current_names(section, flat)


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key; those that are dotted already stay as they are."""
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
        table = nested
        for section in sections:
            table = table.setdefault(section, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict):
            table[last] = value
    return nested


def explain(
    error: ValidationError, source: str, known: list[str], section: type[Section] = Section
) -> str:
    """Write every mistake that pydantic found on a line of its own.

    Args:
        error: raised by validating settings.
        source: place that they come from, named first.
        known: keys that an unknown one may have been meant for.
        section: the section whose former keys, and fixed values, are said to be such.
    """
    mistakes, former, fixed = [], former_keys(section), fixed_in(section)
    for mistake in error.errors():
        key = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            given = mistake["input"]
            within = flattened(given) if isinstance(given, dict) else {}
            for unknown in [f"{key}.{name}" for name in within] or [key]:
                if unknown in fixed:
                    hint = f" any more, it is always {fixed[unknown].value}; leave it out"
                elif unknown in former:
                    hint = f"; it is called {former[unknown]} now, which is given, too"
                else:
                    hint = _nearest(unknown, known)
                mistakes.append(f"{unknown}: there is no such setting{hint}")
        elif not key:
            mistakes += mistake["msg"].removeprefix("Value error, ").splitlines()
        else:
            mistakes.append(f"{key}: {mistake['msg']} (got {mistake['input']!r})")
    head = f"{source}: {len(mistakes)} mistake{'s' * (len(mistakes) != 1)} in the settings"
    return "\n  ".join([head, *mistakes])


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
