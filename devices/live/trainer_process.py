"""The process of the resident trainer."""

import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.jetson.telemetry import Sensors
from samara.devices.live.client_folder import TRAINER_LOCK
from samara.devices.live.keys import OWN_KEY_FILE
from samara.devices.live.pause_log import PauseLog
from samara.devices.live.processes import UNUSABLE_INPUT, exclusive_lock, exit_with_parent
from samara.devices.live.sensor_watch import SensorWatch
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import SamaraError
from samara.shared.machine.process import log_to_stderr
from samara.shared.protocol.signing import SigningKey

log = logging.getLogger("samara.trainer")

_PATIENCE_SECONDS = 15.0


def serve(settings: ClientSettings) -> NoReturn:
    """Load the trainer and let it answer on the client's socket until a signal arrives.

    Raises:
        SamaraError: if model, data or folder cannot be used.
    """
    _be_nice(settings)
    watch = _make_watch(settings)

    def end(number: int, frame: FrameType | None) -> None:
        # The current step may be abandoned, because all needed state is always on disk.
        settings.socket.unlink(missing_ok=True)
        os._exit(0)

    lock = settings.folder / TRAINER_LOCK
    start = time.monotonic()
    with exclusive_lock(lock, "another trainer of this client is running", _PATIENCE_SECONDS):
        # Not earlier: while this process waits, a signal must not remove the other trainer's
        # socket.
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        with (
            watch.watching(),
            serve_trainer(
                lambda: _loaded(settings),
                settings.socket,
                watch.pause_reason,
                lambda: watch.joules,
                settings.share_energy,
            ),
        ):
            log.info("ready after %.1f s", time.monotonic() - start)
            while True:
                signal.pause()


def _make_watch(settings: ClientSettings) -> SensorWatch:
    uses_gpu = settings.config.model.torch_device.startswith("cuda")
    sensors = Sensors(uses_gpu, settings.unmetered_only)
    return SensorWatch(sensors.read, settings, note=PauseLog(settings.folder).note)


def _be_nice(settings: ClientSettings) -> None:
    """Lower the priority of CPU and disk use to the owner's settings."""
    process = psutil.Process()
    process.nice(max(process.nice(), settings.nice))
    if settings.idle_io and hasattr(psutil, "IOPRIO_CLASS_IDLE"):
        process.ionice(psutil.IOPRIO_CLASS_IDLE)
    elif settings.idle_io:
        log.warning("owner.idle-io: this system has no I/O classes; leave the setting out")


def _loaded(settings: ClientSettings) -> ResidentTrainer:
    key = settings.key or settings.folder / OWN_KEY_FILE
    signer = SigningKey(key) if key.is_file() else None
    return ResidentTrainer.load(settings.config, settings.client_index, settings.folder, signer)


def main() -> None:
    """Serve the client whose folder and parent process id are the command-line arguments."""
    folder, parent = sys.argv[1:]
    exit_with_parent(int(parent))
    log_to_stderr()
    try:
        serve(ClientSettings.read(Path(folder)))
    except SamaraError as error:
        print(f"samara: {error}", file=sys.stderr)
        sys.exit(UNUSABLE_INPUT)


if __name__ == "__main__":
    main()
