"""Federated personalization of language models, in which devices send only scalars.

The names below are the Python interface. Importing this package loads neither torch nor pydantic.
Each name imports its module when it is first used.

>>> import samara
>>> run = samara.simulate({"rounds": 1, "steps": 1, "data.clients": 2}, personal={"rounds": 0})
>>> run.to_frame()["client"].nunique()
2

Every failure raises a `SamaraError` with the message that the command prints.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from samara.shared.errors import SamaraError
from samara.shared.old_names import OldNameFinder

if TYPE_CHECKING:
    from samara import register
    from samara.estimates import DeviceEstimate, device_estimate
    from samara.models import Model
    from samara.shared.settings.config import RunConfig
    from samara.shared.tasks.catalog import load_task
    from samara.simulation import Comparison, Run, Runs, simulate
    from samara.tuning import TuningRun, tune

__all__ = [
    "Comparison",
    "DeviceEstimate",
    "Model",
    "Run",
    "RunConfig",
    "Runs",
    "SamaraError",
    "TuningRun",
    "device_estimate",
    "load_task",
    "register",
    "simulate",
    "tune",
]

_MODULES = {
    "Comparison": "samara.simulation",
    "DeviceEstimate": "samara.estimates",
    "Model": "samara.models",
    "Run": "samara.simulation",
    "RunConfig": "samara.shared.settings.config",
    "Runs": "samara.simulation",
    "TuningRun": "samara.tuning",
    "device_estimate": "samara.estimates",
    "load_task": "samara.shared.tasks.catalog",
    "simulate": "samara.simulation",
    "tune": "samara.tuning",
}
"""Module that defines each public name. The module is imported when the name is first used."""

sys.meta_path.append(OldNameFinder)


def __getattr__(name: str) -> Any:
    if name == "register":
        return import_module("samara.register")
    if name not in _MODULES:
        raise AttributeError(f"module 'samara' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def main() -> None:
    """Run the command ``samara``."""
    from samara.command import main as run_command

    run_command()
