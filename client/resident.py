"""The resident trainer: one device's model, loaded once, and what it remembers on disk.

Its folder holds, for every run that the device took part in, ``runs/<run id>`` with the session
and the personal ledger, and how the run is executed. Each is written so that a crash at any point
leaves the old content or the new, and the server is told where the session truly stands.
"""

import hashlib
import json
import logging
import struct
from pathlib import Path
from typing import Any

from client.own import of_device
from client.participant import Participant
from client.session import Session
from client.trainer import Trainer
from shared.config import RunConfig
from shared.errors import CatchUpError, ConfigError, DataError, FrameError, TrainerError
from shared.files import make_folder, write_durably
from shared.frames import Split
from shared.runs import run_id_of
from shared.wire import Reader

log = logging.getLogger("samara.client")

SESSIONS_KEPT = 8
"""Of the latest runs. Whoever comes back to an older one rebuilds its state from the ledger."""
_MAGIC = b"SMSE\x01"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")


class Resident:
    """A device's trainer for one run after the other; one thread uses it.

    Attributes:
        device: index of the device.
        trainer: under the settings of the latest run.
        model_loads: how often a base model was loaded.
    """

    def __init__(self, own: RunConfig, device: int, folder: Path) -> None:
        """Load model, task and data.

        Args:
            own: the device's settings; those of `client.own.OWN_SETTINGS` count.
            device: index.
            folder: where it remembers; made if it is not there.

        Raises:
            SamaraError: if model, task, data or folder cannot be used.
        """
        self.device, self._own, self._folder = device, own, folder
        self._memory = FolderMemory(folder)
        self.trainer, self.model_loads = Trainer(own), 1
        if not len(self.trainer.share(device, 0, Split.TRAIN).labels):
            raise DataError(f"{own.data.path}: no training example; this device has nothing to add")
        self._settings, self._participant = "", self.participant(own)

    def under(self, settings: str) -> Participant:
        """The client under the settings of a run; weights and examples stay as they are.

        Args:
            settings: the run config as it came, a JSON object of dotted keys.

        Raises:
            ConfigError: if they are not sound.
        """
        if settings != self._settings:
            asked = RunConfig.of(_object(settings), "run config")
            self._participant = self.participant(asked)
            self._settings = settings
        return self._participant

    def participant(self, asked: RunConfig) -> Participant:
        """The client under settings of which those of the device are replaced by its own."""
        config = of_device(asked, self._own).model_copy(update={"out": str(self._folder)})
        self.trainer = trainer = self.trainer.under(config)
        run_id = run_id_of(asked, trainer.layout, trainer.model_id)
        own_folder = {"out": str(self._memory.folder_of(run_id))}
        return Participant(
            trainer, config.model_copy(update=own_folder), asked, self.device, 0, self._memory
        )


class FolderMemory:
    """Sessions in files, one per run.

    Args:
        folder: of the device.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def session(self, run_id: bytes) -> Session | None:
        """The session of a run; none if there is no file, or only a damaged one.

        A damaged file costs a rebuild from the server's ledger, and is said.
        """
        file = self._file(run_id)
        try:
            return decode_session(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, CatchUpError) as error:
            log.warning("%s: %s; the session begins anew", file, error)
            return None

    def remember(self, run_id: bytes, session: Session) -> None:
        """Keep the session of a run; it is on the disk when this returns.

        Raises:
            TrainerError: if the disk refuses.
        """
        file = self._file(run_id)
        try:
            begins = not file.exists()
            make_folder(file.parent)
            write_durably(file, encode_session(session))
            if begins:
                self._forget_old()
        except OSError as error:
            raise TrainerError(f"{file}: cannot be written: {error.strerror}") from error

    def folder_of(self, run_id: bytes) -> Path:
        """Of what belongs to a run."""
        return self._folder / "runs" / run_id.hex()

    def _forget_old(self) -> None:
        """Delete the sessions of runs long past; what is private of them stays."""
        files = sorted(self._folder.glob("runs/*/session"), key=lambda file: file.stat().st_mtime)
        for file in files[:-SESSIONS_KEPT]:
            file.unlink(missing_ok=True)

    def _file(self, run_id: bytes) -> Path:
        return self.folder_of(run_id) / "session"


def encode_session(session: Session) -> bytes:
    """A session as a file: mark, SHA-256 of what follows, each part with its length."""
    parts = session.to_bytes().values()
    body = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def decode_session(data: bytes) -> Session:
    """Read what `encode_session` gave.

    Raises:
        CatchUpError: if it is something else.
    """
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(body).digest():
        raise CatchUpError("the saved session is damaged")
    reader = Reader(memoryview(body))
    try:
        saved = {name: bytes(reader.take(*reader.fields(_LENGTH))) for name in Session.PARTS}
        reader.end()
    except FrameError as error:
        raise CatchUpError(f"the saved session is damaged: {error}") from error
    return Session.from_bytes(saved)


def _object(settings: str) -> dict[str, Any]:
    try:
        value = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"run config: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("run config: not a JSON object")
    return value
