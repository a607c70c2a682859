"""Exceptions of Samara, and the codes by which a client's refusal names them.

Every message says what was wrong, where, and what to do about it; the command line prints it
without a traceback and exits with status 1.
"""

import errno
from enum import IntEnum
from typing import ClassVar


class RefusalCode(IntEnum):
    """The kind of a problem for which a client refuses an instruction.

    Codes are part of the frame format (docs/reference/wire.md): a number is never given another
    meaning.
    """

    UNKNOWN = 0
    SETTINGS = 1
    DATA = 2
    TASK = 3
    MODEL = 4
    FRAME = 5
    RANGE = 6
    FILE = 7
    CATCH_UP = 8
    LAYOUT = 9
    TRAINING = 10
    TRAINER = 11
    DEVICE = 12
    PAUSED = 13
    CODE = 14
    MISSING_BLOB = 15
    SCALARS = 16
    SCENARIO = 17
    BATCH = 18
    EVALUATION = 19
    KEY = 20
    INDEX = 21
    REVOKED = 22
    HIDDEN = 23
    BUDGET = 24
    MASKING = 25
    DISK = 26


_DISK_PROBLEMS = {
    errno.ENOSPC: 1,
    errno.EDQUOT: 2,
    errno.EFBIG: 3,
    errno.EROFS: 4,
    errno.EIO: 5,
}
"""Problems of a disk, by the numbers that refusals have for them."""


class SamaraError(Exception):
    """The base class of everything that Samara raises on purpose.

    Args:
        message: what was wrong, where, and what to do; it never leaves the machine in a frame.
        numbers: two numbers for the server, of which docs/reference/wire.md says what they are for
            each code; 0 where a code has none.
    """

    refusal_code: ClassVar[RefusalCode] = RefusalCode.UNKNOWN
    """The code of a client's refusal for this reason; every subclass names its own."""

    exit_status: ClassVar[int] = 1
    """The exit status of a command that ends with this error."""

    def __init__(self, message: str = "", numbers: tuple[int, int] = (0, 0)) -> None:
        super().__init__(message)
        self.numbers = numbers


class ConfigError(SamaraError):
    """A setting, a scenario file or a combination of settings is wrong."""

    refusal_code = RefusalCode.SETTINGS


class DataError(SamaraError):
    """A data file, a row of it, or a partition of it cannot be used."""

    refusal_code = RefusalCode.DATA


class TaskError(SamaraError):
    """A task file is wrong or does not fit the model's tokenizer."""

    refusal_code = RefusalCode.TASK


class ModelError(SamaraError):
    """A model folder cannot be loaded or lacks what an adapter needs."""

    refusal_code = RefusalCode.MODEL


class FrameError(SamaraError):
    """Bytes from the network are not a valid frame."""

    refusal_code = RefusalCode.FRAME


class ReplayError(SamaraError):
    """Coefficients do not fit the exact range of a state; the state is unchanged."""

    refusal_code = RefusalCode.RANGE


class LedgerError(SamaraError):
    """A ledger file is damaged, belongs to another run, or is in use by another process."""

    refusal_code = RefusalCode.FILE


class DiskError(LedgerError):
    """A disk takes no more, or none of what is written to it.

    Its first number says which problem: 1 for no space, 2 for a quota, 3 for a file's size, 4 for
    a disk that is read only, 5 for an error of input or output.
    """

    refusal_code = RefusalCode.DISK


