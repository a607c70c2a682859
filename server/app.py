"""The ServerApp: greets the devices, opens the run's folder, and lets the strategy run."""

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
from flwr.superlink.grid import HttpGrid

from server.cohorts import RepeatedCohorts
from server.journal import journal
from server.keys import KEYS_VARIABLE, Keys
from server.phones import Phones
from server.post import Post
from server.roster import Roster
from server.store import RunStore
from server.strategy import ScalarStrategy
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.frames import GLOBAL_TRACK, Split
from shared.layout import Layout
from shared.ledger.records import LedgerHeader
from shared.machine import peak_memory_bytes
from shared.result import RESULT_FILE, SCHEMA_VERSION
from shared.runs import run_folder, run_id_of
from shared.wire import PERSONAL_ACTION

log = logging.getLogger("samara.server")

app = ServerApp()
_POLL_SECONDS = 0.2
_TELL_SECONDS = 600.0
_PACKAGES = ("samara", "flwr", "numpy", "torch", "transformers", "pydantic")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    config = RunConfig.of(context.run_config, "run config")
    console = logging.StreamHandler()  # Flower hands on what an app prints, and nothing else
    log.addHandler(console)
    log.setLevel(logging.INFO)
    try:
        with journal(Path(config.out)) if config.out else nullcontext():
            folder = serve(config, grid)
            log.info("the result is %s", (folder / RESULT_FILE).resolve())
    finally:
        log.removeHandler(console)


def serve(config: RunConfig, grid: Grid, cohorts: RepeatedCohorts | None = None) -> Path:
    """Train for the configured rounds and write the result; returns the run's folder.

    Args:
        config: of the run.
        grid: Flower's.
        cohorts: of a recorded run, to be repeated.

    Raises:
        SamaraError: if no device can take part, or the folder cannot be used.
    """
    begun = time.monotonic()
    keys_folder = os.environ.get(KEYS_VARIABLE)
    roster = Roster(Keys(Path(keys_folder)) if keys_folder else None)
    post = Post(
        Phones(grid) if isinstance(grid, HttpGrid) else grid,
        patience=max(1, config.cohort.late_rounds),
    )
    layout = _layout_of_the_devices(post, config, roster)
    config = config.among(roster.clients) if roster.clients else config
    run_id = run_id_of(config, layout, roster.model_id)
    folder = run_folder(config, run_id)
    header = LedgerHeader(GLOBAL_TRACK, run_id, layout.hash)
    store = RunStore(folder, layout, header, config.ledger.snapshot_every)
    try:
        if store.ledger.recovered:
            log.warning("%s", store.ledger.recovered)
        if (folder / RESULT_FILE).exists():
            log.info("%s holds this very run, finished", folder)
            return folder
        strategy = ScalarStrategy(config, store, roster, cohorts)
        post.enough = strategy.has_enough
        done = store.ledger.position.round
        if done:
            log.info("continuing %s after round %d", folder, done)
        else:
            strategy.evaluate(post, Split.VALIDATION)
            strategy.evaluate(post, Split.TEST)
        if done < config.rounds:
            strategy.start(
                post,
                ArrayRecord(),
                num_rounds=config.rounds - done,
                timeout=config.cohort.timeout,
            )
        strategy.evaluate(post, Split.VALIDATION)
        strategy.evaluate(post, Split.TEST)
        if config.personal.rounds:
            strategy.evaluate(post, Split.TEST, PERSONAL_ACTION)
        store.finish(_result(config, store, roster, time.monotonic() - begun))
    finally:
        store.close()
    return folder


def _layout_of_the_devices(post: Post, config: RunConfig, roster: Roster) -> Layout:
    """Wait for as many nodes as the run begins with, and for one that can take part."""
    wanted = min(config.cohort.available, config.data.clients)
    end = time.monotonic() + config.cohort.timeout
    told = 0.0
    while True:
        there = len(post.nodes())
        if there >= wanted or (there and time.monotonic() > end):
            roster.greet(post, config.cohort.timeout)
            if roster.layout is not None:
                return roster.layout
            if roster.reasons:
                raise SamaraError("no device can take part: " + "; ".join(roster.reasons))
        if time.monotonic() > told + _TELL_SECONDS:
            log.info("waiting for %d devices, %d are there", wanted, there)
            told = time.monotonic()
        time.sleep(_POLL_SECONDS)


def _result(config: RunConfig, store: RunStore, roster: Roster, seconds: float) -> dict[str, Any]:
    events = store.events
    members = sorted(roster.members.values(), key=lambda member: member.device)
    return {
        "schema_version": SCHEMA_VERSION,
        "config": config.flat(),
        "versions": _versions(),
        "run_id": store.ledger.header.run_id.hex(),
        "model_id": roster.model_id.hex(),
        "layout_hash": store.layout.hash.hex(),
        "elements": store.layout.size,
        "devices": {str(m.device): {**m.facts, "examples": m.examples} for m in members},
        "rounds": [event for event in events if event["event"] == "round"],
        "evaluations": [event for event in events if event["event"] == "evaluation"],
        "refused": Counter(device for event in events for device in event["refused"]),
        "bytes_up": sum(event["bytes_up"] for event in events),
        "bytes_down": sum(event["bytes_down"] for event in events),
        "wall_seconds": seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "final_round": store.ledger.position.round,
        "final_digest": store.ledger.digest.hex(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
