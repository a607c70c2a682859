"""The releases of a run: every noised sum, on the disk before anything uses it, and their cost.

A server that is killed after a release finds it here and uses the same noise again: fresh noise
for the same instruction would be another release, and the mean of several tells more than one.
"""

import base64
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import LedgerError, TrainingError
from shared.events import append_event, read_events
from shared.privacy.accountant import epsilon_of, rho_of
from shared.privacy_settings import PrivacySettings

log = logging.getLogger("samara.server")

RELEASES_FILE = "releases.jsonl"
# Sums of equal ρ round differently from their product; the last round of a plan must fit.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class Release:
    """A noised sum of vectors.

    Attributes:
        round: round of the instruction.
        token: token of the instruction, 8 bytes.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        delta: δ that the run's ε is for.
        total: the sum, int64 [K · q + 3].
    """

    round: int
    token: bytes
    noise_multiplier: float
    delta: float
    total: NDArray[np.int64]


class ReleaseLog:
    """The releases of a run in a file beside its ledger, and the budget that they are paid from.

    Args:
        file: the file.
        privacy: settings of the run's privacy.
        rounds: number of rounds of the run.

    Raises:
        SamaraError: if the file is damaged.
    """

    def __init__(self, file: Path, privacy: PrivacySettings, rounds: int) -> None:
        self._file, self.delta = file, privacy.delta
        self._budget = privacy.budget(rounds)
        self.noise_multiplier = privacy.multiplier(rounds)
        """The noise multiplier of the next release."""
        self._releases = {release.token: release for release in read_releases(file)}

    @property
    def rho(self) -> float:
        """The ρ that was spent."""
        return sum(rho_of(release.noise_multiplier) for release in self._releases.values())

    @property
    def epsilon(self) -> float:
        """The ε that was spent."""
        return epsilon_of(self.rho, self.delta)

    def find(self, token: bytes) -> Release | None:
        """Return the release that answers an instruction; None if there is none."""
        return self._releases.get(token)

    def check_budget(self, number: int, token: bytes) -> None:
        """Raise an error if a round would need a release that the budget does not allow.

        Args:
            number: the round.
            token: token of its instruction.

        Raises:
            TrainingError: if it would.
        """
        if token in self._releases:
            return
        if self.rho + rho_of(self.noise_multiplier) > self._budget * _ROUNDING:
            raise TrainingError(
                f"round {number}: the run's privacy budget is spent, ε = {self.epsilon:.3g} at "
                f"δ = {self.delta:g}; no client is asked. {self._file} has every release"
            )

    def add(self, release: Release) -> Release:
        """Write a release, and return it once it is on the disk.

        Raises:
            LedgerError: if it cannot be written.
        """
        line = {
            "round": release.round,
            "token": release.token.hex(),
            "noise_multiplier": release.noise_multiplier,
            "delta": release.delta,
            "sum": base64.b64encode(release.total.astype("<i8").tobytes()).decode(),
        }
        try:
            append_event(self._file, line)
        except OSError as error:
            raise LedgerError(
                f"{self._file}: cannot be written: {error.strerror}; make room, then run the same "
                "command"
            ) from error
        self._releases[release.token] = release
        return release


def read_releases(file: Path) -> list[Release]:
    """Read the releases in a file after cutting it to its last whole line; none if there is none.

    Raises:
        SamaraError: if a line is no release.
    """
    return [_read(event, f"{file}:{n}") for n, event in enumerate(read_events(file), 1)]


def describe_spent(run: Path) -> str:
    """Return a sentence about the privacy that a run has spent so far; empty without releases.

    Raises:
        SamaraError: if its releases cannot be read.
    """
    releases = read_releases(run / RELEASES_FILE)
    if not releases:
        return ""
    rho = sum(rho_of(release.noise_multiplier) for release in releases)
    delta = releases[-1].delta
    return (
        f"differential privacy: {len(releases):,} releases, "
        f"ε = {epsilon_of(rho, delta):.3g} so far at δ = {delta:g}"
    )


def _read(event: dict[str, Any], place: str) -> Release:
    try:
        total = np.frombuffer(base64.b64decode(event["sum"], validate=True), "<i8")
        token, multiplier = bytes.fromhex(event["token"]), float(event["noise_multiplier"])
        delta = float(event["delta"])
        if len(token) != 8 or not (multiplier > 0 and 0 < delta < 1):
            raise ValueError("a number in it is out of its range")
        return Release(int(event["round"]), token, multiplier, delta, total.astype(np.int64))
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"{place}: damaged: {error!r}; restore the file, since it says what privacy was spent"
        ) from error
