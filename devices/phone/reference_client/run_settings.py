"""The settings of a phone's runs: they come with instructions, and are kept on its disk.

The run id is a hash of them with the program's layout and model, so that nobody between server and
phone can change them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.client.protocol.session import Instruction
from samara.client.protocol.session_store import SessionFolder
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.frames.instructions import GLOBAL_TRACK
from samara.shared.kept_file import KeptFile
from samara.shared.run_id import hash_identity
from samara.shared.run_terms import RunTerms

SETTINGS_FILE = "settings.json"
"""Name of the file in a run's folder."""
MAX_SETTINGS_BYTES = 2**16


class _SettingsFile(KeptFile[bytes]):
    """The settings of a run, in its folder; nothing before they came."""

    name = SETTINGS_FILE
    damaged = (
        "{file}: cannot be read: {problem}; delete it, and the settings come again with the next "
        "instruction"
    )
    empty = bytes

    def _encode(self, content: bytes) -> bytes:
        return content

    def _decode(self, data: bytes) -> bytes:
        return data


class RunSettings:
    """The settings of the runs that a phone takes part in.

    Args:
        home: folder of the phone.
        layout_hash: hash of the program's layout, 32 bytes.
        model_id: model id of its base model, 32 bytes.
        owners: settings that the phone's owner has decided in place of a run's, by dotted key.
    """

    def __init__(
        self,
        home: Path,
        layout_hash: bytes,
        model_id: bytes,
        owners: Mapping[str, Any] | None = None,
    ) -> None:
        self._home, self._sessions, self._owners = home, SessionFolder(home), owners
        self._layout_hash, self._model_id = layout_hash, model_id

    def take(self, instruction: Instruction, settings: bytes) -> tuple[bytes, RunTerms]:
        """Return id and terms of a run from its settings, which are on the disk from now on.

        Args:
            instruction: instruction of the run, or of the phone's cluster in it.
            settings: settings that are part of the run id, sorted JSON.

        Raises:
            ConfigError: if they are not those of the run, or ask for what phones cannot do.
            ScenarioError: if they lack what a run asks of a client.
            TrainerError: if they cannot be written, or there are too many personal models for
                another run.
        """
        named, terms = self._named(settings), self._read(settings)
        terms.check_run(named, instruction.run_id, instruction.track)
        file = self._file(instruction.run_id)
        if file.read() != settings:
            self._sessions.make_room(instruction.run_id)
            file.write(settings)
        return named, terms

    def find(self, run_id: bytes) -> bytes:
        """Return the settings that came with an earlier instruction of a run; nothing if none did.

        Raises:
            TrainerError: if they cannot be read.
        """
        return self._file(run_id).read()

    def latest(self) -> tuple[bytes, RunTerms] | None:
        """Return id and terms of the run whose session was written last; None without any.

        Of a run with clusters the id is that of the phone's cluster, in which its session is.
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
        except SamaraError:  # those of a later instruction are read again
            return None

    def read_terms(self, settings: bytes) -> RunTerms:
        """Return the terms in settings that no run id is known for yet.

        Raises:
            ConfigError: if they are too long.
            ScenarioError: if they lack what a run asks of a client.
        """
        if len(settings) > MAX_SETTINGS_BYTES:
            raise ConfigError(f"the run's settings have over {MAX_SETTINGS_BYTES} bytes")
        return RunTerms.decode(settings, self._owners)

    def _file(self, run_id: bytes) -> _SettingsFile:
        return _SettingsFile(self._sessions.folder_of(run_id))

    def _named(self, settings: bytes) -> bytes:
        return hash_identity(settings, self._layout_hash, self._model_id)

    def _read(self, settings: bytes) -> RunTerms:
        terms = self.read_terms(settings)
        if terms.method == "partial":
            raise ConfigError(
                "method partial: a phone's program moves all numbers or none; choose another method"
            )
        return terms


def _time_of(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
