"""The results of a client's last preflight, stored in its folder for `samara client status`."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.check_result import CheckResult, Outcome
from samara.shared.errors import DeviceError
from samara.shared.storage.kept_file import KeptFile

CHECKS_FILE = "preflight.json"
"""File in a client's folder with the results of its last preflight."""


@dataclass(frozen=True)
class KeptChecks:
    """The results of a preflight.

    Attributes:
        time: end of the preflight, in seconds since 1970.
        checks: the results, in the order of the checks.
    """

    time: float
    checks: tuple[CheckResult, ...]


class ChecksFile(KeptFile[KeptChecks | None]):
    """The file with the results of the last preflight; its content is None before the first."""

    name = CHECKS_FILE
    damaged = "{file}: {problem}; the results of the last preflight are left out"
    is_needed = False
    error = DeviceError
    style: ClassVar = {}

    def _parse(self, value: Any) -> KeptChecks:
        datetime.fromtimestamp(value["time"], UTC)
        checks = tuple(
            CheckResult(Outcome(own["outcome"]), own["subject"], own["finding"], own["remedy"])
            for own in value["checks"]
        )
        return KeptChecks(value["time"], checks)


def keep_checks(folder: Path, checks: Iterable[CheckResult]) -> None:
    """Store the results of a preflight in a client's folder.

    Raises:
        DeviceError: if the file cannot be written.
    """
    ChecksFile(folder).write(KeptChecks(time.time(), tuple(checks)))


def describe_checks(folder: Path) -> list[str]:
    """Describe the last preflight: the number of passed checks, and every other result."""
    if not (kept := ChecksFile(folder).read()):
        return []
    others = [check for check in kept.checks if check.outcome is not Outcome.PASS]
    moment = f"{datetime.fromtimestamp(kept.time, UTC):%Y-%m-%d %H:%M} UTC"
    passed = f"{len(kept.checks) - len(others)} of {len(kept.checks)} checks passed"
    return [f"preflight of {moment}: {passed}", *map(str, others)]
