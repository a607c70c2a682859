"""Loading of pandas, an optional dependency for tables of results."""

import importlib
from types import ModuleType

from samara.shared.errors import SamaraError


def load_pandas() -> ModuleType:
    """Import and return pandas.

    Raises:
        SamaraError: if pandas is not installed.
    """
    try:
        return importlib.import_module("pandas")
    except ImportError as missing:
        raise SamaraError(
            "tables need pandas; install it with: pip install 'samara-fl[pandas]'"
        ) from missing
