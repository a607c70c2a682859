"""Copies of a ledger, taken while a process may be writing it."""

import shutil
import time
from pathlib import Path

from samara.shared.errors import LedgerError
from samara.shared.layout import Layout
from samara.shared.ledger.reading import read_header, segment_paths, snapshot_paths
from samara.shared.ledger.recovery import Recovery, recover

_TRIES, _PAUSE_SECONDS = 8, 0.25
"""A writer that compacts the ledger deletes files while they are copied."""


def copy_ledger(source: Path, target: Path, layout: Layout) -> Recovery:
    """Copy a ledger up to its last whole record; return what its opening would find there.

    Args:
        source: folder of a ledger.
        target: folder of the copy, which is made.
        layout: layout of the adapter.

    Raises:
        LedgerError: if the ledger is damaged so that no opening would repair it.
        OSError: if something cannot be read or written.
    """
    tries = 0
    while True:
        tries += 1
        try:
            target.mkdir()
            for path in snapshot_paths(source).values():
                shutil.copy2(path, target)
            for path in segment_paths(source).values():  # listed later: they lead to the snapshots
                shutil.copy2(path, target)
            return recover(target, read_header(target), layout)
        except (LedgerError, FileNotFoundError):
            if tries == _TRIES or not target.is_dir():
                raise
            shutil.rmtree(target)
            time.sleep(_PAUSE_SECONDS)
