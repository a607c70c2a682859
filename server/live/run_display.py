"""The display of `samara server up`: a live table on a terminal; otherwise text or JSON lines."""

import json
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.run_status import name_clients
from samara.server.live.server_log import LOG_FILE
from samara.server.store import METRICS_FILE
from samara.shared.results.result import RESULT_FILE
from samara.shared.storage.events import EventFollower

_ROUNDS_SHOWN = 12
_LINES_SHOWN = 8
_CLIENTS_SHOWN = 50
WARNING_STYLE = "yellow"


class RunDisplay:
    """A context manager that shows a run's new events and log lines, with client names.

    Args:
        run: folder of the run.
        console: console to print on.
        as_json: whether to print JSON lines: time, level, message, and the event of a round.
    """

    def __init__(self, run: Path, console: Console, as_json: bool = False) -> None:
        self._console, self._run, self._as_json = console, run, as_json
        self._log, self._metrics = EventFollower(run / LOG_FILE), EventFollower(run / METRICS_FILE)
        self._log.skip_existing()
        is_live = console.is_terminal and not as_json
        if not is_live:
            self._metrics.skip_existing()
        self._rounds: deque[dict[str, Any]] = deque(maxlen=_ROUNDS_SHOWN)
        self._lines: deque[Text] = deque(maxlen=_LINES_SHOWN)
        self._last_reports: dict[int, int] = {}  # round of the last report, by client index
        self._keys = ClientKeys(run / KEYS_FOLDER)
        self._live = Live(console=console, auto_refresh=False) if is_live else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self.refresh()
            self._live.stop()

    def show(self, text: str, style: str = "") -> None:
        """Show a line of text in a rich style."""
        if self._live:
            self._lines.append(Text(text, style))
        elif self._as_json:
            level = "warning" if style == WARNING_STYLE else "info"
            self._print_json({"level": level, "message": text})
        else:
            self._console.print(Text(text, style), soft_wrap=True)

    def show_end(self, text: str) -> None:
        """Show the last line of text, below the table and all other lines."""
        if self._as_json:
            self.show(text)
        else:
            self._console.print(text, soft_wrap=True)

    def has_result(self) -> bool:
        """Return whether the run has written its result."""
        return (self._run / RESULT_FILE).exists()

    def refresh(self) -> None:
        """Show the events and log lines that the run wrote since the last call."""
        for event in self._metrics.read_new():
            if event.get("event") == "evaluation":
                self._add_bytes(event)
            if event.get("event") != "round":
                continue
            self._rounds.append(event)
            for client in event.get("clients", {}):
                self._last_reports[int(client)] = event["round"]
            if self._as_json:
                self._print_json({"level": "info", "message": self._round_line(event)} | event)
            elif not self._live:
                self.show(self._round_line(event))
        for line in self._log.read_new():
            if line.get("event") == "round":
                continue
            if self._as_json:
                self._print_json(line)
            else:
                style = WARNING_STYLE if line.get("level") in ("warning", "error") else ""
                names = {key.client: key.name for key in self._keys.read_all()}
                self.show(name_clients(str(line.get("message", "")), names), style)
        if self._live:
            self._live.update(self._tables(), refresh=True)

    def _add_bytes(self, evaluation: dict[str, Any]) -> None:
        """Add the bytes of an evaluation to the displayed round before it.

        The messages of the evaluation carry the delta of this round to the clients.
        """
        for event in self._rounds:
            if event["round"] == evaluation.get("round"):
                for way in ("bytes_up", "bytes_down"):
                    event[way] += evaluation.get(way, 0)

    def _print_json(self, line: dict[str, Any]) -> None:
        now = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        self._console.file.write(json.dumps(now | line) + "\n")
        self._console.file.flush()

    def _tables(self) -> Group:
        """Return the latest rounds, the clients' latest reports, and the latest log lines."""
        rounds = Table(title=str(self._run), title_style="bold", expand=True)
        for column in ("round", "loss", "reports", "refused", "bytes up", "bytes down", "digest"):
            rounds.add_column(column, justify="right")
        for event in self._rounds:
            loss = event.get("loss")
            rounds.add_row(
                str(event["round"]),
                f"{loss:.4f}" if loss is not None else "-",
                str(event["reports"]),
                str(len(event["refused"])),
                f"{event['bytes_up']:,}",
                f"{event['bytes_down']:,}",
                event["digest"][:16],
            )
        longest_ago = sorted(self._last_reports.items(), key=lambda report: report[1])
        shown = sorted(longest_ago[:_CLIENTS_SHOWN])
        reports = "  ".join(f"{self._name_of(client)}: {round_}" for client, round_ in shown)
        each = "each client" if len(shown) == len(longest_ago) else f"{len(shown)} silent clients"
        clients = Text(f"round of the last report of {each}: {reports or 'none yet'}", "dim")
        return Group(rounds, clients, *self._lines)

    def _name_of(self, client: int) -> str:
        """Return the name of a client; its index if it has no key."""
        return self._keys.name_of(client) or str(client)

    def _round_line(self, event: dict[str, Any]) -> str:
        """Return the event of a round as a line of text."""
        loss = event.get("loss")
        loss_text = f"loss {loss:.4f}, " if loss is not None else ""
        reporting = sorted(map(int, event["clients"]))
        clients = ",".join(map(self._name_of, reporting[:_CLIENTS_SHOWN]))
        if len(reporting) > _CLIENTS_SHOWN:
            clients += f" and {len(reporting) - _CLIENTS_SHOWN} more"
        return (
            f"round {event['round']}: {loss_text}{event['reports']} reports from "
            f"{clients or 'no client'}, {len(event['refused'])} refused, "
            f"{event['bytes_up']} bytes up, {event['bytes_down']} bytes down, "
            f"digest {event['digest'][:16]}" + (f", {event['problem']}" if event["problem"] else "")
        )
