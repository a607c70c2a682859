"""The supervisor of a live run, which restarts Flower's processes and the ServerApp if they end."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from types import FrameType

from samara.server.live.bundle import build_bundle
from samara.server.live.busy import NoAnswerError
from samara.server.live.connections import CONNECTIONS_FILE, write_connections
from samara.server.live.farewell import count_untold, describe_names, find_untold
from samara.server.live.keys import ClientKeys
from samara.server.live.run_display import RunDisplay
from samara.server.live.server_log import LOG_FILE, limit_log
from samara.server.live.superlink import RUN_ERROR
from samara.server.live.superlink_process import SuperLinkProcess
from samara.server.store import METRICS_FILE
from samara.shared.errors import SamaraError
from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.config import RunConfig

FLOWER_FOLDER = "flower"
_POLL_SECONDS = 0.5
_CHECK_SECONDS = 2.0
_MAX_PAUSE_SECONDS = 60.0
_STABLE_SECONDS = 60.0
"""Uptime in seconds after which a failed run is restarted with the shortest pause."""
_MAX_FAILURES = 5
"""Number of failures, with no round or evaluation between them, after which the run ends."""
_ANSWER_SECONDS = 120.0
"""Time without an answer, in seconds, after which a running SuperLink counts as hung."""
_FAREWELL_SECONDS = 15.0
"""Time limit in seconds for informing the connected clients of the run's end.

