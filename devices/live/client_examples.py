"""The examples of a client of this machine, for its owner."""

from datetime import UTC, datetime

from rich.table import Table

from client.training.growing_data import GrowingData
from devices.live.settings import ClientSettings
from shared.errors import SamaraError
from shared.tasks.catalog import load_task
from shared.tasks.data import SPLITS

_SHOWN_PROBLEMS = 20


def describe_examples(settings: ClientSettings) -> tuple[Table, str]:
    """Return a table of a client's examples by source and split, and what else is to be said.

    They are read from the disk as the client reads them before its next round.

    Args:
        settings: settings of the client.

    Returns:
        The table; and lines with the time of the newest example that was added, and with the rows
        that are not used.
    """
    table = Table("examples", *SPLITS, title="Examples")
    config = settings.config
    try:
        facts = GrowingData(
            load_task(config.task), config.data, settings.folder, may_delete=False
        ).facts
    except SamaraError as error:
        return table, f"the examples cannot be read: {error}"
    for source in dict.fromkeys(source for source, _ in facts.counts):
        counts = [facts.counts.get((source, split), 0) for split in SPLITS]
        table.add_row(source, *(f"{count:,}" for count in counts))
    lines = []
    if facts.newest:
        newest = datetime.fromtimestamp(facts.newest, UTC)
        lines.append(f"the newest was added at {newest:%Y-%m-%d %H:%M} UTC")
    lines += [f"not used: {problem}" for problem in facts.problems[:_SHOWN_PROBLEMS]]
    if (hidden := len(facts.problems) - _SHOWN_PROBLEMS) > 0:
        lines.append(f"and {hidden:,} more that are not used")
    return table, "\n".join(lines)
