"""The ServerApp: waits for clients, opens the run's folder, and runs the strategy."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from samara.server.live.arrivals import ARRIVALS_VARIABLE
from samara.server.live.keys import ClientKeys, keys_of_environment
from samara.server.live.server_log import write_server_log
from samara.server.live.superlink import LIVE_VARIABLE, RUN_ERROR
from samara.server.rounds.clustered_strategy import ClusteredStrategy
from samara.server.rounds.clusters import cluster_folder
from samara.server.rounds.cohort_sampling import draw_cohort_secrets
from samara.server.rounds.event_log import Meter, count_scalars
from samara.server.rounds.intercept_strategy import InterceptStrategy
from samara.server.rounds.missing_gain import describe_missing_gain
from samara.server.rounds.recorded_cohorts import RecordedCohorts
from samara.server.rounds.strategy import ScalarStrategy
from samara.server.store import LEDGER_FOLDER, METRICS_FILE, RunStore, read_layout, write_result
from samara.server.transport.arrival_clock import ArrivalClock
from samara.server.transport.blob_sender import BlobSender
from samara.server.transport.deadline_grid import Clock, DeadlineGrid, prepare_grid
from samara.server.transport.quorum import Quorum, RunIdentity
from samara.server.transport.roster import HELLO_SECONDS, Roster
from samara.shared import DISTRIBUTION
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.machine.process import peak_memory_bytes
from samara.shared.privacy.scalar_ratio import summarize_scalar_ratios
from samara.shared.protocol.basis import read_basis
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK, Split
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import read_header
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.run_id import cluster_id
from samara.shared.protocol.start import START_FILE, Start, read_start
from samara.shared.protocol.wire import PERSONAL_ACTION
from samara.shared.results.result import RESULT_FILE, SCHEMA_VERSION, RunResult
from samara.shared.results.traffic import traffic_of
from samara.shared.settings.choices import automatic_values
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import check_features
from samara.shared.settings.run_settings import check_settings, record_settings
from samara.shared.settings.runs import run_folder, run_id_of
from samara.shared.storage.blob_store import BlobStore
from samara.shared.storage.files import write_durably

log = logging.getLogger("samara.server")

app = ServerApp()
_POLL_SECONDS = 0.2
_LOG_SECONDS = 600.0
_PACKAGES = (DISTRIBUTION, "flwr", "numpy", "torch", "transformers", "pydantic")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    config = RunConfig.of(context.run_config, "run config")
    check_features({"engine": "flower"} | config.features, "run config")
    console = logging.StreamHandler()  # Flower shows only printed output
    log.addHandler(console)
    log.setLevel(logging.INFO)
    try:
        with write_server_log(Path(config.out)) if config.out else nullcontext():
            prepared = prepare_grid(grid, keys_of_environment())
            arrivals = os.environ.get(ARRIVALS_VARIABLE)
            clock = ArrivalClock(Path(arrivals)) if arrivals else None
            folder = serve(config, prepared, clock=clock, patient=LIVE_VARIABLE in os.environ)
            result = RunResult.read(folder)
            for line in traffic_of(result).lines():
                log.info("%s", line)
            if result.no_gain:
                log.warning("%s", result.no_gain)
            log.info("the result is %s", (folder / RESULT_FILE).resolve())
    except SamaraError as error:
        raise SamaraError(f"{RUN_ERROR}{error}") from error  # Flower forwards only the text
    except Exception as error:
        log.error("the ServerApp failed: %s: %s", type(error).__name__, error)
        raise
    finally:
        log.removeHandler(console)


def serve(
    config: RunConfig,
    grid: Grid,
    cohorts: RecordedCohorts | None = None,
    clock: Clock | None = None,
    meters: Sequence[Meter] = (),
    patient: bool = False,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Train for the configured rounds and write the result; return the run's folder.

    Args:
        config: settings of the run.
        grid: Flower's grid; for a live run, as `prepare_grid` returns it.
        cohorts: cohorts of a recorded run, which this run repeats up to the last recorded round.
        clock: clock of the run; by default the system's clock.
        meters: objects that add fields to round events and to the result.
        patient: whether the run is live. A live run keeps waiting if no connected client can take
            part. It also samples cohorts by a secret.
        known: additional fields of the result that only a simulation can compute, because they
            depend on the data of all clients.

    Raises:
        SamaraError: if no client can take part, or the folder cannot be used.
    """
    started = time.monotonic()
    keys = keys_of_environment()
    quorum = Quorum(config, partial(_is_stored, config))
    roster = Roster(keys, BlobSender.for_run(config, BlobStore()), quorum)
    late_exchanges = max(1, config.cohort.late_rounds)
    grid = DeadlineGrid(grid, late_exchanges, clock=clock)
    grid.while_waiting = partial(roster.send_blobs, grid)
    wanted = clients_to_await(config, keys)
    layout = _await_layout(grid, config, wanted, roster, quorum, patient)
    _check_directions(config, layout)
    config = config.among(roster.client_count) if roster.client_count else config
    run_id = run_id_of(config, layout, roster.model_id)
    folder = run_folder(config, run_id)
    check_settings(folder, config)
    if patient:
        draw_cohort_secrets(folder, config)
    strategy: ScalarStrategy | ClusteredStrategy
    if config.method == "cluster":
        strategy = ClusteredStrategy(config, folder, layout, run_id, roster)
    else:
        header = LedgerHeader(GLOBAL_TRACK, run_id, layout.hash)
        store = RunStore(folder, layout, header, config.ledger.snapshot_every)
        kind = InterceptStrategy if config.terms.intercept_round else ScalarStrategy
        strategy = kind(config, store, roster, cohorts, meters)
    try:
        record_settings(folder, config)
        if (folder / RESULT_FILE).exists():
            log.info("%s already holds the result of this run", folder)
            return folder
        if isinstance(strategy, ClusteredStrategy):
            strategy.assign_clients(grid)
        _run(strategy, grid, config)
        result = _result(config, run_id, layout, roster, strategy.events())
        if keys:
            result["names"] = _names_of(roster, keys)
        result |= {"wall_seconds": time.monotonic() - started, **known}
        for meter in meters:
            result |= meter.finish_run(result["rounds"])
        if isinstance(strategy, ScalarStrategy) and strategy.rounds:
            _write_start(config, store, roster.model_id)
        result = strategy.complete_result(result)
        traffic = traffic_of(RunResult.model_validate(result))
        write_result(folder, result | {"traffic": traffic.to_json()})
    finally:
        strategy.close()
    return folder


