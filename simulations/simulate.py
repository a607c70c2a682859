"""Simulation of a federation on this machine, from settings to the folder of a finished run."""

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from flwr.app import UserConfig
from threadpoolctl import threadpool_limits

from samara.client.app import app as client_app
from samara.client.forward.peak_memory import give_back_freed_memory, share_heap
from samara.client.limits.device_settings import CLIENT_INDEX, DEVICE_SETTINGS_KEY
from samara.client.protocol.simulated_client import RUNS
from samara.client.training.client_data import ClientData, ClientDataSource
from samara.client.training.model_runtime import LoadedRun, ModelRuntime
from samara.client.training.own_examples import OwnExamples
from samara.devices.live.settings import ClientSettings
from samara.server.app import serve
from samara.server.rounds.recorded_cohorts import RecordedCohorts, read_cohorts
from samara.server.store import METRICS_FILE
from samara.shared.errors import ConfigError
from samara.shared.extensions import check_extensions
from samara.shared.machine.process import cores
from samara.shared.model.loading import check_torch_device
from samara.shared.settings.blobs import publish_blobs
from samara.shared.settings.choices import automatic_values
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import check_features, kind_of
from samara.shared.settings.run_settings import check_settings
from samara.shared.settings.runs import check_results_folder, run_folder, run_id_of
from samara.shared.storage.blob_store import BlobStore
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import check_labels
from samara.shared.tasks.kinds import AUTO_FORM
from samara.simulations.engines.in_process import InProcessGrid, ignore_message
from samara.simulations.finished import find_finished, hold_inputs
from samara.simulations.passes import PassesInProcess, PassMeter
from samara.simulations.planning.plan import known_of, log_plan
from samara.simulations.planning.prompt_form import FormChoice, choose_form
from samara.simulations.planning.run_size import clients_together

log = logging.getLogger("samara.simulation")

Engine = Literal["in-process", "flower"]


