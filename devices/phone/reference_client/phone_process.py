"""The process of `samara phone up`: the reference phone client."""

import logging
import signal
import threading
from pathlib import Path

from client.protocol.scalar_counts import ScalarCounts
from client.protocol.session_store import SessionFolder
from devices.live.keys import read_client_index
from devices.live.processes import exclusive_lock
from devices.phone.extra import require_executorch
from devices.phone.reference_client.attachment import attach
from devices.phone.reference_client.examples import read_examples
from devices.phone.reference_client.gateway_endpoint import GatewayEndpoint
from devices.phone.reference_client.phone import Phone
from devices.phone.reference_client.phone_trainer import PhoneTrainer
from devices.phone.reference_client.readout_program import load_program
from shared.errors import DeviceError, SamaraError
from shared.files import make_folder
from shared.signing import SigningKey

log = logging.getLogger("samara.phone")

_POLL_SECONDS = 0.5


def up(
    program_file: Path,
    rows_file: Path,
    key_file: Path,
    home: Path,
    endpoint: GatewayEndpoint,
    scalar_limit: float = 0.0,
) -> None:
    """Check the program, attach to the gateway, and answer tasks until SIGINT or SIGTERM.

    Raises:
        SamaraError: if ExecuTorch is missing, program, rows, key or folder cannot be used, another
            process uses the folder, or the gateway rejects this phone.
    """
    require_executorch()
    try:
        make_folder(home)
    except OSError as error:
        raise DeviceError(f"{home}: cannot be used: {error.strerror}; set --home") from error
    with exclusive_lock(home / "phone.lock", "another `samara phone up` uses this folder"):
        _up(program_file, rows_file, key_file, home, endpoint, scalar_limit)


def _up(
    program_file: Path,
    rows_file: Path,
    key_file: Path,
    home: Path,
    endpoint: GatewayEndpoint,
    scalar_limit: float,
) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    key = SigningKey(key_file)
    program = load_program(program_file)
    log.info("self-check: losses differ by at most %.2g nats", program.check())
    trainer = PhoneTrainer(program, read_examples(rows_file, program.manifest))
    client = read_client_index(key_file)
    phone = Phone(trainer, client, SessionFolder(home), ScalarCounts(home), scalar_limit)
    failures: list[SamaraError] = []

    def work() -> None:
        try:
            attach(phone, key, endpoint, stop)
        except SamaraError as error:
            failures.append(error)

    # in a thread, so that a signal ends the process while it waits for the stream
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive() and not stop.is_set():
        thread.join(_POLL_SECONDS)
    if failures:
        raise failures[0]
