"""A client's number of rows that went through its model, counted by run.

The counts show the owner the cost for the device. The server never sees them, and no computation
uses them. If the file is damaged, counting starts over.
"""

from collections import Counter
from typing import Any

from samara.shared.storage.kept_file import KeptFile

PASSES_FILE = "passes.json"


class PassCounts(KeptFile[Counter[str]]):
    """The file of a client's row counts, by run id in hex."""

    name = PASSES_FILE
    damaged = "{file}: {problem}; the counts of passes start at 0 again"
    is_needed = False
    empty = Counter

    def add(self, run_id: bytes, rows: int) -> None:
        """Add a number of rows to a run's count.

        Raises:
            TrainerError: if the file cannot be written.
        """
        if rows:
            self.write(self.read() + Counter({run_id.hex(): rows}))

    def _parse(self, value: Any) -> Counter[str]:
        return Counter({str(run_id): int(rows) for run_id, rows in value.items()})