def simulate(
    config: RunConfig,
    on_message: Callable[[str, int], None] = ignore_message,
    engine: Engine = "in-process",
    cohorts_from: Path | None = None,
    homes: Sequence[Path] = (),
) -> Path:
    """Train a federation of simulated clients, and return the run's folder.

    Model, task and data are loaded first, so that mistakes are found before a file is written. If
    the folder contains the beginning of this run, the run continues.

    Args:
        config: settings of the run.
        on_message: see `InProcessGrid`; Flower's engine does not call it.
        engine: in-process, or Flower's simulation with Ray.
        cohorts_from: folder of a recorded run whose cohorts are repeated; only with the in-process
            engine.
        homes: folders of the live clients of the recorded run; each client is simulated with its
            index, model and data.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    config = publish_blobs(config, BlobStore())
    cohorts = RecordedCohorts(read_cohorts(cohorts_from)) if cohorts_from else None
    emulated = bool(config.fleet.devices)
    features = {
        "engine": "fleet" if emulated and engine == "in-process" else engine,
        "clients": "simulated",
        "cohorts": "recorded" if cohorts else "sampled",
        "task": kind_of(load_task(config.task)),
    }
    check_features(features | config.features, "simulate")
    check_extensions(config.flat())
    if homes and not cohorts:
        raise ConfigError("--client: names a live client of a recorded run; add --cohorts-from")
    check_results_folder(config.out)
    # Flower's clients are other processes; this process does not train and needs no GPU
    here = config.with_values({"model.torch-device": "cpu"}) if engine == "flower" else config
    check_torch_device(here.model.torch_device)
    chosen = None if emulated or homes else _chosen_form(here)
    if chosen:
        config, here = (own.model_copy(update={"form": chosen.form}) for own in (config, here))
    if not cohorts and (finished := find_finished(config)):
        log.info("%s already holds the result of this run", finished)
        return finished
    if config.out:
        check_settings(Path(config.out), config)
    log.info("loading the model and reading the data")
    if emulated:
        from samara.simulations.fleet.run import simulate_fleet

        of_client = config.model_copy(update={"threads": config.threads or 1})
        loaded = load_simulation(of_client)
        run = LoadedRun(loaded.runtime, loaded.data)
        return simulate_fleet(config, run, loaded.shares, loaded.folder, on_message)
    if homes:
        return _repeated(config, on_message, cohorts, homes)
    loaded = load_simulation(here)
    seconds = chosen.seconds if chosen else 0.0
    log_plan(config, loaded.runtime, loaded.shares, loaded.folder, seconds)
    known = known_of(loaded.shares)
    if chosen and chosen.reason:
        log.info("form = %s: %s", chosen.form, chosen.reason)
        known["automatic"] = automatic_values(config.flat()) | {"form": chosen.reason}
    if engine == "flower":
        from samara.simulations.engines.flower import simulate_with_flower

        return simulate_with_flower(config, loaded.of_client.threads, loaded.folder, known)
    hold_inputs(loaded.folder, config, loaded.data)
    share_heap()
    give_back_freed_memory()
    threads = loaded.of_client.threads
    # also limits NumPy's threads; threads that wait for each other cost 50 % more time
    with (
        threadpool_limits(threads, "blas"),
        ThreadPoolExecutor(clients_together(config)) as pool,
    ):
        settings = loaded.of_client.flat()
        grid = InProcessGrid(client_app, config.data.clients, settings, on_message, pool)
        passes = PassesInProcess(loaded.shares, loaded.folder / METRICS_FILE)
        rows = PassMeter(passes.take_rows)
        return serve(config, grid, cohorts, meters=[rows], known=known)


def _chosen_form(config: RunConfig) -> FormChoice | None:
    """Return the prompt form of a run that has begun, or choose a form; None if the form is set."""
    if config.form != AUTO_FORM:
        return None
    if recorded := RunConfig.recorded(Path(config.out)) if config.out else {}:
        return FormChoice(recorded.get("form", AUTO_FORM), "")
    return choose_form(config)


class LoadedSimulation(NamedTuple):
    """The model and the data of a simulation in the form that its clients use.

    Attributes:
        of_client: settings of a client.
        runtime: loaded model.
        data: source of the clients' data.
        shares: data of the clients.
        folder: folder of the run.
    """

    of_client: RunConfig
    runtime: ModelRuntime
    data: ClientDataSource
    shares: list[ClientData]
    folder: Path


def load_simulation(config: RunConfig) -> LoadedSimulation:
    """Load a simulation's model, task and data, and check that they fit together.

    No file is written.

    Args:
        config: settings of the run.

    Raises:
        SamaraError: if model, task or data cannot be used, or do not fit together.
    """
    threads = config.threads or max(1, cores() // clients_together(config))
    of_client = config.model_copy(update={"threads": threads})
    RUNS.clear_if_changed(of_client)
    run = RUNS.run_for(of_client)
    clients = config.data.clients
    shares = [run.data.share_of(client, clients) for client in range(clients)]
    examples = chain.from_iterable(share.examples for share in shares)
    check_labels(examples, load_task(config.task), config.data.path)
    folder = run_folder(config, run_id_of(config, run.runtime.layout, run.runtime.model_id))
    return LoadedSimulation(of_client, run.runtime, run.data, shares, folder)


def _repeated(
    config: RunConfig,
    on_message: Callable[[str, int], None],
    cohorts: RecordedCohorts | None,
    homes: Sequence[Path],
) -> Path:
    """Repeat a live run with simulated clients that use the data of the live clients."""
    clients = [ClientSettings.read(home) for home in homes]
    for client, home in zip(clients, homes, strict=True):
        if client.config.data.watch or OwnExamples(home).read()[0]:
            raise ConfigError(
                f"{home}: the data of this client grow, and the examples of each round are not "
                "recorded; repeat a run on fixed data"
            )
    nodes: list[UserConfig] = [
        {CLIENT_INDEX: client.client_index, DEVICE_SETTINGS_KEY: json.dumps(client.device_settings)}
        for client in clients
    ]
    config = config.among(len(clients))
    grid = InProcessGrid(client_app, len(clients), config.flat(), on_message, None, nodes)
    return serve(config, grid, cohorts)
