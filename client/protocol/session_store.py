"""A client's sessions on disk: one file per run, which a crash leaves whole."""

import hashlib
import logging
import struct
from pathlib import Path

from samara.client.protocol.session import Session
from samara.shared.errors import CatchUpError, FrameError, TrainerError
from samara.shared.files import make_folder, write_durably
from samara.shared.wire import Reader

log = logging.getLogger("samara.client")

SESSIONS_KEPT = 8
"""Number of runs, the latest ones, whose sessions are kept. In an older run the state is rebuilt
from the server's ledger."""
_MAGIC = b"SMSE\x01"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")


class SessionFolder:
    """A client's sessions in files, one per run.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_session(self, run_id: bytes) -> Session | None:
        """Return the session of a run; None if it has no file, or only a damaged one.

        A damaged file is logged, and the state is rebuilt from the server's ledger.
        """
        file = self._file(run_id)
        try:
            return decode_session(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, CatchUpError) as error:
            log.warning("%s: %s; the session begins anew", file, error)
            return None

    def write_session(self, run_id: bytes, session: Session) -> None:
        """Keep the session of a run; it is on the disk when this returns.

        Raises:
            TrainerError: if the file cannot be written.
        """
        file = self._file(run_id)
        try:
            is_new = not file.exists()
            make_folder(file.parent)
            write_durably(file, encode_session(session))
            if is_new:
                self._delete_old()
        except OSError as error:
            raise TrainerError(f"{file}: cannot be written: {error.strerror}") from error

    @property
    def has_sessions(self) -> bool:
        """Return whether there is a session of any run."""
        return any(self._folder.glob("runs/*/session"))

    def folder_of(self, run_id: bytes) -> Path:
        """Return the folder of a run's files."""
        return self._folder / "runs" / run_id.hex()

    def _delete_old(self) -> None:
        """Delete the sessions of old runs, but not their personal ledgers."""
        files = sorted(self._folder.glob("runs/*/session"), key=lambda file: file.stat().st_mtime)
        for file in files[:-SESSIONS_KEPT]:
            file.unlink(missing_ok=True)

    def _file(self, run_id: bytes) -> Path:
        return self.folder_of(run_id) / "session"


def encode_session(session: Session) -> bytes:
    """Return a session as a file: magic bytes, SHA-256 of the rest, each part with its length."""
    parts = session.to_bytes().values()
    body = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def decode_session(data: bytes) -> Session:
    """Read a file of `encode_session`.

    Raises:
        CatchUpError: if the file is damaged.
    """
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(body).digest():
        raise CatchUpError("the saved session is damaged")
    reader = Reader(memoryview(body))
    try:
        saved = {name: bytes(reader.take(*reader.fields(_LENGTH))) for name in Session.PARTS}
        if reader.left:
            saved[Session.COMMON] = bytes(reader.take(*reader.fields(_LENGTH)))
        reader.end()
    except FrameError as error:
        raise CatchUpError(f"the saved session is damaged: {error}") from error
    return Session.from_bytes(saved)
