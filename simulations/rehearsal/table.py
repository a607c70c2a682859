"""Table of a rehearsal's report for the terminal."""

from rich.table import Table

from samara.simulations.rehearsal.report import ClientReport, RehearsalReport, relative_error


def report_table(report: RehearsalReport) -> Table:
    """Return the table of a rehearsal, with one row per client."""
    table = Table(title=f"{report.rounds} rounds; predicted → measured")
    for column in ("client", "MiB", "s per round", "bytes up", "bytes down", "state"):
        table.add_column(column, justify="left" if column in ("client", "state") else "right")
    for client in report.clients:
        table.add_row(
            client.name,
            _pair(client.predicted_memory / 2**20, client.memory / 2**20, "{:,.0f}"),
            _pair(client.predicted_seconds, client.seconds, "{:.2f}"),
            _bytes(client.frames_up, client.up, client.answers),
            _bytes(client.frames_down, client.down, client.answers),
            _state(client),
        )
    return table


def _pair(predicted: float, happened: float | None, form: str) -> str:
    error = relative_error(predicted, happened)
    if happened is None or error is None:
        return f"{form.format(predicted)} → –"
    return f"{form.format(predicted)} → {form.format(happened)} ({error:+.0%})"


def _bytes(predicted: int, happened: int | None, answers: int) -> str:
    if happened is None:
        return f"{predicted:,} → –"
    return f"{predicted:,} → {happened // max(1, answers):,}"


def _state(client: ClientReport) -> str:
    if client.died:
        return client.died
    if not client.round:
        return "did not take part"
    return f"{client.digest[:8]} after round {client.round}" + (
        "" if client.agrees else ", but the ledger has another digest"
    )
