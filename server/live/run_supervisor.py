"""Keeps a live run up: Flower's processes, our ServerApp, and the run that they serve."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from server.live.bundle import bundle
from server.live.keys import Keys
from server.live.superlink_process import Flower
from server.live.watch import Watch
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.files import make_folder

FLOWER_FOLDER = "flower"
_POLL_SECONDS = 0.5
_CHECK_SECONDS = 2.0
_MOST_SECONDS_BETWEEN_RESTARTS = 60.0
_MOST_FAILED_STARTS = 5
_RAISED = "ServerApp failed with exception: "
_NOTABLE_JUMP = 5.0
"""Seconds; signed requests of clients may be so far off."""
_CLOCK = "the clock that Flower went by"


class _StopError(Exception):
    """Somebody asked the server to end."""


def up(config: RunConfig, flower: Flower, keys: Keys | None, watch: Watch) -> bool:
    """Serve a run until it is finished or somebody ends it.

    Whatever dies is started again, and the run goes on at the round after the last one that is in
    the ledger. Only an error that the ServerApp itself raises ends it, as it would come back, and
    a start that fails again and again.

    Args:
        config: of the run; ``out`` is its folder, absolute.
        flower: not started yet.
        keys: of the clients; None lets anybody join.
        watch: shows what happens.

    Returns:
        Whether the run is finished.

    Raises:
        SamaraError: if it cannot go on.
    """
    folder = Path(config.out)
    app = bundle()
    with _alone(folder), _until_a_signal():
        pause = 1.0
        try:
            _start(flower, keys, watch)
            failed = 0
            while True:
                begun = time.monotonic()
                try:
                    if flower.missing():
                        _start(flower, keys, watch)
                    run = flower.begin(config, app)
                except SamaraError as error:  # the machine may be busy, or a port not free yet
                    failed += 1
                    if failed == _MOST_FAILED_STARTS:
                        raise
                    died = f"Flower ({error})"
                else:
                    failed = 0
                    died = _served(flower, run, keys, watch)
                if not died:
                    return True
                watch.say(f"{died} is gone; starting again", "yellow")
                if died == _CLOCK:
                    flower.forget()
                lasted = time.monotonic() - begun
                pause = 1.0 if lasted > 60 else min(2 * pause, _MOST_SECONDS_BETWEEN_RESTARTS)
                time.sleep(pause)
        except _StopError:
            watch.say("ending")
            return False
        finally:
            flower.stop()


def _start(flower: Flower, keys: Keys | None, watch: Watch) -> None:
    flower.start()
    watch.say(f"listening on {flower.address}")
    sync_keys(flower, keys, watch)


def sync_keys(flower: Flower, keys: Keys | None, watch: Watch) -> None:
    """Have Flower know the keys that are valid, and no others."""
    if keys is None:
        return
    known = {node.public_key.decode(errors="replace"): node for node in flower.nodes()}
    valid = {key.public_key: key for key in keys.all() if not key.revoked}
    for public_key in known.keys() - valid.keys():
        node = known[public_key]
        flower.unregister(node.node)
        watch.say(f"{node.name or node.node} is refused from now on", "yellow")
    for public_key in valid.keys() - known.keys():
        flower.register(public_key.encode(), valid[public_key].name)
        watch.say(f"{valid[public_key].name} may join")


def _served(flower: Flower, run: int, keys: Keys | None, watch: Watch) -> str:
    """Watch over a run until it is finished; returns which process died, empty if none."""
    checked, stamp = time.monotonic(), 0  # keys may have changed since they were last looked at
    clock = time.time() - time.monotonic()
    while True:
        time.sleep(_POLL_SECONDS)
        watch.refresh()
        before, clock = clock, time.time() - time.monotonic()
        if abs(clock - before) > _NOTABLE_JUMP:
            watch.say(f"the clock was set by {clock - before:+.0f} s", "yellow")
            return _CLOCK
        if time.monotonic() < checked + _CHECK_SECONDS:
            continue
        checked = time.monotonic()
        if missing := flower.missing():
            return missing
        if keys and keys.stamp() != stamp:
            stamp = keys.stamp()
            sync_keys(flower, keys, watch)
        has_app = flower.has_server_app()
        try:
            status, details = flower.status(run)
        except SamaraError:
            return flower.missing() or "the answer of Flower's SuperLink"
        if status == "finished":
            watch.refresh()
            if watch.finished():
                return ""
            if details.startswith(_RAISED):
                raise SamaraError(details.removeprefix(_RAISED))
            return "the ServerApp"
        if status == "running" and not has_app:
            return "the ServerApp"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no other server runs in it."""
    make_folder(folder)
    try:
        lock = FileLock(folder / "server.lock").acquire(timeout=0)
    except Timeout:
        raise SamaraError(f"{folder}: another `samara server up` is serving this run") from None
    with lock:
        yield


@contextmanager
def _until_a_signal() -> Iterator[None]:
    """SIGINT and SIGTERM end the server in good order; a second one does not interrupt that."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise _StopError

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