Clients poll every 3 s.
"""
_RENEWAL_SECONDS = 3600.0
_CONNECTIONS_SECONDS = 10.0
_SERVER_APP_RAISED = "ServerApp failed with exception: "
_FAILED = "the ServerApp failed: "
_MAX_REASON, _MAX_LINES = 500, 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAX_CLOCK_STEP = 5.0
"""Largest step of the system clock between two polls that needs no restart, in seconds."""


class _StopError(Exception):
    """Raised when a signal asks the server to end."""


def serve_run(
    config: RunConfig,
    superlink: SuperLinkProcess,
    keys: ClientKeys | None,
    display: RunDisplay,
    renew_certificate: Callable[[], object] | None = None,
) -> bool:
    """Serve a run until it is finished or a signal ends the server.

    A process that ends is restarted, and the run continues after the last round in the ledger. Two
    events end a run early. The first is a `SamaraError` of the ServerApp, because it would occur
    again after a restart. The second is a number of failures in a row without a round or an
    evaluation between them. The server of a finished run continues until every client that was
    away at the end has been informed.

    Args:
        config: settings of the run; ``out`` is the absolute path of its folder, which the caller
            has locked.
        superlink: Flower's SuperLink, not yet started.
        keys: client keys of the run; None lets any client join.
        display: display for progress and problems.
        renew_certificate: function that renews the server's certificate when it is about to expire;
            None leaves the certificate to the operator.

    Returns:
        Whether the run is finished.

    Raises:
        SamaraError: if the run cannot continue.
    """
    folder = Path(config.out)
    if is_finished := (folder / RESULT_FILE).exists():
        display.show("this run is already finished; to begin another run, give another --run")
        if keys is None:  # without keys, absent clients cannot be distinguished from strangers
            return True
    with _stop_on_signals():
        upkeep = _Upkeep(superlink, display, renew_certificate)
        pause = 1.0
        try:
            if is_finished and keys:
                _serve_until_told(superlink, folder, keys, display, upkeep)
                return True
            bundle = build_bundle(config)
            _start(superlink, keys, display)
            failures = 0
            while True:
                started = time.monotonic()
                events_before = _events_size(folder)
                is_busy = False
                try:
                    if superlink.missing_process():
                        _start(superlink, keys, display)
                    run = superlink.start_run(config, bundle)
                except SamaraError as error:  # the machine may be busy, or the port in use
                    problem = f"the run did not start: {error}"
                    has_failed = True
                    is_busy = isinstance(error, NoAnswerError)
                else:
                    problem = _supervise(superlink, run, keys, display, upkeep)
                    has_failed = problem.startswith(_FAILED)
                if not problem or (folder / RESULT_FILE).exists():
                    _tell_clients(superlink, folder, keys, display)
                    return True
                has_progressed = _events_size(folder) != events_before
                failures = failures + 1 if has_failed and not has_progressed else 0
                if failures == _MAX_FAILURES and is_busy:  # the SuperLink may hang
                    superlink.stop()
                    failures = 0
                elif failures == _MAX_FAILURES:
                    raise SamaraError(f"{problem}; the run failed {failures} times in a row")
                display.show(f"{problem}; restarting", "yellow")
                is_stable = time.monotonic() - started > _STABLE_SECONDS
                pause = 1.0 if is_stable else min(2 * pause, _MAX_PAUSE_SECONDS)
                time.sleep(pause)
        except _StopError:
            display.show("stopping")
            return (folder / RESULT_FILE).exists()
        finally:
            _ignore_signals()
            superlink.stop()
            (folder / CONNECTIONS_FILE).unlink(missing_ok=True)


def _start(superlink: SuperLinkProcess, keys: ClientKeys | None, display: RunDisplay) -> None:
    superlink.start()
    display.show(f"listening on {superlink.address}")
    sync_keys(superlink, keys, display)


def sync_keys(superlink: SuperLinkProcess, keys: ClientKeys | None, display: RunDisplay) -> None:
    """Register the valid keys with Flower, and unregister all other keys."""
    if keys is None:
        return
    registered = {node.public_key.decode(errors="replace"): node for node in superlink.list_nodes()}
    valid = {key.public_key: key for key in keys.read_all() if not key.revoked}
    for damage in keys.find_damage():
        display.show(damage, "yellow")
    refused = [registered[public_key] for public_key in registered.keys() - valid.keys()]
    if refused:
        superlink.unregister([node.node for node in refused])
    for node in refused:
        display.show(f"{node.name or node.node} is refused from now on", "yellow")
    if new := {key: valid[key].name for key in valid.keys() - registered.keys()}:
        superlink.register(new)
        names = sorted(new.values())
        for line in names if len(names) <= _MAX_LINES else [describe_names(names)]:
            display.show(f"{line} may join")


def _supervise(
    superlink: SuperLinkProcess,
    run: int,
    keys: ClientKeys | None,
    display: RunDisplay,
    upkeep: "_Upkeep",
) -> str:
    """Watch a run until it is finished or must be restarted.

    Returns:
        The reason for the restart; empty if the run is finished.

    Raises:
        SamaraError: if the ServerApp raised a `SamaraError`.
    """
    # the first check registers the keys, which may have changed since the start
    checked = time.monotonic()
    keys_stamp = 0
    answered = checked
    clock_offset = time.time() - time.monotonic()
    result, finished = superlink.folder.parent / RESULT_FILE, inf
    while True:
        time.sleep(_POLL_SECONDS)
        display.refresh()
        previous = clock_offset
        clock_offset = time.time() - time.monotonic()
        if abs(clock_offset - previous) > _MAX_CLOCK_STEP:
            superlink.reset()
            return f"the clock was set by {clock_offset - previous:+.0f} s"
        if has_result := result.exists():
            finished = min(finished, time.monotonic())
        if time.monotonic() < checked + _CHECK_SECONDS and not has_result:
            continue
        checked = time.monotonic()
        upkeep.do()
        if missing := superlink.missing_process():
            return f"{missing} ended"
        if superlink.has_new_certificate():
            superlink.stop()
            return "the server's certificate was renewed"
        if keys and (stamp := keys.modification_stamp()) != keys_stamp:
            with suppress(NoAnswerError):  # the next check registers them
                sync_keys(superlink, keys, display)
                keys_stamp = stamp
        if checked >= finished + _CHECK_SECONDS:  # an earlier ServerApp may have written it
            return ""
        has_server_app = superlink.has_server_app()
        try:
            status, details = superlink.run_status(run)
            answered = time.monotonic()
        except SamaraError as error:
            is_busy = isinstance(error, NoAnswerError) and not superlink.missing_process()
            if is_busy and time.monotonic() < answered + _ANSWER_SECONDS:
                continue
            missing = superlink.missing_process()
            return f"{missing} ended" if missing else "Flower's SuperLink does not answer"
        if status == "finished":
            display.refresh()
            if display.has_result():
                return ""
            if not details.startswith(_SERVER_APP_RAISED):
                return "the ServerApp ended"
            reason = details.removeprefix(_SERVER_APP_RAISED)
            if reason.startswith(RUN_ERROR):
                raise SamaraError(reason.removeprefix(RUN_ERROR))
            return f"{_FAILED}{reason[:_MAX_REASON]}; see {superlink.log_file}"
        if status == "running" and not has_server_app:
            return "the ServerApp ended"


def _tell_clients(
    superlink: SuperLinkProcess, run: Path, keys: ClientKeys | None, display: RunDisplay
) -> None:
    """Wait for a limited time until the connected clients know that the run is finished.

    The function then shows the names of the clients that do not know.
    """
    end = time.monotonic() + _FAREWELL_SECONDS
    try:
        connected = [node for node in superlink.list_nodes() if node.online]
        if connected:
            display.show(f"the run is finished; informing {len(connected)} connected clients")
        while count_untold(run, connected) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        untold = find_untold(run, superlink.list_nodes(), keys) if keys else []
    except SamaraError:
        return  # without Flower's processes, clients get no answer
    if untold:
        display.show(
            f"not informed of the run's end: {describe_names(untold)}; run the same command to "
            "wait for these clients",
            "yellow",
        )


def _serve_until_told(
    superlink: SuperLinkProcess,
    run: Path,
    keys: ClientKeys,
    display: RunDisplay,
    upkeep: "_Upkeep",
) -> None:
    """Serve a finished run until every client that took part knows that the run is finished."""
    waited_for = list[str]()
    while True:
        if superlink.missing_process() or superlink.has_new_certificate():
            _start(superlink, keys, display)
        try:
            untold = find_untold(run, superlink.list_nodes(), keys)
            if heard := [name for name in waited_for if name not in untold]:
                display.show(f"informed of the run's end: {describe_names(heard)}")
            if not untold:
                display.show("all clients that took part are informed of the run's end")
                return
            if not waited_for:
                names = describe_names(untold)
                display.show(f"waiting to inform {names} of the run's end; Ctrl-C stops waiting")
            waited_for = untold
        except SamaraError:  # Flower's processes are restarted
            superlink.stop()
        display.refresh()
        upkeep.do()
        time.sleep(_CHECK_SECONDS)


class _Upkeep:
    """The regular tasks of a server: limits of logs, records of connections, certificate renewal.

    Args:
        superlink: Flower's SuperLink.
        display: display for failures.
        renew_certificate: function that renews an expiring certificate, as in `serve_run`.
    """

    def __init__(
        self,
        superlink: SuperLinkProcess,
        display: RunDisplay,
        renew_certificate: Callable[[], object] | None,
    ) -> None:
        self._superlink, self._run = superlink, superlink.folder.parent
        self._logs = superlink.log_file, self._run / LOG_FILE
        self._display, self._renew_certificate = display, renew_certificate
        self._renewal_checked, self._connections_noted = time.monotonic(), 0.0

    def do(self) -> None:
        """Do the tasks that are due.

        An expiring certificate is renewed at an hourly check. A failure does not end the run.
        """
        for log in self._logs:
            limit_log(log)
        now = time.monotonic()
        if now > self._connections_noted + _CONNECTIONS_SECONDS:
            self._connections_noted = now
            with suppress(SamaraError, OSError):  # the status then shows connections as unknown
                write_connections(self._run, self._superlink.list_nodes())
        if now <= self._renewal_checked + _RENEWAL_SECONDS:
            return
        self._renewal_checked = now
        try:
            if self._renew_certificate:
                self._renew_certificate()
        except (SamaraError, OSError) as error:
            self._display.show(f"the server's certificate cannot be renewed: {error}", "yellow")


def _events_size(folder: Path) -> int:
    """Return the size in bytes of a run's file of events; every round changes the size."""
    events = folder / METRICS_FILE
    return events.stat().st_size if events.exists() else 0


def _ignore_signals() -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Raise `_StopError` at the first SIGINT or SIGTERM, and ignore later ones."""

    def stop(number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise _StopError

    handlers = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
