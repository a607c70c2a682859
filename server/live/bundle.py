"""The Flower app bundle that a SuperLink sends to clients, from the installed packages."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import tomli_w

from samara.shared import DISTRIBUTION
from samara.shared.choices import OPEN
from samara.shared.config import RunConfig
from samara.shared.errors import SamaraError
from samara.shared.settings import nest

PACKAGES = ("server", "client", "shared")
_SUFFIXES = (".py", ".toml", ".json", ".md")


def build_bundle() -> bytes:
    """Build the app bundle; its bytes are the same for every installation of a version.

    Raises:
        SamaraError: if a package is not installed, or Flower refuses the bundle.
    """
    from samara.shared.flower_compat import build_fab_from_files

    files: dict[str, bytes | Path] = {"pyproject.toml": _pyproject_text().encode()}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise SamaraError(f"the package {package} is not installed; install samara-fl again")
        folder = Path(spec.submodule_search_locations[0])
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    try:
        return build_fab_from_files(files)[0]
    except ValueError as error:
        raise SamaraError(f"Flower refuses the app bundle: {error}") from error


def _pyproject_text() -> str:
    """Return what Flower reads of an app: its name, its components and its settings' defaults."""
    app = {
        "publisher": "samara",
        "components": {"serverapp": "samara.server.app:app", "clientapp": "samara.client.app:app"},
        "config": nest(RunConfig().flat() | OPEN),
    }
    project = {
        "name": DISTRIBUTION,
        "version": version(DISTRIBUTION),
        "description": "Federated personalization by replay of scalars",
        "dependencies": [],
    }
    return tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