def _run(
    strategy: ScalarStrategy | ClusteredStrategy, grid: DeadlineGrid, config: RunConfig
) -> None:
    """Run the remaining rounds, and the evaluations before and after them."""
    grid.has_enough_replies = strategy.has_enough
    splits = [Split.VALIDATION, Split.TEST] if config.evaluate.test else [Split.VALIDATION]
    if not config.privacy.allows_evaluation:
        splits = []
    if strategy.round:
        log.info("continuing after round %d", strategy.round)
    strategy.evaluate_missing(grid, splits)
    if (rounds := strategy.rounds - strategy.round) > 0:
        strategy.start(grid, ArrayRecord(), num_rounds=rounds, timeout=config.cohort.timeout)
    if isinstance(strategy, InterceptStrategy):
        if config.evaluate.best:
            strategy.evaluate(grid, Split.VALIDATION)
            strategy.return_to_best(always=True)
        strategy.add_common_intercept(grid)
    for split in splits:
        if strategy.rounds:
            strategy.evaluate(grid, split)
            strategy.return_to_best()
    for split in splits:
        if config.makes_personal_models:
            strategy.evaluate(grid, split, PERSONAL_ACTION)


def _write_start(config: RunConfig, store: RunStore, model_id: bytes) -> None:
    """Write the global model to a file that other runs can name in `adapter.start`."""
    adapter = config.adapter
    file = store.folder / START_FILE
    try:
        start = Start.from_state(
            store.ledger.state,
            store.layout,
            model_id,
            adapter.layers,
            read_start(adapter.start) if adapter.start else None,
            read_basis(adapter.basis) if adapter.basis else None,
        )
        write_durably(file, start.encode())
    except (SamaraError, OSError) as error:
        log.warning("%s: cannot be written, so other runs cannot start from it: %s", file, error)


def clients_to_await(config: RunConfig, keys: ClientKeys | None) -> int:
    """Return the number of clients that a run waits for before it begins or continues.

    A run that continues waits for at most as many clients as there are valid keys.
    """
    wanted = min(config.cohort.available, config.data.clients)
    if keys and config.out and (Path(config.out) / METRICS_FILE).exists():
        return min(wanted, max(1, keys.count_clients()))
    return wanted


def _check_directions(config: RunConfig, layout: Layout) -> None:
    """For rounds of components, check that `queries` is at most the number of trained parameters.

    Raises:
        ConfigError: if it is more.
    """
    if config.differences == "components" and config.queries > layout.size:
        raise ConfigError(
            f"queries: {config.queries} components per round are more than the {layout.size} "
            f"trained numbers; set queries to at most {layout.size}, or differences to central"
        )


