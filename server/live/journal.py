"""What the server says, as JSON lines in the folder of its run: for people and for machines."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

JOURNAL_FILE = "log.jsonl"


class _JsonLines(logging.FileHandler):
    """One object per record: time, level, message, and the kind of event if it is one."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        event = getattr(record, "event", {}).get("event")
        return json.dumps(line | ({"event": event} if event else {}))


@contextmanager
def journal(folder: Path) -> Iterator[None]:
    """Write down what the server logs while this lasts.

    A full disk loses lines of the journal, which is no reason to end a run.

    Args:
        folder: of the run; made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("samara.server")
    handler = _JsonLines(folder / JOURNAL_FILE, encoding="utf-8")
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
