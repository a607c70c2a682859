"""Former names of Samara's packages, from before they were parts of `samara`.

Other projects may use these names now.
"""

import os
import sys
from collections.abc import MutableSequence, Sequence

OLD_NAMES = frozenset({"client", "devices", "server", "shared", "simulations"})


def explain_old_name(name: str) -> str:
    """Return the message for an import of a Samara package by its old name."""
    return f"No module named {name!r}; a part of Samara is imported as 'samara.{name}'"


class OldNameFinder:
    """A module finder that finds nothing, but raises an error about old names of packages."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Raise an error if the name is an old name of a Samara package, otherwise return None.

        Raises:
            ModuleNotFoundError: with the new name.
        """
        if path is None and name in OLD_NAMES:
            raise ModuleNotFoundError(explain_old_name(name), name=name)


def make_way(name: str, path: MutableSequence[str]) -> None:
    """Let another project's package be imported by an old name of one of Samara's packages.

    A checkout of Samara on the module path has a package with the old name, such as `devices`.
    Python prefers this package to every folder of the same name without an `__init__.py`, even to
    one that is earlier on the path.

    Args:
        name: the old name.
        path: search path of the package's submodules; its content is replaced.

    Raises:
        ModuleNotFoundError: with the new name, if no other folder on the module path has the old
            name.
    """
    own = set(map(os.path.realpath, path))
    found = [os.path.join(entry or os.getcwd(), name) for entry in sys.path]
    path[:] = [each for each in found if os.path.isdir(each) and os.path.realpath(each) not in own]
    if not path:
        raise ModuleNotFoundError(explain_old_name(name), name=name)
