"""A client's counts of the rows that went through its model, by run, in a file of its owner's.

The server is not told. The file says what a client has cost its device, and nothing depends on it:
if it is damaged, the counts begin again.
"""

import json
import logging
from collections import Counter
from pathlib import Path

from samara.shared.errors import TrainerError
from samara.shared.files import make_folder, write_durably

log = logging.getLogger("samara.client")

PASSES_FILE = "passes.json"


class PassCounts:
    """The counts in a client's file.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / PASSES_FILE

    def read(self) -> Counter[str]:
        """Return the rows by run id in hex; none if the file is missing or damaged."""
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            return Counter({str(run_id): int(rows) for run_id, rows in content.items()})
        except FileNotFoundError:
            return Counter()
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s: %r; the counts of passes begin again", self._file, error)
            return Counter()

    def add(self, run_id: bytes, rows: int) -> None:
        """Add rows of a run.

        Raises:
            TrainerError: if the file cannot be written.
        """
        if not rows:
            return
        counts = self.read() + Counter({run_id.hex(): rows})
        try:
            make_folder(self._file.parent)
            write_durably(self._file, json.dumps(counts, sort_keys=True, indent=1).encode())
        except OSError as error:
            raise TrainerError(f"{self._file}: cannot be written: {error.strerror}") from error
