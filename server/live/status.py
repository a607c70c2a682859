"""The status of a run and of its clients, read from the files of the run."""

import json
from collections import deque
from pathlib import Path

from samara.server.live.connections import read_connections
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.run_status import AWAY, CONNECTED, ClientStatus, EventSums, RunStatus
from samara.server.live.server_log import LOG_FILE, REFUSED_EVENT
from samara.server.store import METRICS_FILE, ledger_of
from samara.shared.errors import SamaraError
from samara.shared.protocol.ledger.reading import read_ledger, segment_paths
from samara.shared.protocol.ledger.records import Record
from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.setting import SETTINGS_FILE
from samara.shared.storage.events import EventFollower


def read_status(run: Path) -> RunStatus:
    """Read the status of a run that waits for clients, is running, or has stopped.

    Raises:
        SamaraError: if the folder holds no run.
    """
    return StatusReader(run).read()


class StatusReader:
    """A reader of a run's status; each call reads only the new part of the files.

    The class is not thread-safe.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._keys = run, ClientKeys(run / KEYS_FOLDER)
        self._events, self._log = EventFollower(run / METRICS_FILE), EventFollower(run / LOG_FILE)
        self._sums = EventSums()
        self._ledger_size = 0, 0
        self._last_record: Record | None = None

    def read(self) -> RunStatus:
        """Return the current status.

        Raises:
            SamaraError: if the folder holds no run, or one of its files is damaged.
        """
        run, sums = self._run, self._sums
        ledger = ledger_of(run)
        has_begun = ledger.is_dir()
        keys = self._keys.read_all()
        if not (has_begun or keys or (run / LOG_FILE).exists()):
            raise SamaraError(
                f"{run}: holds no run: no ledger, no server's log and no keys; name the folder of "
                "`samara server up --run` or `samara simulate --out`"
            )
        if has_begun:
            self._read_last_record(ledger)
        for event in self._events.read_new():
            sums.add_event(event)
        for line in self._log.read_new():
            sums.add_line(line, REFUSED_EVENT)
        clients = sums.client_status()
        connections = read_connections(run)
        for key in keys:
            client = clients.setdefault(key.client, ClientStatus())
            client.name = key.name
            if key.revoked or key.gateway:
                client.state = "revoked" if key.revoked else "gateway"
            if connections and key.name in connections.connected:
                client.link = CONNECTED
            elif connections and key.name in connections.away:
                client.link = AWAY
        names = {key.client: key.name for key in keys}
        last = self._last_record
        return RunStatus(
            last.delta.round if last else 0,
            last.end_digest.hex() if last else "",
            dict(sorted(clients.items())),
            sums.bytes_up,
            sums.bytes_down,
            "" if has_begun else self._describe_wait(),
            run.resolve().name,
            _planned_rounds(run),
            (run / RESULT_FILE).exists(),
            connections.nodes if connections else None,
            sum(client.reports for client in clients.values()),
            sum(client.failures for client in clients.values()),
            tuple(sums.rounds),
            tuple(sums.evaluations),
            tuple(message.with_names(names) for message in sums.messages),
        )

    def _read_last_record(self, ledger: Path) -> None:
        """Read the ledger's last record if the ledger has changed."""
        segments = segment_paths(ledger)
        first = max(segments, default=0)
        size = first, segments[first].stat().st_size if segments else 0
        if size != self._ledger_size:
            since = max(first - 1, 0) if self._last_record else None
            records = deque(read_ledger(ledger, since), maxlen=1)
            self._last_record = records[0] if records else self._last_record
            self._ledger_size = size

    def _describe_wait(self) -> str:
        """Describe the wait of a run without a ledger, with the last line of its log."""
        messages = self._sums.messages
        said = (
            f"; last line of the server's log: {messages[-1].text}"
            if messages
            else "; the server has logged nothing yet"
        )
        return f"the run begins when enough clients have introduced themselves{said}"


def _planned_rounds(run: Path) -> int:
    """Return the number of rounds of a run; 0 if unknown."""
    try:
        return int(json.loads((run / SETTINGS_FILE).read_text(encoding="utf-8"))["rounds"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0
