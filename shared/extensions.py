"""Code of other authors that a run uses by name: registered in this process, or installed.

An aggregation rule, an estimator, an objective, a partition, a personalization or a task is
registered as an object (`samara.register`), or by an entry point of an installed package in the
group ``samara.KIND``. A setting names it, and is stored as ``NAME@HASH``: the hash covers its
source, so that the run id, every client and every result tell which code a run was computed with.

Nothing is ever fetched. A name from elsewhere, such as a server's settings, is looked up among what
this machine has, and refused if it is missing there or has another hash.
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
"""The sign between a name and its hash; no built-in value has it."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_STORED = re.compile(rf"({_NAME.pattern}){MARK}[0-9a-f]{{12}}")
_HASH_DIGITS = 12
_PLAIN = (str, bytes, int, float, bool, type(None))


class Extension(NamedTuple):
    """An object under a name.

    Attributes:
        value: the object.
        hash: hash of what it is made of, 12 hexadecimal digits.
    """

    value: Any
    hash: str


_registered: dict[tuple[Kind, str], Extension] = {}


def register(kind: Kind, name: str, value: Any, version: str = "") -> None:
    """Make an object known by a name in this process; the same name again replaces it.

    Args:
        kind: kind of the object.
        name: lower-case letters, digits and hyphens.
        value: the object.
        version: what tells this object from others of the name, in place of its source. Needed
            where the source cannot be read, and useful where the object calls other code of yours.

    Raises:
        ConfigError: if the name is not possible, or there is neither source nor version.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} {name!r}: use lower-case letters, digits and hyphens")
    content = version or _content(kind, name, value)
    _registered[kind, name] = Extension(value, _hash(content))


def is_extension(value: str) -> bool:
    """Return whether a setting's value names code that is not built in."""
    return bool(_STORED.fullmatch(value))


def stored_name(kind: Kind, value: str) -> str | None:
    """Return the name of an object with its hash, as settings store it; None if there is none.

    A value that has a hash already stays as it is, whether this machine has the object or not.

    Raises:
        ConfigError: if an installed package is damaged.
    """
    if _STORED.fullmatch(value):
        return value
    found = _find(kind, value)
    return found and f"{value}{MARK}{found.hash}"


def names(kind: Kind) -> list[str]:
    """Return the names that are registered or installed."""
    own = {name for registered, name in _registered if registered == kind}
    return sorted(own | _installed(kind).keys())


def extension(kind: Kind, value: str) -> Any:
    """Return the object that a stored setting names.

    Raises:
        ConfigError: if this machine does not have it, or has it with another hash.
    """
    name, _, wanted = value.partition(MARK)
    found = _find(kind, name)
    if found is None:
        raise ConfigError(
            f"{kind} {name!r}: is not on this machine; install the package that has it, or "
            f"register it before the run (known here: {', '.join(names(kind)) or 'none'})"
        )
    if wanted and found.hash != wanted:
        raise ConfigError(
            f"{kind} {name!r}: this machine has {found.hash}, and the run was begun with {wanted}; "
            "use the same version on all machines, or begin another run"
        )
    return found.value


def check_extensions(flat: Mapping[str, object], on_client: bool = False) -> None:
    """Refuse settings with code that this machine does not have.

    Args:
        flat: settings by dotted key.
        on_client: whether a client asks, which needs no aggregation.

    Raises:
        ConfigError: if it is missing, or another than the one that the settings name.
    """
    for key, kind in _SETTINGS.items():
        value = str(flat.get(key, ""))
        if is_extension(value) and not (on_client and kind == "aggregation"):
            extension(kind, value)


def _find(kind: Kind, name: str) -> Extension | None:
    """Return an object by its name, registered ones first; an installed one is loaded."""
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
            f"{kind} {entry.name!r}: {entry.value} cannot be loaded: {error!r}; mend or remove its "
            "package"
        ) from error
    package = entry.dist
    about = f"{package.name} {package.version} " if package else ""
    return Extension(value, _hash(about + _content(kind, entry.name, value)))


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_HASH_DIGITS]


def _content(kind: Kind, name: str, value: Any) -> str:
    """Return what an object is made of: its digest, or its source and the values that it holds.

    Raises:
        ConfigError: if that cannot be told.
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
        f"{kind} {name!r}: its source cannot be read, or it holds more than numbers and texts; say "
        "which one it is by version="
    )


def _describe_held(value: object) -> str:
    """Return a number or a text that a function holds, or the name of another function.

    Raises:
        TypeError: if it is something else.
    """
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, _PLAIN):
        return repr(value)
    raise TypeError
