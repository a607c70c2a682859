"""Exceptions of Samara, and the codes that name them in a client's refusal.

Every message names the problem, its place and its remedy. The command line prints the message
without a traceback and exits with the error's `exit_status`.
"""

import errno
from enum import IntEnum
from typing import ClassVar


class RefusalCode(IntEnum):
    """The kind of problem for which a client refuses an instruction.

    Codes are part of the frame format (docs/reference/wire.md); a number never gets another
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
"""For each errno of a disk problem, the number of the problem in refusals."""


class SamaraError(Exception):
    """Base class of all errors that Samara raises on purpose.

    Args:
        message: the problem, its place and its remedy. No frame carries it to another machine.
        numbers: two numbers for the server, 0 if unused. docs/reference/wire.md gives their meaning
            for each code.
    """

    refusal_code: ClassVar[RefusalCode] = RefusalCode.UNKNOWN
    """Code of a client's refusal because of this error, set by each subclass."""

    exit_status: ClassVar[int] = 1
    """Exit status of a command that ends with this error."""

    def __init__(self, message: str = "", numbers: tuple[int, int] = (0, 0)) -> None:
        super().__init__(message)
        self.numbers = numbers


class ConfigError(SamaraError):
    """A setting, a scenario file or a combination of settings is wrong."""

    refusal_code = RefusalCode.SETTINGS


class DataError(SamaraError):
    """A data file, one of its rows, or a partition of it cannot be used."""

    refusal_code = RefusalCode.DATA


class TaskError(SamaraError):
    """A task file is wrong or does not fit the model's tokenizer."""

    refusal_code = RefusalCode.TASK


class ModelError(SamaraError):
    """A model folder cannot be loaded, or its model does not suit the adapter."""

    refusal_code = RefusalCode.MODEL


class FrameError(SamaraError):
    """Bytes from the network are not a valid frame."""

    refusal_code = RefusalCode.FRAME


class ReplayError(SamaraError):
    """Coefficients would move a state out of its exact integer range; the state is unchanged."""

    refusal_code = RefusalCode.RANGE


class LedgerError(SamaraError):
    """A ledger file is damaged, belongs to another run, or is in use by another process."""

    refusal_code = RefusalCode.FILE


class DiskError(LedgerError):
    """A disk is full, or refuses writes.

    The first of `numbers` is the problem: 1 for no space, 2 for a quota, 3 for a file size limit,
    4 for a read-only disk, 5 for an I/O error.
    """

    refusal_code = RefusalCode.DISK


def find_disk_error(error: BaseException) -> DiskError | None:
    """Return a `DiskError` with an error's message if a disk caused the error, otherwise None.

    Args:
        error: a raised error; its causes are examined too.
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
    """An archive of files is damaged, has forbidden content, or cannot be read or written."""

    refusal_code = RefusalCode.FILE


class TrajectoryError(SamaraError):
    """A trajectory file is damaged, belongs to another run, or is in use by another process."""

    refusal_code = RefusalCode.FILE


class ReportError(SamaraError):
    """A server received a report that does not answer the instruction of its round."""

    refusal_code = RefusalCode.UNKNOWN


class BlobError(SamaraError):
    """A blob is too large, does not match its hash, or cannot be stored."""

    refusal_code = RefusalCode.FILE


class MissingBlobError(SamaraError):
    """A file that the run's settings name by hash is missing on this machine.

    The numbers are the first 4 bytes of the hash, big-endian, and the number of bytes that have
    arrived.
    """

    refusal_code = RefusalCode.MISSING_BLOB


class CatchUpError(SamaraError):
    """A client cannot reach the start state of an instruction.

    The numbers are the round that the instruction follows, and the round that the client reached.
    """

    refusal_code = RefusalCode.CATCH_UP


class LayoutError(SamaraError):
    """An instruction's layout differs from the client's layout.

    The numbers are the first 4 bytes, big-endian, of the client's and the instruction's layout
    hash.
    """

    refusal_code = RefusalCode.LAYOUT


class TrainingError(SamaraError):
    """A training step cannot be taken, for example because a loss is not finite.

    The first of `numbers` is the local step, counted from 1; 0 if the problem is not in a single
    step.
    """

    refusal_code = RefusalCode.TRAINING


class TrainerError(SamaraError):
    """The resident trainer of this device cannot be reached, or fails."""

    refusal_code = RefusalCode.TRAINER


class QuestionError(SamaraError):
    """This device cannot answer a question to one of its models; no server sees the error."""

    refusal_code = RefusalCode.UNKNOWN


class UnknownModelError(QuestionError):
    """A question is for a model or a run that this device does not have."""

    refusal_code = RefusalCode.UNKNOWN


class BusyError(SamaraError):
    """The device refuses a question because it already answers as many questions as it may."""

    refusal_code = RefusalCode.UNKNOWN


class DeviceError(SamaraError):
    """A property of this machine keeps it from taking part, or from simulating a device."""

    refusal_code = RefusalCode.DEVICE


class RejectedError(DeviceError):
    """The server turns this client away permanently; a restart would not help."""

    refusal_code = RefusalCode.DEVICE
    exit_status = 77  # EX_NOPERM in sysexits.h; the systemd unit does not restart after it


class InvitationError(DeviceError):
    """A device cannot join a run with an invitation."""

    refusal_code = RefusalCode.DEVICE


class CodeError(DeviceError):
    """The server needs a feature that this machine's version of Samara lacks."""

    refusal_code = RefusalCode.CODE


class ScalarLimitError(SamaraError):
    """A report would hold more scalars than the owner of the examples allows.

    The first of `numbers` is the number of requested scalars. The second is the number of scalars
    that may still be sent (docs/guides/privacy.md).
    """

    refusal_code = RefusalCode.SCALARS


class ScenarioError(SamaraError):
    """A signed scenario cannot be used, or does not cover a server's request."""

    refusal_code = RefusalCode.SCENARIO


class BatchLimitError(SamaraError):
    """A step or an evaluation would use fewer examples than their owner allows.

    The first of `numbers` is the number of examples that would be used. The second is the smallest
    number allowed (docs/guides/privacy.md).
    """

    refusal_code = RefusalCode.BATCH


class BudgetError(SamaraError):
    """A report would cost more privacy than the owner of the examples allows."""

    refusal_code = RefusalCode.BUDGET


class MaskingError(SamaraError):
    """A request for secure aggregation breaks the protocol, or its keys or shares are invalid."""

    refusal_code = RefusalCode.MASKING


class HiddenRefusalError(SamaraError):
    """A client refuses without a reason, because the reason might reveal its examples."""

    refusal_code = RefusalCode.HIDDEN


class ClientKeyError(SamaraError):
    """A client's key is not registered in a run, was revoked, or belongs to another client."""

    refusal_code = RefusalCode.KEY


class RevokedKeyError(ClientKeyError):
    """A client's key was revoked permanently."""

    refusal_code = RefusalCode.REVOKED


class TakenIndexError(SamaraError):
    """A server received a hello with the client index of another node."""

    refusal_code = RefusalCode.INDEX


class EvaluationLimitError(SamaraError):
    """A server requested a second personal comparison, or an evaluation on training examples."""

    refusal_code = RefusalCode.EVALUATION


class PausedError(SamaraError):
    """The device owner's limits (temperature, mains, idle) allow no work at present."""

    refusal_code = RefusalCode.PAUSED
