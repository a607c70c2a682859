"""The status of a run and of its clients as a table."""

from rich.table import Table

from samara.server.live.run_status import RunStatus


def make_status_table(status: RunStatus) -> Table:
    """Return a table with a row for each client.

    The table has a column of transports only if a client reports by a stream. It has a column of
    costs only if an owner shares the costs.
    """
    title = f"round {status.round}, digest {status.digest[:16] or '-'}, "
    title += f"{status.bytes_up:,} bytes up, {status.bytes_down:,} bytes down"
    table = Table("client", "has round", "last report", "reports", "failures", title=title)
    table.add_column("bytes up, down")
    by_stream = any(client.wire == "stream" for client in status.clients.values())
    if by_stream:
        table.add_column("wire")
    shares_cost = any(client.cost for client in status.clients.values())
    if shares_cost:
        table.add_column("cost of a round")
    for number, client in status.clients.items():
        name = f"{client.name} ({number})" if client.name else str(number)
        if client.state:
            name += f" {client.state}"
        last = (
            f"{client.last_round}, {client.last_report_time[5:16].replace('T', ' ')}"
            if client.last_round
            else "-"
        )
        table.add_row(
            name,
            str(client.round),
            last,
            str(client.reports),
            str(client.failures),
            f"{client.bytes_up:,}, {client.bytes_down:,}",
            *([client.wire or "-"] if by_stream else []),
            *([client.cost] if shares_cost else []),
        )
    return table
