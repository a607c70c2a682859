"""A client's sessions on disk: one file per run, which a crash leaves whole."""

import hashlib
import struct
from contextlib import suppress
from pathlib import Path

from samara.client.protocol.session import Session
from samara.shared.errors import CatchUpError, FrameError
from samara.shared.kept_file import KeptFile
from samara.shared.wire import Reader

SESSION_FILE = "session"
"""Name of the file in a run's folder."""
SESSIONS_KEPT = 8
"""Number of runs, the latest ones, whose sessions are kept. In an older run the state is rebuilt
from the server's ledger."""
_MAGIC = b"SMSE\x01"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")


class _SessionFile(KeptFile[Session | None]):
    """The session of a run, in its folder; a damaged one is rebuilt from the server's ledger."""

    name = SESSION_FILE
    damaged = "{file}: {problem}; the session begins anew"
    is_needed = False

    def _encode(self, content: Session | None) -> bytes:
        return encode_session(content) if content else b""

    def _decode(self, data: bytes) -> Session:
        return decode_session(data)


class SessionFolder:
    """A client's sessions in files, one per run.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_session(self, run_id: bytes) -> Session | None:
        """Return the session of a run; None if it has no file, or only a damaged one."""
        return _SessionFile(self.folder_of(run_id)).read()

    def write_session(self, run_id: bytes, session: Session) -> None:
        """Keep the session of a run; it is on the disk when this returns.

        Raises:
            TrainerError: if the file cannot be written.
        """
        folder = self.folder_of(run_id)
        is_new = not (folder / SESSION_FILE).exists()
        _SessionFile(folder).write(session)
        if is_new:
            with suppress(OSError):  # they are deleted with those of a later run
                self._delete_old()

    @property
    def has_sessions(self) -> bool:
        """Return whether there is a session of any run."""
        return any(self._folder.glob(f"runs/*/{SESSION_FILE}"))

    def folder_of(self, run_id: bytes) -> Path:
        """Return the folder of a run's files."""
        return self._folder / "runs" / run_id.hex()

    def _delete_old(self) -> None:
        """Delete the sessions of old runs, but not their personal ledgers."""
        files = self._folder.glob(f"runs/*/{SESSION_FILE}")
        ordered = sorted(files, key=lambda file: file.stat().st_mtime)
        for file in ordered[:-SESSIONS_KEPT]:
            file.unlink(missing_ok=True)


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
