"""The result of a check, as printed by a client's preflight and `samara server check`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

OF_OTHERS = 0o077
"""Mode bits of a file that give access to its group and others."""
_LEAST_DISK, _ENOUGH_DISK = 200 * 2**20, 2 * 2**30


class Outcome(StrEnum):
    """The outcome of a check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CheckResult:
    """One line of a list of checks.

    Attributes:
        outcome: outcome of the check.
        subject: name of the checked thing.
        finding: result of the check as a short phrase.
        remedy: remedy for a warning or failure, or advice; otherwise empty.
    """

    outcome: Outcome
    subject: str
    finding: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.outcome}  {self.subject:<13} {self.finding}"
        return f"{line}\n{'':<20}→ {self.remedy}" if self.remedy else line


def check_disk(free: int, folder: Path, elsewhere: str) -> CheckResult:
    """Check the free disk space for ledgers and logs.

    Args:
        free: free bytes.
        folder: folder on the disk.
        elsewhere: second remedy, a phrase that completes "free 0.2 GiB or …".
    """
    finding = f"{describe_size(free)} free at {folder}"
    if free < _LEAST_DISK:
        remedy = f"free {describe_size(_LEAST_DISK)} or {elsewhere}"
        return CheckResult(Outcome.FAIL, "disk", finding, remedy)
    if free < _ENOUGH_DISK:
        return CheckResult(Outcome.WARN, "disk", finding, f"free {describe_size(_ENOUGH_DISK)}")
    return CheckResult(Outcome.PASS, "disk", finding)


def describe_size(count: int) -> str:
    """Format a number of bytes in GiB."""
    return f"{count / 2**30:.1f} GiB"
