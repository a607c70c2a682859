"""The result of a check of the preflight."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CheckResult:
    """One line of the preflight.

    Attributes:
        outcome: outcome of the check.
        subject: name of the thing that was checked.
        finding: result in words.
        remedy: remedy for a warning or failure, or advice; empty if there is none.
    """

    outcome: Outcome
    subject: str
    finding: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.outcome}  {self.subject:<13} {self.finding}"
        return f"{line}\n{'':<20}→ {self.remedy}" if self.remedy else line
