"""A client's counts of the rows that went through its model, by run, in a file of its owner's.

The server is not told. The file says what a client has cost its device, and nothing depends on it:
if it is damaged, the counts begin again.
"""

from collections import Counter
from typing import Any

from samara.shared.kept_file import KeptFile

PASSES_FILE = "passes.json"


class PassCounts(KeptFile[Counter[str]]):
    """The rows by run id in hex, in a client's file."""

    name = PASSES_FILE
    damaged = "{file}: {problem}; the counts of passes begin again"
    is_needed = False
    empty = Counter

    def add(self, run_id: bytes, rows: int) -> None:
        """Add rows of a run.

        Raises:
            TrainerError: if the file cannot be written.
        """
        if rows:
            self.write(self.read() + Counter({run_id.hex(): rows}))

    def _parse(self, value: Any) -> Counter[str]:
        return Counter({str(run_id): int(rows) for run_id, rows in value.items()})
