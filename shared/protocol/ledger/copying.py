"""Copying of a ledger, even while a process writes it."""

import shutil
import time
from pathlib import Path

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import (
    damage_explained,
    read_header,
    segment_paths,
    snapshot_paths,
)
from samara.shared.protocol.ledger.recovery import Recovery, recover

_TRIES, _PAUSE_SECONDS = 8, 0.25
"""Number of attempts to copy a ledger, and seconds between them.

An attempt fails if the writer compacts the ledger and so deletes files meanwhile.
"""


def copy_ledger(source: Path, target: Path, layout: Layout) -> Recovery:
    """Copy a ledger up to its last whole record, and return notes on the damage that was repaired.

    Args:
        source: folder of a ledger.
        target: folder of the copy, which is created.
        layout: layout of the adapter.

    Raises:
        LedgerError: if the ledger has damage that opening cannot repair.
        OSError: if a file cannot be read or written.
    """
    tries = 0
    while True:
        tries += 1
        try:
            target.mkdir()
            for path in snapshot_paths(source).values():
                shutil.copy2(path, target)
            # Segments are listed after the snapshots, so that records lead to all copied snapshots.
            for path in segment_paths(source).values():
                shutil.copy2(path, target)
            with damage_explained(target):
                return recover(target, read_header(target), layout)
        except (LedgerError, FileNotFoundError) as error:
            if tries == _TRIES or not target.is_dir():
                if isinstance(error, LedgerError):
                    raise type(error)(str(error).replace(f"{target}", f"{source}")) from error
                raise
            shutil.rmtree(target)
            time.sleep(_PAUSE_SECONDS)
