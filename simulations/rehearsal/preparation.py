"""The preparation of a rehearsal: its folder, its plan, and the data of its clients."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from samara.client.training.model_runtime import load_run
from samara.devices.hardware.profile import DeviceProfile, load_device
from samara.shared.errors import ConfigError
from samara.shared.machine.process import cores
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import RUNS_FOLDER, check_results_folder
from samara.shared.storage.files import make_private_folder
from samara.simulations.fleet.device import fleet_of
from samara.simulations.rehearsal.arguments import stored_as
from samara.simulations.rehearsal.dealt_data import TASK_FILE, write_shares, write_task
from samara.simulations.rehearsal.own_memory import runtime_bytes
from samara.simulations.rehearsal.own_work import own_seconds
from samara.simulations.rehearsal.plan import (
    PlannedClient,
    check_dilation,
    core_shares,
    patience,
    plan_clients,
)

_MOST_PATH = 60
"""Maximum length of the path of the results' folder; the paths of Unix sockets are short."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """The folder of a rehearsal, with the paths in this folder."""

    folder: Path

    @property
    def run(self) -> Path:
        """The folder of the server's run."""
        return self.folder / "run"

    @property
    def data(self) -> Path:
        """The folder of the clients' examples."""
        return self.folder / "data"

    def home(self, client: PlannedClient) -> Path:
        """Return the folder of a client."""
        return self.folder / "clients" / str(client.number)

    def said(self, name: str) -> Path:
        """Return the file that receives the output of a process."""
        return self.folder / f"{name}.log"


@dataclass(frozen=True)
class Plan:
    """A rehearsal that is about to begin.

    Attributes:
        clients: the clients with their limits.
        patience: seconds on this machine without news after which the rehearsal is abandoned.
    """

    clients: list[PlannedClient]
    patience: float


def new_place(out: Path | None) -> Place:
    """Return the folder of the results; it must be new.

    Args:
        out: path of the folder; None for a folder in `runs`.

    Raises:
        ConfigError: if the folder is not empty or cannot be written, or if its path is too long.
    """
    folder = (out or Path(f"{RUNS_FOLDER}/rehearsal-{time.strftime('%Y%m%d-%H%M%S')}")).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty; give another folder with --out")
    if len(str(folder)) > _MOST_PATH:
        raise ConfigError(
            f"{folder}: the paths of sockets in this folder would be too long; give a folder with "
            f"a path of at most {_MOST_PATH} characters with --out"
        )
    check_results_folder(str(folder))
    return Place(folder)


def prepare(config: RunConfig, dilation: float, shapes_links: bool, place: Place, say: Say) -> Plan:
    """Plan the clients, and write their data.

    Args:
        config: settings of the run.
        dilation: seconds on this machine per second of the devices.
        shapes_links: whether this machine permits link shaping.
        place: folder of the results.
        say: function that is called with a line about each measurement.

    Raises:
        SamaraError: if model or data cannot be used, or the dilation is too small.
    """
    of_client = config.model_copy(update={"threads": 1})
    say("loading the model and reading the data")
    run = load_run(of_client)
    devices = fleet_of(of_client, run.runtime, run.data)
    own = _own_seconds(of_client, {device.group.quantization for device in devices}, say)
    shares = core_shares(devices, own, config.steps)
    check_dilation(dilation, shares, cores())
    runtime = runtime_bytes()
    say(f"memory of a client's processes without the model: {runtime / 2**20:,.0f} MiB")

    def as_here(name: str) -> DeviceProfile:
        """Return a device's profile with this machine's libraries, which multiply in float32."""
        profile = load_device(name)
        memory = profile.memory.model_copy(update={"runtime_bytes": runtime})
        compute = profile.compute.model_copy(update={"weights": "fp32"})
        return profile.model_copy(update={"memory": memory, "compute": compute})

    here = fleet_of(of_client, run.runtime, run.data, as_here)
    memory_bytes = [device.work(config.steps, 0)[1] for device in here]
    clients = plan_clients(devices, shares, memory_bytes, config.steps, dilation, shapes_links)
    make_private_folder(place.folder)
    write_task(run.runtime.task, place.folder / TASK_FILE)
    dealt = [run.data.share_of(number, len(devices)) for number in range(len(devices))]
    write_shares(dealt, place.data)
    first_pass = max(device.first_pass_seconds for device in devices)
    return Plan(clients, patience(clients, config.rehearsal.faults, first_pass, dilation))


def _own_seconds(config: RunConfig, kinds: set[str], say: Say) -> dict[str, float]:
    """Measure the processor seconds that a round's steps take here with each quantization."""
    own = {}
    for kind in sorted(kinds):
        model = config.model.model_copy(update={"quantization": stored_as(kind)})
        own[kind] = own_seconds(config.model_copy(update={"model": model}))
        say(
            f"a round's steps ({kind}) take {own[kind]:.2f} s on one core of this machine while "
            "all cores are busy"
        )
    return own
