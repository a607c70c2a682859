"""The ServerApp: greets the clients, opens the run's folder, and lets the strategy run."""

import logging
import os
import sys
import time
from collections import Counter
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from server.live.journal import journal
from server.live.keys import KEYS_VARIABLE, Keys
from server.rounds.clusters import ClusteredStrategy
from server.rounds.recorded_cohorts import RecordedCohorts
from server.rounds.strategy import ScalarStrategy
from server.store import RunStore, finish
from server.transport.clock import Clock
from server.transport.deadline_grid import DeadlineGrid
from server.transport.roster import Roster
from shared import DISTRIBUTION
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.frames.instructions import GLOBAL_TRACK, Split
from shared.layout import Layout
from shared.ledger.records import LedgerHeader
from shared.machine import peak_memory_bytes
from shared.result import RESULT_FILE, SCHEMA_VERSION
from shared.runs import run_folder, run_id_of
from shared.wire import PERSONAL_ACTION

log = logging.getLogger("samara.server")

LIVE_VARIABLE = "SAMARA_LIVE"
"""Environment variable of a ServerApp whose clients come and go."""
app = ServerApp()
_POLL_SECONDS = 0.2
_TELL_SECONDS = 600.0
_PACKAGES = (DISTRIBUTION, "flwr", "numpy", "torch", "transformers", "pydantic")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    config = RunConfig.of(context.run_config, "run config")
    console = logging.StreamHandler()  # Flower hands on what an app prints, and nothing else
    log.addHandler(console)
    log.setLevel(logging.INFO)
    try:
        with journal(Path(config.out)) if config.out else nullcontext():
            folder = serve(config, grid, patient=LIVE_VARIABLE in os.environ)
            log.info("the result is %s", (folder / RESULT_FILE).resolve())
    finally:
        log.removeHandler(console)


def serve(
    config: RunConfig,
    grid: Grid,
    cohorts: RecordedCohorts | None = None,
    clock: Clock | None = None,
    patient: bool = False,
) -> Path:
    """Train for the configured rounds and write the result; returns the run's folder.

    Args:
        config: of the run.
        grid: Flower's.
        cohorts: of a recorded run, to be repeated as far as it went.
        clock: what it happens in; the real one by default.
        patient: wait on when no client that is there can take part; another may come.

    Raises:
        SamaraError: if no client can take part, or the folder cannot be used.
    """
    begun = time.monotonic()
    keys_folder = os.environ.get(KEYS_VARIABLE)
    roster = Roster(Keys(Path(keys_folder)) if keys_folder else None)
    post = DeadlineGrid(grid, late_exchanges=max(1, config.cohort.late_rounds), clock=clock)
    layout = _layout_of_the_clients(post, config, roster, patient)
    config = config.among(roster.client_count) if roster.client_count else config
    run_id = run_id_of(config, layout, roster.model_id)
    folder = run_folder(config, run_id)
    if config.method == "cluster":
        return _serve_clusters(config, folder, layout, run_id, roster, post, begun)
    header = LedgerHeader(GLOBAL_TRACK, run_id, layout.hash)
    store = RunStore(folder, layout, header, config.ledger.snapshot_every)
    try:
        if store.ledger.recovered:
            log.warning("%s", store.ledger.recovered)
        if (folder / RESULT_FILE).exists():
            log.info("%s holds this very run, finished", folder)
            return folder
        strategy = ScalarStrategy(config, store, roster, cohorts, post.clock)
        rounds = config.federated_rounds
        rounds = min(rounds, cohorts.last) if cohorts else rounds
        _run(strategy, post, config, store.ledger.position.round, rounds)
        ledger = store.ledger
        end = {"final_round": ledger.position.round, "final_digest": ledger.digest.hex()}
        told = _result(config, run_id, layout, roster, store.events(), time.monotonic() - begun)
        finish(folder, told | end | post.clock.finish_run(told["rounds"]))
    finally:
        store.close()
    return folder


def _serve_clusters(
    config: RunConfig,
    folder: Path,
    layout: Layout,
    run_id: bytes,
    roster: Roster,
    post: DeadlineGrid,
    begun: float,
) -> Path:
    """The same for clients in clusters, which are found first."""
    strategy = ClusteredStrategy(config, folder, layout, run_id, roster)
    try:
        if (folder / RESULT_FILE).exists():
            log.info("%s holds this very run, finished", folder)
            return folder
        strategy.find(post)
        _run(strategy, post, config, strategy.round, strategy.rounds)
        groups = strategy.groups
        told = _result(config, run_id, layout, roster, strategy.events(), time.monotonic() - begun)
        told |= {"final_round": strategy.round, "final_digest": strategy.digest.hex()}
        told |= {"groups": {str(client): own for client, own in sorted(groups.clusters.items())}}
        told["bytes_up"] += groups.bytes_up
        told["bytes_down"] += groups.bytes_down
        finish(folder, told)
    finally:
        strategy.close()
    return folder


def _run(
    strategy: ScalarStrategy | ClusteredStrategy,
    post: DeadlineGrid,
    config: RunConfig,
    done: int,
    rounds: int,
) -> None:
    """Evaluate, train the rounds that are left, evaluate, and have the private rounds taken."""
    post.has_enough_replies = strategy.has_enough
    splits = [Split.VALIDATION, Split.TEST] if config.evaluate.test else [Split.VALIDATION]
    if done:
        log.info("continuing after round %d", done)
    else:
        for split in splits:
            strategy.evaluate(post, split)
    if done < rounds:
        strategy.start(post, ArrayRecord(), num_rounds=rounds - done, timeout=config.cohort.timeout)
    for split in splits:
        if rounds:
            strategy.evaluate(post, split)
            strategy.return_to_best()
    for split in splits:
        if config.private_rounds:
            strategy.evaluate(post, split, PERSONAL_ACTION)


def _layout_of_the_clients(
    post: DeadlineGrid, config: RunConfig, roster: Roster, patient: bool
) -> Layout:
    """Wait for as many nodes as the run begins with, and for one that can take part."""
    wanted = min(config.cohort.available, config.data.clients)
    end = time.monotonic() + config.cohort.timeout
    told = 0.0
    while True:
        there = len(post.connected_nodes())
        if there >= wanted or (there and time.monotonic() > end):
            roster.request_hellos(post, config.cohort.timeout)
            if roster.layout is not None:
                return roster.layout
            if roster.refusal_reasons and not patient:
                raise SamaraError("no client can take part: " + "; ".join(roster.refusal_reasons))
        if time.monotonic() > told + _TELL_SECONDS:
            log.info("waiting for %d clients, %d are there", wanted, there)
            told = time.monotonic()
        time.sleep(_POLL_SECONDS)


def _result(
    config: RunConfig,
    run_id: bytes,
    layout: Layout,
    roster: Roster,
    events: list[dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    entries = sorted(roster.entries.values(), key=lambda entry: entry.client)
    return {
        "schema_version": SCHEMA_VERSION,
        "config": config.flat(),
        "versions": _versions(),
        "run_id": run_id.hex(),
        "model_id": roster.model_id.hex(),
        "layout_hash": layout.hash.hex(),
        "elements": layout.size,
        "clients": {str(m.client): {**m.facts, "examples": m.examples} for m in entries},
        "rounds": [event for event in events if event["event"] == "round"],
        "evaluations": [event for event in events if event["event"] == "evaluation"],
        "refused": Counter(client for event in events for client in event["refused"]),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "wall_seconds": seconds,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
