"""A client's sessions on disk, one file per run, which a crash cannot damage."""

import hashlib
import shutil
import struct
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from samara.client.limits.answered_runs import AnsweredRuns
from samara.client.protocol.session import Session
from samara.shared.errors import CatchUpError, FrameError, TrainerError
from samara.shared.protocol.wire import Reader
from samara.shared.storage.kept_file import KeptFile

SESSION_FILE = "session"
"""Name of the file with the session, in a run's folder."""
VALIDATION_FILE = "validation.json"
"""Name of the file with the losses of the personal model, in a run's folder."""
SESSIONS_KEPT = 8
"""Number of runs without a personal model whose sessions are kept; these are the latest runs.

Runs with and without answers count separately. The state of an older run is rebuilt from the
server's ledger.
"""
MAX_SESSIONS_BYTES = 2**30
"""Maximum total size of these sessions in bytes; runs with and without answers count separately.

The latest session is always kept.
"""
MOST_PERSONAL_RUNS = 32
"""Maximum number of runs with a personal model. At the maximum, no other run can begin."""
_MAGIC = b"SMSE\x01"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")


class _SessionFile(KeptFile[Session | None]):
    """The file of a run's session; a damaged session is rebuilt from the server's ledger."""

    name = SESSION_FILE
    damaged = "{file}: {problem}; the session starts again from round 0"
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
        """Return the session of a run, or None if its file is missing or damaged."""
        return _SessionFile(self.folder_of(run_id)).read()

    def write_session(self, run_id: bytes, session: Session) -> None:
        """Store the session of a run durably.

        Raises:
            TrainerError: if the file cannot be written, or the client already has
                `MOST_PERSONAL_RUNS` personal models.
        """
        folder = self.folder_of(run_id)
        is_new = not (folder / SESSION_FILE).exists()
        self.make_room(run_id)
        _SessionFile(folder).write(session)
        if is_new:
            self._delete_old()

    def make_room(self, run_id: bytes) -> None:
        """Delete files of old runs before the folder of a new run is created.

        Files of a personal model, and records of answers, are never deleted.

        Raises:
            TrainerError: if the client already has `MOST_PERSONAL_RUNS` personal models.
        """
        if self.folder_of(run_id).exists():
            return
        personal = sum(map(_is_personal, self._folder.glob("runs/*")))
        if personal >= MOST_PERSONAL_RUNS:
            raise TrainerError(
                f"{self._folder}: there are already {personal} runs with a personal model, so no "
                "other run can begin; delete runs that are not needed (samara client forget --run "
                "RUN)"
            )
        self._delete_old(SESSIONS_KEPT - 1)

    @property
    def has_sessions(self) -> bool:
        """Return whether at least one run has a session."""
        return any(self._folder.glob(f"runs/*/{SESSION_FILE}"))

    def folder_of(self, run_id: bytes) -> Path:
        """Return the folder of a run's files."""
        return self._folder / "runs" / run_id.hex()

    def _delete_old(self, kept: int = SESSIONS_KEPT) -> None:
        """Delete old sessions of runs with answers, and whole folders of old runs without answers.

        If a folder cannot be deleted now, the next call tries again.

        Args:
            kept: number of latest folders without answers to keep.
        """
        with suppress(OSError):
            folders = [each for each in self._folder.glob("runs/*") if not _is_personal(each)]
            answered = [each for each in folders if _has_answers(each)]
            sessions = [folder / SESSION_FILE for folder in answered]
            for folder in _old((file.parent for file in sessions if file.exists()), SESSIONS_KEPT):
                (folder / SESSION_FILE).unlink(missing_ok=True)
            for folder in _old([each for each in folders if each not in answered], kept):
                shutil.rmtree(folder, ignore_errors=True)


def _has_answers(folder: Path) -> bool:
    """Return whether the client has answered in a run; a damaged file counts as answers."""
    try:
        return AnsweredRuns(lambda _: folder).read(b"").has_answers
    except TrainerError:
        return True


def _is_personal(folder: Path) -> bool:
    """Return whether a run has a personal model, or private rounds are due in it."""
    return (folder / VALIDATION_FILE).exists() or any(folder.glob("clients/*/*"))


def _old(folders: Iterable[Path], kept: int) -> list[Path]:
    """Return the folders of old runs: all except the latest runs.

    The latest runs are at most `kept` runs, with sessions of at most `MAX_SESSIONS_BYTES`. The
    latest run always counts as one of them.
    """
    latest = sorted(folders, key=_time_of, reverse=True)
    sizes = accumulate(map(_session_bytes, latest))
    large = [
        folder for folder, total in zip(latest, sizes, strict=True) if total > MAX_SESSIONS_BYTES
    ]
    return [folder for at, folder in enumerate(latest) if at >= kept or (at and folder in large)]


def _time_of(folder: Path) -> int:
    """Return the modification time of a run's session, ns since 1970.

    Without a session, this is the latest modification time of the run's files.
    """
    session = folder / SESSION_FILE
    files = [session] if session.exists() else folder.iterdir()
    return max((file.stat().st_mtime_ns for file in files), default=0)


def _session_bytes(folder: Path) -> int:
    file = folder / SESSION_FILE
    return file.stat().st_size if file.exists() else 0


def encode_session(session: Session) -> bytes:
    """Return the content of a session file: magic bytes, SHA-256, and the parts."""
    parts = session.to_bytes().values()
    body = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def decode_session(data: bytes) -> Session:
    """Return the session that `encode_session` encoded.

    Raises:
        CatchUpError: if the content is damaged.
    """
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(body).digest():
        raise CatchUpError(
            "the saved session is damaged; no action is needed, because the server sends the "
            "state again"
        )
    reader = Reader(memoryview(body))
    try:
        saved = {name: bytes(reader.take(*reader.fields(_LENGTH))) for name in Session.PARTS}
        if reader.left:
            saved[Session.COMMON] = bytes(reader.take(*reader.fields(_LENGTH)))
        reader.end()
    except FrameError as error:
        raise CatchUpError(
            f"the saved session is damaged ({error}); no action is needed, because the server "
            "sends the state again"
        ) from error
    return Session.from_bytes(saved)
