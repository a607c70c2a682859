"""What `samara server up` shows: a live view on a terminal, plain lines elsewhere."""

from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from server.live.journal import JOURNAL_FILE
from server.store import METRICS_FILE
from shared.events import EventFollower
from shared.result import RESULT_FILE

_ROUNDS_SHOWN = 12
_LINES_SHOWN = 8


class Watch:
    """Follows the files of a run and shows what is new; a context manager."""

    def __init__(self, run: Path, console: Console) -> None:
        self._console, self._run = console, run
        self._journal, self._metrics = (
            EventFollower(run / JOURNAL_FILE),
            EventFollower(run / METRICS_FILE),
        )
        self._journal.skip_existing()
        if not console.is_terminal:
            self._metrics.skip_existing()
        self._rounds: deque[dict[str, Any]] = deque(maxlen=_ROUNDS_SHOWN)
        self._lines: deque[Text] = deque(maxlen=_LINES_SHOWN)
        self._devices: dict[str, int] = {}
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

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

    def say(self, text: str, style: str = "") -> None:
        """Show a line."""
        if self._live:
            self._lines.append(Text(text, style))
        else:
            self._console.print(Text(text, style), soft_wrap=True)

    def finished(self) -> bool:
        """Whether the run has its result."""
        return (self._run / RESULT_FILE).exists()

    def refresh(self) -> None:
        """Show what the run wrote since the last call."""
        for event in self._metrics.read_new():
            if event.get("event") != "round":
                continue
            self._rounds.append(event)
            for client in event.get("clients", {}):
                self._devices[client] = event["round"]
            if not self._live:
                self.say(_line(event))
        for line in self._journal.read_new():
            if line.get("event") != "round":
                style = "yellow" if line.get("level") in ("warning", "error") else ""
                self.say(str(line.get("message", "")), style)
        if self._live:
            self._live.update(self._view(), refresh=True)

    def _view(self) -> Group:
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
        reports = "  ".join(f"{d}: {n}" for d, n in sorted(self._devices.items()))
        clients = Text(f"last report of each client, by round: {reports or 'none yet'}", "dim")
        return Group(rounds, clients, *self._lines)


def _line(event: dict[str, Any]) -> str:
    loss = event.get("loss")
    said = f"loss {loss:.4f}, " if loss is not None else ""
    return (
        f"round {event['round']}: {said}{event['reports']} reports from "
        f"{','.join(event['clients']) or 'nobody'}, {len(event['refused'])} refused, "
        f"{event['bytes_up']} bytes up, {event['bytes_down']} bytes down, "
        f"digest {event['digest'][:16]}" + (f", {event['problem']}" if event["problem"] else "")
    )
