"""Names of Samara's packages before they were parts of `samara`; they belong to anybody now."""

import os
import sys
from collections.abc import MutableSequence, Sequence

OLD_NAMES = frozenset({"client", "devices", "server", "shared", "simulations"})


def explain_old_name(name: str) -> str:
    """Return the message for a package of Samara's that is imported by its old name."""
    return f"No module named {name!r}; a part of Samara is imported as 'samara.{name}'"


class OldNameFinder:
    """A finder of modules that finds none, and explains an old name that nobody has."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Find nothing; explain an old name.

        Raises:
            ModuleNotFoundError: with the new name.
        """
        if path is None and name in OLD_NAMES:
            raise ModuleNotFoundError(explain_old_name(name), name=name)


def make_way(name: str, path: MutableSequence[str]) -> None:
    """Let a package that was imported by its old name stand for other projects' folders.

    A checkout on the module path has a package `devices`. Python prefers it to every folder
    `devices` without an `__init__.py`, even to one that comes first on the path.

    Args:
        name: the old name.
        path: the folders of its submodules, which are replaced.

    Raises:
        ModuleNotFoundError: with the new name, if nobody has such a folder.
    """
    own = set(map(os.path.realpath, path))
    found = [os.path.join(entry or os.getcwd(), name) for entry in sys.path]
    path[:] = [each for each in found if os.path.isdir(each) and os.path.realpath(each) not in own]
    if not path:
        raise ModuleNotFoundError(explain_old_name(name), name=name)
