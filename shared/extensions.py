"""Third-party code that a run uses by name: registered in this process, or installed.

An aggregation rule, an estimator, an objective, a partition, a personalization or a task is
registered as an object (`samara.register`), or by an entry point of an installed package in the
group ``samara.KIND``. A setting names such an object, and is stored as ``NAME@HASH``. The hash
covers the object's source, so that run id, clients and results identify the code that a run used.

Code is never fetched. A name from another machine, such as one in a server's settings, is looked up
on this machine. It is refused if the object is missing or has another hash.
"""

import hashlib
import inspect
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple

from samara.shared.errors import ConfigError

Kind = Literal["aggregation", "estimator", "objective", "partition", "personalization", "task"]

_SETTINGS: dict[str, Kind] = {
    "aggregation.rule": "aggregation",
    "gradients": "estimator",
    "objective": "objective",
    "data.partition": "partition",
    "method": "personalization",
    "task": "task",
}
MARK = "@"
"""Separator between a name and its hash; no built-in value contains it."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_STORED = re.compile(rf"({_NAME.pattern}){MARK}[0-9a-f]{{12}}")
_HASH_DIGITS = 12
_PLAIN = (str, bytes, int, float, bool, type(None))


class Extension(NamedTuple):
    """A named object.

    Attributes:
        value: the object.
        hash: hash of its content, 12 hexadecimal digits.
    """

    value: Any
    hash: str


_registered: dict[tuple[Kind, str], Extension] = {}


def register(kind: Kind, name: str, value: Any, version: str = "") -> None:
    """Register an object under a name in this process, replacing an earlier one.

    Args:
        kind: kind of the object.
        name: lower-case letters, digits and hyphens.
        value: the object.
        version: version that identifies the object in place of its source. It is required if the
            source cannot be read, and useful if the object calls further code, which the hash would
            not cover.

    Raises:
        ConfigError: if the name is invalid, or there is neither source nor version.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} {name!r}: use lower-case letters, digits and hyphens")
    content = version or _content(kind, name, value)
    _registered[kind, name] = Extension(value, _hash(content))


def is_extension(value: str) -> bool:
    """Return whether a setting's value names an extension, and not a built-in choice."""
    return bool(_STORED.fullmatch(value))


def stored_name(kind: Kind, value: str) -> str | None:
    """Return ``NAME@HASH`` for an extension's name; None if this machine lacks the extension.

    A value that already has a hash is returned unchanged, whether this machine has the object or
    not.

    Raises:
        ConfigError: if an installed package is damaged.
    """
    if _STORED.fullmatch(value):
        return value
    found = _find(kind, value)
    return found and f"{value}{MARK}{found.hash}"


def names(kind: Kind) -> list[str]:
    """Return the names of all registered and installed objects of a kind, sorted."""
    own = {name for registered, name in _registered if registered == kind}
    return sorted(own | _installed(kind).keys())


def extension(kind: Kind, value: str) -> Any:
    """Return the object that a stored setting names.

    Raises:
        ConfigError: if this machine lacks the object, or has it with another hash.
    """
    name, _, wanted = value.partition(MARK)
    found = _find(kind, name)
    if found is None:
        raise ConfigError(
            f"{kind} {name!r}: is not on this machine; install its package, or register it "
            f"before the run (known here: {', '.join(names(kind)) or 'none'})"
        )
    if wanted and found.hash != wanted:
        raise ConfigError(
            f"{kind} {name!r}: this machine has hash {found.hash}, and the run was begun "
            f"with {wanted}; install the same version on all machines, or begin another run"
        )
    return found.value


def check_extensions(flat: Mapping[str, object], on_client: bool = False) -> None:
    """Check that this machine has all code that settings name.

    Args:
        flat: settings by dotted key.
        on_client: whether this machine is a client, which needs no aggregation rule.

    Raises:
        ConfigError: if the code is missing, or has another hash than the settings name.
    """
    for key, kind in _SETTINGS.items():
        value = str(flat.get(key, ""))
        if is_extension(value) and not (on_client and kind == "aggregation"):
            extension(kind, value)


def _find(kind: Kind, name: str) -> Extension | None:
    """Return the registered object of a name, otherwise the installed one, otherwise None."""
    if (own := _registered.get((kind, name))) is not None:
        return own
    entry = _installed(kind).get(name)
    return None if entry is None else _load(kind, entry)


@cache
def _installed(kind: Kind) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by name; nothing is loaded."""
    return {entry.name: entry for entry in entry_points(group=f"samara.{kind}")}


@cache
def _load(kind: Kind, entry: EntryPoint) -> Extension:
    try:
        value = entry.load()
    except Exception as error:
        raise ConfigError(
            f"{kind} {entry.name!r}: {entry.value} cannot be loaded: {error!r}; repair or remove "
            "its package"
        ) from error
    package = entry.dist
    about = f"{package.name} {package.version} " if package else ""
    return Extension(value, _hash(about + _content(kind, entry.name, value)))


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_HASH_DIGITS]


def _content(kind: Kind, name: str, value: Any) -> str:
    """Return the content that identifies an object: its digest, or its source and captured values.

    Raises:
        ConfigError: if the content cannot be determined.
    """
    if isinstance(digest := getattr(value, "digest", None), str):
        return digest
    code = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    try:
        held = inspect.getclosurevars(value).nonlocals if code is value else vars(value)
        values = {key: _describe_held(each) for key, each in held.items()}
        return f"{inspect.getsource(code)} {sorted(values.items())}"
    except (OSError, TypeError):
        pass
    raise ConfigError(
        f"{kind} {name!r}: its source cannot be read, or it captures values other than numbers and "
        "texts; identify it with version="
    )


def _describe_held(value: object) -> str:
    """Return a captured number or text, or the name of a captured function.

    Raises:
        TypeError: if the value is of another kind.
    """
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, _PLAIN):
        return repr(value)
    raise TypeError
