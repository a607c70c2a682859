"""The settings of a phone's runs, which arrive with instructions and are stored on disk.

The run id is a hash of the settings with the program's layout and model, so nobody between server
and phone can change them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.client.protocol.session import Instruction
from samara.client.protocol.session_store import SessionFolder
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK
from samara.shared.protocol.run_id import hash_identity
from samara.shared.storage.kept_file import KeptFile
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.terms.run_terms import RunTerms

SETTINGS_FILE = "settings.json"
"""File in a run's folder with the run's settings."""
MAX_SETTINGS_BYTES = 2**16
_OBJECTIVES = ("cross-entropy", PROFILED)


class _SettingsFile(KeptFile[bytes]):
    """File with the settings of a run, in the run's folder; empty before they arrive."""

    name = SETTINGS_FILE
    damaged = (
        "{file}: the run's settings cannot be read: {problem}; delete the file, and the next "
        "instruction brings the settings again"
    )
    empty = bytes

    def _encode(self, content: bytes) -> bytes:
        return content

    def _decode(self, data: bytes) -> bytes:
        return data


class RunSettings:
    """The settings of the runs in which a phone takes part.

    Args:
        home: folder of the phone.
        layout_hash: hash of the program's layout, 32 bytes.
        model_id: model id of the program's base model, 32 bytes.
        owners: settings that the owner decides instead of the run, by dotted key.
    """

    def __init__(
        self,
        home: Path,
        layout_hash: bytes,
        model_id: bytes,
        owners: Mapping[str, Any] | None = None,
    ) -> None:
        self._home = home
        self._sessions = SessionFolder(home)
        self._owners = owners
        self._layout_hash = layout_hash
        self._model_id = model_id

    def take(self, instruction: Instruction, settings: bytes) -> tuple[bytes, RunTerms]:
        """Store a run's settings on disk, and return its id and terms.

        Args:
            instruction: instruction of the run, or of the phone's cluster in it.
            settings: the run's settings as sorted JSON; the run id is a hash of them.

        Raises:
            ConfigError: if the settings do not match the run, or ask for something that phones
                cannot do.
            ScenarioError: if a term of the run is missing.
            TrainerError: if the settings cannot be written, or if the phone already has the maximum
                number of personal models.
        """
        named = self._named(settings)
        terms = self._read(settings)
        terms.check_run(named, instruction.run_id, instruction.track)
        file = self._file(instruction.run_id)
        if file.read() != settings:
            self._sessions.make_room(instruction.run_id)
            file.write(settings)
        return named, terms

    def find(self, run_id: bytes) -> bytes:
        """Return the stored settings of a run; empty if none arrived with an earlier instruction.

        Raises:
            TrainerError: if the settings cannot be read.
        """
        return self._file(run_id).read()

    def latest(self) -> tuple[bytes, RunTerms] | None:
        """Return the id and terms of the run whose session was written last; None without a run.

        In a run with clusters, the id is that of the phone's cluster.
        """
        sessions = self._home.glob(f"runs/{'[0-9a-f]' * 16}/session")
        folders = [file.parent for file in sorted(sessions, key=_time_of, reverse=True)]
        if not folders:
            return None
        run_id = bytes.fromhex(folders[0].name)
        try:
            settings = self._file(run_id).read()
            terms = self._read(settings)
            terms.check_run(self._named(settings), run_id, GLOBAL_TRACK)
            return run_id, terms
        except SamaraError:  # the next instruction brings the settings again
            return None

    def read_terms(self, settings: bytes) -> RunTerms:
        """Return the terms that settings describe, without a check against a run id.

        Raises:
            ConfigError: if the settings are too long.
            ScenarioError: if a term of the run is missing.
        """
        if len(settings) > MAX_SETTINGS_BYTES:
            raise ConfigError(f"the run's settings have more than {MAX_SETTINGS_BYTES} bytes")
        return RunTerms.decode(settings, self._owners)

    def _file(self, run_id: bytes) -> _SettingsFile:
        return _SettingsFile(self._sessions.folder_of(run_id))

    def _named(self, settings: bytes) -> bytes:
        return hash_identity(settings, self._layout_hash, self._model_id)

    def _read(self, settings: bytes) -> RunTerms:
        terms = self.read_terms(settings)
        if terms.method == "partial":
            raise ConfigError(
                "method partial: a phone's program trains all numbers or none; choose another "
                "method"
            )
        if terms.objective not in _OBJECTIVES:
            raise ConfigError(
                f"objective {terms.objective}: a phone's program trains the cross-entropy, plain "
                "or profiled; set objective to cross-entropy"
            )
        return terms


def _time_of(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