def _await_layout(
    grid: DeadlineGrid,
    config: RunConfig,
    wanted: int,
    roster: Roster,
    quorum: Quorum,
    patient: bool,
) -> Layout:
    """Wait until hellos have decided layout, base model and number of clients; return the layout.

    Then wait for the hellos of the other connected clients, until `wanted` clients have introduced
    themselves, or for `HELLO_SECONDS` after the first request.

    Raises:
        SamaraError: unless `patient`, if no connected client can take part, or if the hellos decide
            nothing before the deadline.
    """
    end = time.monotonic() + config.cohort.timeout
    hellos_end = 0.0
    next_log, logged = 0.0, -1
    while True:
        nodes = grid.connected_nodes()
        connected = len(nodes)
        roster.forget_absent(nodes)  # a refused client may come back with settings that fit
        quorum.is_late = time.monotonic() > end
        if connected >= wanted or (connected and quorum.is_late):
            seconds = min(config.cohort.timeout, HELLO_SECONDS)
            hellos_end = hellos_end or time.monotonic() + seconds
            roster.request_hellos(grid, config.cohort.timeout)
            is_complete = len(roster.entries) >= wanted or not roster.silent_nodes(nodes)
            if roster.layout is not None and (is_complete or time.monotonic() > hellos_end):
                return roster.layout
            undecided = (
                f"{roster.undecided_hellos} clients have introduced themselves; at least "
                f"{quorum.size} of them (cohort.quorum), and more than half, must agree on layout, "
                "model and number of clients"
            )
            if not patient and roster.undecided_hellos and quorum.is_late:
                raise SamaraError(f"the run cannot begin: {undecided}")
            is_hopeless = roster.layout is None and not roster.undecided_hellos
            if not patient and roster.refusal_reasons and is_hopeless:
                reasons = "; ".join(roster.refusal_reasons)
                raise SamaraError(f"no client can take part: {reasons}")
        if connected != logged or time.monotonic() > next_log:
            log.info("waiting for %d clients; %d are connected", wanted, connected)
            if roster.undecided_hellos:
                log.info("the run cannot begin yet: %s", undecided)
            next_log = time.monotonic() + _LOG_SECONDS
            logged = connected
        time.sleep(_POLL_SECONDS)


def _is_stored(config: RunConfig, identity: RunIdentity) -> bool:
    """Return whether the operator's folder already holds a run with this layout and model."""
    if not config.out:
        return False
    config = config.among(identity.client_count) if identity.client_count else config
    folder = Path(config.out)
    run_id = run_id_of(config, identity.layout, identity.model_id)
    if config.method == "cluster":
        ledger = cluster_folder(folder, 0) / LEDGER_FOLDER
        run_id = cluster_id(run_id, 0)
    else:
        ledger = folder / LEDGER_FOLDER
    try:
        is_same_layout = read_layout(folder).hash == identity.layout.hash
        return is_same_layout and read_header(ledger).run_id == run_id
    except SamaraError:
        return False  # no run yet, or a damaged run, which `serve` repairs or refuses later


def _result(
    config: RunConfig,
    run_id: bytes,
    layout: Layout,
    roster: Roster,
    events: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the result of a run, without the fields about its end state and its duration."""
    entries = sorted(roster.entries.values(), key=lambda entry: entry.client)
    rounds = [event for event in events if event["event"] == "round"]
    # Each cluster returns to its own best round, and merged events do not name the clusters.
    is_mixed = config.method == "cluster" and bool(config.evaluate.best)
    no_gain = "" if is_mixed else describe_missing_gain(events, config.newcomers, config.flat())
    return {
        "schema_version": SCHEMA_VERSION,
        "config": config.flat(),
        "automatic": automatic_values(config.flat()),
        "versions": dict(_versions()),
        "run_id": run_id.hex(),
        "model_id": roster.model_id.hex(),
        "layout_hash": layout.hash.hex(),
        "elements": layout.size,
        "clients": {str(e.client): {**e.facts, "examples": e.examples} for e in entries},
        "scalar_ratios": summarize_scalar_ratios(count_scalars(rounds), layout.size),
        "rounds": rounds,
        "evaluations": [event for event in events if event["event"] == "evaluation"],
        "no_gain": no_gain,
        "refused": Counter(client for event in events for client in event["refused"]),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def _names_of(roster: Roster, keys: ClientKeys) -> dict[str, str]:
    """Return a mapping from client index to the name of the client's key."""
    named = {entry.client: keys.name_of(entry.client) for entry in roster.entries.values()}
    return {str(client): name for client, name in sorted(named.items()) if name}


@cache
def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
