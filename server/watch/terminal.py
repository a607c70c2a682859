"""The live terminal view of `samara server status --watch`."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samara.server.live.run_status import AWAY, ClientStatus, RoundStatus, RunStatus
from samara.server.live.status import StatusReader
from samara.server.watch.client_order import clients_to_show, link_of, power_of, reason_of
from samara.shared.errors import SamaraError

_SECONDS_BETWEEN = 1.0
_ROUNDS_SHOWN, _MESSAGES_SHOWN, _LEAST_CLIENTS = 5, 4, 3
_OTHER_LINES = 13
"""Number of lines for title, curves, headings and spaces, without rounds, messages and clients."""
_WIDE = 100
"""Minimum line width for complete tables, in characters."""
_BARS = "▁▂▃▄▅▆▇█"
_CURVE_LENGTH = 48
_STATE_STYLES = {"refused": "red", "resting": "yellow", "revoked": "dim", "finished": "green"}
_LEVEL_STYLES = {"warning": "yellow", "error": "red"}


def watch(run: Path, console: Console) -> None:
    """Draw the status of a run every second until the run is finished, or until Ctrl-C.

    Without a terminal, the status is drawn once.

    Args:
        run: folder of the run.
        console: console to draw on.

    Raises:
        SamaraError: if the folder holds no run.
    """
    reader = StatusReader(run)
    status = reader.read()
    if not console.is_terminal:
        height = len(status.clients) + _least_height()
        console.print(render_status(status, height, console.size.width))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_fitting(status, console), refresh=True)
            if status.is_finished:
                break
            time.sleep(_SECONDS_BETWEEN)
            try:
                status = reader.read()
            # compaction may have deleted a segment during the read; the next read succeeds
            except SamaraError:
                continue
    console.print(_fitting(status, console))


def _fitting(status: RunStatus, console: Console) -> RenderableType:
    return render_status(status, console.size.height, console.size.width)


def _least_height() -> int:
    return _OTHER_LINES + _ROUNDS_SHOWN + _MESSAGES_SHOWN


def render_status(status: RunStatus, height: int, width: int) -> RenderableType:
    """Render a run's status.

    Args:
        status: the status.
        height: number of available lines. The view states the number of clients that do not fit.
        width: characters per line. A narrow view omits bytes, and the clients' reports and power.
    """
    room = max(height - _least_height(), _LEAST_CLIENTS)
    return Group(
        _title(status),
        *_curves(status),
        Text(),
        _rounds(status, width >= _WIDE),
        Text(),
        _clients(status, room, width >= _WIDE),
        *_messages(status),
    )


def _title(status: RunStatus) -> Text:
    planned = f" of {status.planned_rounds:,}" if status.planned_rounds else ""
    title = Text.assemble(
        (status.name, "bold"),
        "  ",
        (status.state, _STATE_STYLES.get(status.state, "cyan")),
        f"  round {status.round:,}{planned}",
        overflow="ellipsis",
        no_wrap=True,
    )
    unseen = [] if status.is_finished else ["no server in the last minute"]
    parts = unseen if status.connected is None else [f"SuperNodes: {status.connected:,}"]
    parts += [f"{status.failures:,} failures"] if status.failures else []
    parts += [f"ε {status.epsilon:.3g}"] if status.epsilon is not None else []
    parts += [f"{byte_text(status.bytes_up)} up, {byte_text(status.bytes_down)} down"]
    if status.digest:
        parts.append(f"digest {status.digest[:16]}")
    title.append("\n" + "   ".join(parts), "dim")
    return title


def _curves(status: RunStatus) -> list[Text]:
    """Return the curves of loss and of each column's accuracy, with their last values."""
    losses = [each.loss for each in status.rounds if each.loss is not None]
    lines = [_curve("loss", losses, f"{losses[-1]:.4f}")] if losses else []
    for name, evaluations in status.curves.items():
        last = evaluations[-1]
        text = f"{last.accuracy:.1%} after round {last.round}"
        lines.append(_curve(f"accuracy, {name}", [each.accuracy for each in evaluations], text))
    return lines


def _curve(name: str, values: Sequence[float], last: str) -> Text:
    text = Text(f"{name:<22} ", no_wrap=True, overflow="ellipsis")
    text.append(sparkline(values[-_CURVE_LENGTH:]), "cyan")
    return text.append(f" {last}", "bold")


def sparkline(values: Sequence[float]) -> str:
    """Return a line of bars whose heights represent the values, from lowest to highest."""
    low = min(values)
    high = max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _rounds(status: RunStatus, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    byte_columns = ("up", "down") if is_wide else ()
    for name in ("round", "loss", "reports", "refused", "absent", *byte_columns):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ended", no_wrap=True, overflow="ellipsis")
    for each in status.rounds[-_ROUNDS_SHOWN:]:
        table.add_row(
            f"{each.round:,}",
            "-" if each.loss is None else f"{each.loss:.4f}",
            f"{each.reports:,}",
            f"{each.refused:,}",
            f"{each.absent:,}",
            *_byte_cells(each, is_wide),
            Text(f"{clock_text(each.time)} {each.problem}".strip(), overflow="ellipsis"),
        )
    if not status.rounds:
        table.add_row("-", *[""] * (4 + len(byte_columns)), "no round yet")
    return table


def _clients(status: RunStatus, room: int, is_wide: bool) -> Table:
    """Return a table of the clients, in at most `room` rows; clients with problems come first."""
    ordered = clients_to_show(status)
    left = len(ordered) - room
    shown = ordered if left <= 0 else ordered[: room - 1]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    has_power = is_wide and any(client.seconds is not None for _, client in ordered)
    for name in ("client", "state", "link", "last report"):
        table.add_column(name, no_wrap=True)
    for name in ("reports", "failed", "up", "down") if is_wide else ("failed",):
        table.add_column(name, justify="right", no_wrap=True)
    if has_power:
        table.add_column("cost of a round", no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for number, client in shown:
        last = f"{client.last_round:,}, {clock_text(client.last_report_time)}"
        table.add_row(
            Text(client.name or str(number), overflow="ellipsis"),
            Text(client.state, _STATE_STYLES.get(client.state, "")),
            Text(link_of(client), "yellow" if client.link == AWAY else ""),
            last if client.last_round else "-",
            *([f"{client.reports:,}"] if is_wide else []),
            f"{client.failures:,}",
            *_byte_cells(client, is_wide),
            *([power_of(client)] if has_power else []),
            Text(reason_of(client), overflow="ellipsis"),
        )
    if left > 0:
        table.add_row(Text(f"and {len(ordered) - len(shown):,} more", "dim"))
    return table


def _byte_cells(of: RoundStatus | ClientStatus, is_wide: bool) -> list[str]:
    return [byte_text(of.bytes_up), byte_text(of.bytes_down)] if is_wide else []


def _messages(status: RunStatus) -> list[Text]:
    lines = [Text(status.waits_for, "yellow")] if status.waits_for else []
    for message in status.messages[-_MESSAGES_SHOWN:]:
        style = _LEVEL_STYLES.get(message.level, "dim")
        text = f"{clock_text(message.time)} {message.text}"
        lines.append(Text(text, style, no_wrap=True, overflow="ellipsis"))
    return [Text(), *lines] if lines else []


def clock_text(moment: str) -> str:
    """Return the UTC time of day of an ISO 8601 time; empty for an empty text."""
    return moment[11:19]


def byte_text(count: int) -> str:
    """Format a number of bytes with decimal units."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
