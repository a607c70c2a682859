"""The Flower app bundle of a live run: settings and names of components, no code.

The installed code answers, on the server as on clients (docs/decisions/0007).
"""

import tomli_w

from samara.shared import DISTRIBUTION
from samara.shared.choices import OPEN
from samara.shared.config import RunConfig
from samara.shared.errors import SamaraError
from samara.shared.installed_code import client_code_hash, samara_version
from samara.shared.settings import nest


def build_bundle() -> bytes:
    """Build the app bundle; its bytes are the same for every installation of a version.

    Raises:
        SamaraError: if Flower refuses the bundle.
    """
    from samara.shared.flower_compat import build_fab_from_files

    try:
        return build_fab_from_files({"pyproject.toml": _pyproject_text().encode()})[0]
    except ValueError as error:
        raise SamaraError(f"Flower refuses the app bundle: {error}") from error


def _pyproject_text() -> str:
    """Return what Flower reads of an app, and which version of Samara the server has."""
    app = {
        "publisher": "samara",
        "components": {
            "serverapp": "samara.server.app:app",
            "clientapp": "samara.client.app:app",
        },
        "config": nest(RunConfig().sent() | OPEN),
    }
    project = {
        "name": DISTRIBUTION,
        "version": samara_version(),
        "description": "Federated personalization by replay of scalars",
        "dependencies": [],
    }
    tool = {"flwr": {"app": app}, "samara": {"client-code": client_code_hash()}}
    return tomli_w.dumps({"project": project, "tool": tool})
