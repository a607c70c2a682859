"""The one exception tree of Samara.

Every message says what was wrong, where, and what to do about it; the command line prints it
without a traceback and exits with status 1.
"""


class SamaraError(Exception):
    """Base of everything that Samara raises on purpose."""


class ConfigError(SamaraError):
    """A setting, a scenario file or a combination of settings is wrong."""


class DataError(SamaraError):
    """A data file, a row of it, or a partition of it cannot be used."""


class TaskError(SamaraError):
    """A task file is wrong or does not fit the model's tokenizer."""


class ModelError(SamaraError):
    """A model folder cannot be loaded or lacks what an adapter needs."""


class FrameError(SamaraError):
    """Bytes from the network are not a valid frame."""


class ReplayError(SamaraError):
    """Coefficients do not fit the exact state; nothing was applied."""


class LedgerError(SamaraError):
    """A ledger file is damaged, foreign, or being used by somebody else."""


class TrajectoryError(SamaraError):
    """A trajectory file is damaged, foreign, or being used by somebody else."""


class ReportError(SamaraError):
    """A report does not answer the instruction of its round and is refused."""


class CatchUpError(SamaraError):
    """A client cannot reach the server's digest and refuses to train."""


class TrainingError(SamaraError):
    """A step cannot be taken, for example because a loss is not finite."""


class TrainerError(SamaraError):
    """The resident trainer of this device is not there, or fails."""


class DeviceError(SamaraError):
    """Something keeps this machine from taking part, or from standing in for a device."""
