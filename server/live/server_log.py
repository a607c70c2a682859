"""The server's log messages as JSON lines in the run's folder, for people and for programs."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from samara.shared.storage.files import write_durably

LOG_FILE = "log.jsonl"
REFUSED_EVENT = "refused"
"""Event kind of a refused client; such a line has the client's index as ``client``."""
_MAX_LOG_BYTES = 8 * 2**20
"""Length in bytes at which a log's content moves to a second file, which is overwritten."""


class _JsonLinesHandler(logging.FileHandler):
    """A handler that writes each record as a JSON object: time, level, message, event kind."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        event = getattr(record, "event", {})
        kept = ("event", "client") if event.get("event") == REFUSED_EVENT else ("event",)
        return json.dumps(line | {key: event[key] for key in kept if event.get(key) is not None})


@contextmanager
def write_server_log(folder: Path) -> Iterator[None]:
    """Write all log messages of the server in a ``with`` block to `LOG_FILE`.

    A line that cannot be written, for example because the disk is full, is dropped without an
    error. The log therefore never ends a run.

    Args:
        folder: folder of the run; created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("samara.server")
    handler = _JsonLinesHandler(folder / LOG_FILE, encoding="utf-8")
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def limit_log(log: Path) -> None:
    """Move the content of a long log to a second file, overwriting the second file.

    The log's file becomes empty but is not replaced, so that processes can continue to append.
    Lines that are written during the copy may be lost.

    Args:
        log: file that processes append to; it may be missing.
    """
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        with log.open("r+b") as content:
            size = content.seek(0, os.SEEK_END)
            content.seek(max(0, size - _MAX_LOG_BYTES))
            write_durably(log.with_name(f"{log.name}.1"), content.read())
            content.truncate(0)
