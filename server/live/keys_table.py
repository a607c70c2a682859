"""A run's client keys as a table for the terminal."""

from rich.table import Table

from samara.server.live.keys import ClientKeys


def make_keys_table(keys: ClientKeys) -> Table:
    """Return a table with a row for each undamaged key."""
    table = Table("name", "client", "fingerprint", "created", "revoked")
    for key in keys.read_all():
        table.add_row(
            key.name, str(key.client), key.fingerprint[:16], key.created, key.revoked or "-"
        )
    return table
