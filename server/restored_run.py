"""A file in the folder of a restored run that describes the backup it was restored from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from samara.shared.errors import LedgerError
from samara.shared.storage.files import write_durably

RESTORED_FILE = "restored.json"


@dataclass(frozen=True)
class RestoredRun:
    """The backup from which a run or a cluster continues.

    Attributes:
        time: time of the restore, UTC, ISO 8601.
        taken: time of the backup, UTC, ISO 8601.
        round: last round in the backup's ledger.
        moved: whether the backup was made with `--move`, so that the earlier server ended.
        reached: last round that the earlier server may have begun. The releases up to this round
            were charged to the privacy budget. None without differential privacy.
    """

    time: str
    taken: str
    round: int
    moved: bool
    reached: int | None = None

    def write(self, folder: Path) -> None:
        """Write the record to the folder of a run.

        Raises:
            OSError: if the file cannot be written.
        """
        text = json.dumps(asdict(self), indent=1) + "\n"
        write_durably(folder / RESTORED_FILE, text.encode())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the record in a run's folder; None if the run was not restored.

        Raises:
            LedgerError: if the file is damaged.
        """
        file = folder / RESTORED_FILE
        try:
            restored = cls(**json.loads(file.read_text(encoding="utf-8")))
            if type(restored.round) is not int or type(restored.moved) is not bool:
                raise ValueError("a value has the wrong type")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LedgerError(f"{file}: damaged: {error}; restore the backup again") from error
        return restored