def find_disk_error(error: BaseException) -> DiskError | None:
    """Return an error that names a disk as its reason, with the text of the one that was raised.

    Args:
        error: what was raised, whose causes are looked at too; None is returned if it is no
            problem of a disk.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DiskError):
            return cause
        if isinstance(cause, OSError) and (number := _DISK_PROBLEMS.get(cause.errno or 0)):
            return DiskError(str(error), (number, 0))
        cause = cause.__cause__
    return None


class ArchiveError(SamaraError):
    """An archive of files is damaged, holds what none may hold, or cannot be read or written."""

    refusal_code = RefusalCode.FILE


class TrajectoryError(SamaraError):
    """A trajectory file is damaged, belongs to another run, or is in use by another process."""

    refusal_code = RefusalCode.FILE


class ReportError(SamaraError):
    """A report does not answer the instruction of its round; only a server raises this."""

    refusal_code = RefusalCode.UNKNOWN


class BlobError(SamaraError):
    """A blob is too large, has another hash than its name, or cannot be stored."""

    refusal_code = RefusalCode.FILE


class MissingBlobError(SamaraError):
    """A file that the run's settings name by its hash is not on this machine.

    Its numbers are the first 4 bytes of the hash, big-endian, and the bytes that have arrived.
    """

    refusal_code = RefusalCode.MISSING_BLOB


class CatchUpError(SamaraError):
    """A client cannot reach the state that an instruction begins with.

    Its numbers are the round that the instruction begins after and the round that was reached.
    """

    refusal_code = RefusalCode.CATCH_UP


class LayoutError(SamaraError):
    """An instruction is for another layout than the client's.

    Its numbers are the first 4 bytes, big-endian, of the client's and the instruction's layout
    hash.
    """

    refusal_code = RefusalCode.LAYOUT


class TrainingError(SamaraError):
    """A training step cannot be taken, for example because a loss is not finite.

    Its first number is the local step, counted from 1; 0 if the error concerns no single one.
    """

    refusal_code = RefusalCode.TRAINING


class TrainerError(SamaraError):
    """The resident trainer of this device cannot be reached, or fails."""

    refusal_code = RefusalCode.TRAINER


class QuestionError(SamaraError):
    """A question to this device's models cannot be answered; no server hears of it."""

    refusal_code = RefusalCode.UNKNOWN


class UnknownModelError(QuestionError):
    """A question is for a model or a run that this device does not have."""

    refusal_code = RefusalCode.UNKNOWN


class BusyError(SamaraError):
    """A question is refused because as many are open as the device answers at a time."""

    refusal_code = RefusalCode.UNKNOWN


class DeviceError(SamaraError):
    """A property of this machine keeps it from taking part, or from simulating a device."""

    refusal_code = RefusalCode.DEVICE


class RejectedError(DeviceError):
    """The server turns this client away for good; a restart would not help."""

    refusal_code = RefusalCode.DEVICE
    exit_status = 77  # EX_NOPERM of sysexits.h, which the systemd unit does not restart


class InvitationError(DeviceError):
    """A device cannot join a run by an invitation."""

    refusal_code = RefusalCode.DEVICE


class CodeError(DeviceError):
    """The server's version of Samara asks for what the installed one does not know."""

    refusal_code = RefusalCode.CODE


class ScalarLimitError(SamaraError):
    """A report would hold more scalars than the owner of the examples allows.

    Its numbers are the scalars that the instruction asks for and those that may still be sent
    (docs/guides/privacy.md).
    """

    refusal_code = RefusalCode.SCALARS


class ScenarioError(SamaraError):
    """A signed scenario cannot be used, or a server asks for what no signed scenario says."""

    refusal_code = RefusalCode.SCENARIO


class BatchLimitError(SamaraError):
    """A step or an evaluation would use fewer examples than their owner allows.

    Its numbers are the examples that it would use and the fewest that are allowed
    (docs/guides/privacy.md).
    """

    refusal_code = RefusalCode.BATCH


class BudgetError(SamaraError):
    """A report would cost more privacy than the owner of the examples allows."""

    refusal_code = RefusalCode.BUDGET


class MaskingError(SamaraError):
    """Secure aggregation is not asked for as it is done, or what masks follow from is not sound."""

    refusal_code = RefusalCode.MASKING


class HiddenRefusalError(SamaraError):
    """A client does not take part, for a reason that may tell of its examples and stays its own."""

    refusal_code = RefusalCode.HIDDEN


class ClientKeyError(SamaraError):
    """A client's key is not registered in a run, was revoked, or is another client's."""

    refusal_code = RefusalCode.KEY


class RevokedKeyError(ClientKeyError):
    """A client's key was revoked, which is for good."""

    refusal_code = RefusalCode.REVOKED


class TakenIndexError(SamaraError):
    """Another node is already the client that a hello names; only a server raises this."""

    refusal_code = RefusalCode.INDEX


class EvaluationLimitError(SamaraError):
    """An evaluation on training examples, or a second personal comparison of a run, was asked."""

    refusal_code = RefusalCode.EVALUATION


class PausedError(SamaraError):
    """The limits that a device's owner set (temperature, mains, idle) allow no work at present."""

    refusal_code = RefusalCode.PAUSED
