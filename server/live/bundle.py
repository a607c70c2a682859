"""The app as the bundle that a SuperLink ships, built from the installed packages."""

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from shared import DISTRIBUTION
from shared.config import RunConfig
from shared.errors import SamaraError

PACKAGES = ("server", "client", "shared")
_SUFFIXES = (".py", ".toml", ".json", ".md")


def bundle() -> bytes:
    """The Flower app bundle: the same bytes wherever the same version of Samara is installed.

    Raises:
        SamaraError: if a package is not there or Flower refuses the bundle.
    """
    from flwr.cli.build import build_fab_from_files

    files: dict[str, bytes | Path] = {"pyproject.toml": _pyproject().encode()}
    for package in PACKAGES:
        found = find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise SamaraError(f"the package {package} is not installed; install samara-fl again")
        folder = Path(found.submodule_search_locations[0])
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    try:
        return build_fab_from_files(files)[0]
    except ValueError as error:
        raise SamaraError(f"Flower refuses the app bundle: {error}") from error


def _pyproject() -> str:
    """What Flower reads of an app: its name, its two halves and its settings' defaults."""
    # a JSON string, number or boolean is TOML too
    defaults = (f"{key} = {json.dumps(value)}" for key, value in RunConfig().flat().items())
    return "\n".join(
        [
            "[project]",
            f"name = {json.dumps(DISTRIBUTION)}",
            f"version = {json.dumps(version(DISTRIBUTION))}",
            'description = "Federated personalization by replay of scalars"',
            "dependencies = []",
            "[tool.flwr.app]",
            'publisher = "samara"',
            "[tool.flwr.app.components]",
            'serverapp = "server.app:app"',
            'clientapp = "client.app:app"',
            "[tool.flwr.app.config]",
            *defaults,
            "",
        ]
    )
