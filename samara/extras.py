"""pandas, an extra that tables of results need."""

import importlib
from types import ModuleType

from samara.shared.errors import SamaraError


def load_pandas() -> ModuleType:
    """Return pandas.

    Raises:
        SamaraError: if it is not installed.
    """
    try:
        return importlib.import_module("pandas")
    except ImportError as missing:
        raise SamaraError("tables need pandas: pip install 'samara-fl[pandas]'") from missing
