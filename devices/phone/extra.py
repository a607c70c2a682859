"""The optional dependency ExecuTorch, which programs for phones need."""

import importlib.util

from shared.errors import DeviceError

MISSING = (
    "a program for phones needs ExecuTorch, which cannot be used here ({error}); install it with "
    "pip install 'samara-fl[phone]'"
)


def require_executorch() -> None:
    """Check that ExecuTorch is installed.

    Raises:
        DeviceError: if ExecuTorch is not installed.
    """
    if importlib.util.find_spec("executorch") is None:
        raise DeviceError(MISSING.format(error="it is not installed"))
