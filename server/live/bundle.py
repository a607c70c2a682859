"""The Flower app bundle of a live run: settings and component names, no code.

Servers and clients run the code that is installed on them (docs/decisions/0007).
"""

import tomli_w

from samara.shared import DISTRIBUTION
from samara.shared.errors import SamaraError
from samara.shared.machine.installed_code import client_code_hash, samara_version
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import nest


def build_bundle(config: RunConfig) -> bytes:
    """Build a run's app bundle.

    Equal settings give equal bytes in all installations of one version of Samara.

    Args:
        config: settings of the run.

    Raises:
        SamaraError: if Flower refuses the bundle.
    """
    from samara.shared.flower_compat import build_fab_from_files

    try:
        return build_fab_from_files({"pyproject.toml": _pyproject_text(config).encode()})[0]
    except ValueError as error:
        raise SamaraError(f"Flower refuses the app bundle: {error}") from error


def _pyproject_text(config: RunConfig) -> str:
    """Return the app description that Flower reads, with the server's Samara version."""
    app = {
        "publisher": "samara",
        "components": {
            "serverapp": "samara.server.app:app",
            "clientapp": "samara.client.app:app",
        },
        "config": nest(config.sent()),
    }
    project = {
        "name": DISTRIBUTION,
        "version": samara_version(),
        "description": "Federated personalization by replay of scalars",
        "dependencies": [],
    }
    tool = {"flwr": {"app": app}, "samara": {"client-code": client_code_hash()}}
    return tomli_w.dumps({"project": project, "tool": tool})
