"""The process of `samara phone up`: the reference phone client."""

import logging
import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from samara.client.limits.answer_limits import AnswerLimits, warn_of_few_examples
from samara.client.limits.privacy_budget import ChargeLog, describe_charges
from samara.client.protocol.scenario_folder import describe_scenarios, take_scenario
from samara.client.trainer.idle_work import InterruptionError
from samara.devices.live.client_folder import PHONE_LOCK, check_is_no_boards
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.live.keys import read_client_index
from samara.devices.live.processes import exclusive_lock
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.joining import IN_USE
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.phone_worker import PhoneWorker
from samara.devices.phone.reference_client.readout_program import load_program
from samara.shared.errors import DeviceError, SamaraError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.signing import SigningKey
from samara.shared.storage.files import make_private_folder

log = logging.getLogger("samara.phone")

_POLL_SECONDS = 0.5


def up(
    program_file: Path,
    rows_file: Path,
    key_file: Path,
    home: Path,
    endpoint: GatewayEndpoint,
    limits: AnswerLimits,
    owners: Mapping[str, Any],
    scenario: Path | None = None,
) -> None:
    """Check the program, attach to the gateway, and answer tasks until the run is finished.

    SIGINT and SIGTERM end the process earlier.

    Args:
        program_file: path of the program of the model and adapter.
        rows_file: path of the tokenized examples, JSONL.
        key_file: path of the phone's private key.
        home: folder of the phone's state.
        endpoint: address of the gateway, and how to verify it.
        limits: limits that the phone's owner set.
        owners: settings that the owner decides instead of the run, by dotted key.
        scenario: signed scenario to store; None keeps the stored scenarios.

    Raises:
        SamaraError: if the program's runtime is missing; if program, rows, key or folder cannot be
            used; if another process uses the folder; or if the gateway rejects this phone.
    """
    check_is_no_boards(home)
    try:
        make_private_folder(home)
    except OSError as error:
        raise DeviceError(
            f"{home}: the phone's folder cannot be used: {error.strerror}; give another --home"
        ) from error
    with exclusive_lock(home / PHONE_LOCK, IN_USE):
        if scenario:
            take_scenario(scenario, home)
        for line in describe_scenarios(home):
            log.info("%s", line)
        _up(program_file, rows_file, key_file, home, endpoint, limits, owners)


def _up(
    program_file: Path,
    rows_file: Path,
    key_file: Path,
    home: Path,
    endpoint: GatewayEndpoint,
    limits: AnswerLimits,
    owners: Mapping[str, Any],
) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    key = SigningKey(key_file)
    program = load_program(program_file)
    log.info("self-check: losses differ by at most %.2g nats", program.check())
    examples = read_examples(rows_file, program.manifest)
    warn_of_few_examples(len(examples[Split.TRAIN]), limits.least_batch)
    if (charges := ChargeLog(home).read()) or limits.epsilon_limit:
        log.info("%s", describe_charges(charges, limits.epsilon_limit))
    learner = PhoneLearner(program, examples, read_client_index(key_file))
    endpoint = replace(endpoint, elements=lambda: learner.layout.size)
    phone = PhoneWorker(Phone(learner, home, limits, owners, key))
    failures: list[SamaraError] = []

    def work() -> None:
        try:
            if attach(phone, key, endpoint, stop):
                phone.finish()
                log.info("%s", describe_end(home))
        except SamaraError as error:
            failures.append(error)
        except InterruptionError:
            pass  # the process ends

    # The work runs in a thread, so that a signal ends the process while it waits for the stream.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    phone.begin()
    while thread.is_alive() and not stop.is_set():
        thread.join(_POLL_SECONDS)
    phone.close()
    if failures:
        raise failures[0]


def describe_end(home: Path) -> str:
    """Tell the owner the uses of a phone after its run has finished."""
    return (
        f"the run is finished. This phone keeps its model, with the global and the private part, "
        f"in {home}/runs. `samara client audit --home {home}` shows the data that have left this "
        f"phone, and `samara phone up` joins the next run"
    )
