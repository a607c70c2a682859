"""Federations on a fleet of emulated devices."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import LoadedRun, ModelRuntime, load_run
from samara.server.app import serve
from samara.server.rounds.event_log import Meter
from samara.server.store import METRICS_FILE
from samara.shared.machine.process import cores
from samara.shared.settings.config import RunConfig
from samara.shared.storage.events import read_events
from samara.simulations.finished import hold_inputs
from samara.simulations.fleet.clients import Clients
from samara.simulations.fleet.device import fleet_of
from samara.simulations.fleet.grid import FleetGrid
from samara.simulations.fleet.virtual_clock import VirtualClock
from samara.simulations.passes import PassesInProcess, PassMeter
from samara.simulations.planning.plan import known_of, log_plan


def simulate_fleet(
    config: RunConfig,
    run: LoadedRun,
    shares: Sequence[ClientData],
    folder: Path,
    on_message: Callable[[str, int], None],
) -> Path:
    """Train with the devices of ``fleet.devices``, and return the run's folder.

    Args:
        config: settings of the run, with `fleet.devices`.
        run: model and data of the run.
        shares: data of the clients.
        folder: folder of the run.
        on_message: function that is called with message type and client after each answered
            message.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    threads = 1 if config.model.torch_device != "cpu" else max(1, cores() // (config.threads or 1))
    first, data = run
    of_client = first.config
    devices = fleet_of(of_client, first, data)
    log_plan(config, first, shares, folder)
    hold_inputs(folder, config, data)
    runtimes: dict[str, ModelRuntime] = {
        kind: _runtime(of_client, kind, first, folder)
        for kind in sorted({group.quantization for group in config.fleet.devices})
    }
    rounds = [event for event in read_events(folder / METRICS_FILE) if "fleet" in event]
    fleet = config.fleet
    clock = VirtualClock(devices, config.seed, fleet.begins, fleet.every, rounds)
    with ThreadPoolExecutor(threads) as pool:
        clients = Clients(devices, runtimes, data, config, pool)
        grid = FleetGrid(clock, clients, len(devices), threads, on_message)
        passes = PassesInProcess(shares, folder / METRICS_FILE)
        meters: list[Meter] = [clock, PassMeter(passes.take_rows)]
        return serve(config, grid, clock=clock, meters=meters, known=known_of(shares))


def _runtime(config: RunConfig, kind: str, first: ModelRuntime, folder: Path) -> ModelRuntime:
    """Return the runtime for devices of a quantization.

    Devices with the run's own quantization share the weights of the first runtime.

    Args:
        config: settings of the run.
        kind: quantization of the devices.
        first: runtime of the run.
        folder: folder of the run.
    """
    run_quantization = config.model.quantization
    quantization = kind if kind in ("int8", "nf4") else run_quantization
    if quantization == run_quantization:
        return first
    model = config.model.model_copy(update={"quantization": quantization})
    return load_run(config.model_copy(update={"model": model, "out": str(folder)})).runtime
