"""The memory of a client's processes without the model, measured before a rehearsal.

A client consists of three processes: `samara client up`, Flower's SuperNode, and the trainer. The
processes load the libraries of this machine, which differ from the device's libraries; for example,
a Jetson has CUDA versions. The memory of the three processes is therefore measured, and the
predicted memory of the model is added.
"""

import re
import sys
from importlib import import_module
from pathlib import Path

from samara.devices.hardware.memory_footprint import MemoryFootprint
from samara.simulations.rehearsal.measuring import measure

_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
_UP = "up"
_SUPERNODE = "supernode"
_TRAINER = "trainer"
_MODULES = {
    _UP: (
        "samara.devices.live.commands",
        "samara.devices.live.client_supervisor",
        "samara.devices.live.connection.executor",
    ),
    _SUPERNODE: ("samara.devices.live.connection.supernode", "samara.shared.flower_compat"),
    _TRAINER: ("samara.devices.live.trainer_process",),
}
"""Modules that each of the processes imports."""


def runtime_bytes() -> int:
    """Measure the memory of a client's processes without the model, in bytes.

    The trainer's part is its memory during a round with the shipped model, minus the predicted
    bytes of that model.

    Raises:
        DeviceError: if a process fails.
    """
    kinds = (_UP, _SUPERNODE, _TRAINER)
    found = measure(
        "samara.simulations.rehearsal.own_memory", kinds, "the memory of a client's processes"
    )
    return round(sum(found))


def model_bytes(footprint: MemoryFootprint) -> int:
    """Return the predicted bytes without interpreter, libraries and device contexts."""
    return footprint.total - footprint.runtime


def _load_trainer() -> int:
    """Take a round's steps with the shipped model; return the predicted bytes of the model."""
    from samara.client.training.model_runtime import load_run
    from samara.shared.settings.config import RunConfig
    from samara.simulations.fleet.device import fleet_of
    from samara.simulations.rehearsal.own_work import round_seconds

    settings = {"fleet.devices": '[{"device": "laptop", "share": 1}]', "threads": 1}
    settings |= {"data.clients": 2, "steps": 1, "queries": 2, "batch": 2, "adapter.layers": "top:1"}
    config = RunConfig.of(settings, "the measurement of memory")
    run = load_run(config)
    round_seconds(config, run.runtime, run.data.share_of(0, 2))
    device = fleet_of(config, run.runtime, run.data)[0]
    return model_bytes(device.estimate.memory)


def main() -> None:
    """Print the anonymous memory, in bytes, of the kind of process that the argument names."""
    kind = sys.argv[1]
    modules = [import_module(module) for module in _MODULES[kind]]
    if kind == _SUPERNODE:
        modules[-1].flower_supernode  # noqa: B018 - the attribute access imports this part of Flower
    of_model = _load_trainer() if kind == _TRAINER else 0
    found = _ANONYMOUS.search(Path("/proc/self/status").read_text())
    print((int(found[1]) * 1024 if found else 0) - of_model)


if __name__ == "__main__":
    main()
