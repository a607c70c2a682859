"""The releases of a run: all noised sums, on the disk before anything uses them, and their cost.

A server that is killed after a release finds it here and uses the same noise again: fresh noise
for the same instruction would be another release, and the mean of several tells more than one.
"""

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError, TrainingError
from samara.shared.events import append_event, read_events
from samara.shared.files import disk_errors_explained
from samara.shared.privacy.accountant import ROUNDING, epsilon_of

log = logging.getLogger("samara.server")

RELEASES_FILE = "releases.jsonl"


@dataclass(frozen=True, eq=False)
class ReleasedSum:
    """A noised sum of vectors.

    Attributes:
        noise_multiplier: standard deviation of the sum's noise in units of the largest norm of a
            vector.
        total: the sum, int64 [K · q + 3 or 4].
        clients: number of clients that a mean is made of.
    """

    noise_multiplier: float
    total: NDArray[np.int64]
    clients: float

    def to_json(self) -> dict[str, Any]:
        """Return the sum as the fields of a line."""
        total = base64.b64encode(self.total.astype("<i8").tobytes()).decode()
        return {
            "noise_multiplier": self.noise_multiplier,
            "clients": self.clients,
            "sum": total,
        }

    @classmethod
    def of(cls, event: dict[str, Any]) -> Self:
        """Read the sum in the fields of a line.

        Raises:
            KeyError, TypeError, ValueError: if they are none.
        """
        total = np.frombuffer(base64.b64decode(event["sum"], validate=True), "<i8")
        multiplier, clients = float(event["noise_multiplier"]), float(event["clients"])
        if not (multiplier > 0 and clients >= 1):
            raise ValueError("a number in it is out of its range")
        return cls(multiplier, total.astype(np.int64), clients)


@dataclass(frozen=True, eq=False)
class Release:
    """The noised sums of a round: one, or one of each bucket.

    A client's vector is in one of them, so that they cost it together what one of them does.

    Attributes:
        round: round of the instruction.
        token: token of the instruction, 8 bytes.
        rho: ρ that it costs a client.
        delta: δ that the run's ε is for.
        clip: largest norm of a client's projected gradients in it; 0 if it is that of the settings.
        sums: the sums; none of a release that was lost with the server that may have made it, and
            that only costs.
    """

    round: int
    token: bytes
    rho: float
    delta: float
    clip: float
    sums: tuple[ReleasedSum, ...]

    @classmethod
    def lost(cls, number: int, rho: float, delta: float) -> Self:
        """Return a round's release that was lost, which has the round in place of a token."""
        return cls(number, number.to_bytes(8, "big"), rho, delta, 0.0, ())


class ReleaseLog:
    """The releases of a run in a file beside its ledger, and the budget that they are paid from.

    Args:
        file: the file.
        rho: ρ that a round costs a client.
        budget: ρ that the run may spend on a client.
        delta: δ that its ε is for.

    Raises:
        SamaraError: if the file is damaged.
    """

    def __init__(self, file: Path, rho: float, budget: float, delta: float) -> None:
        self._file, self._rho, self._budget, self.delta = file, rho, budget, delta
        self._releases = {release.token: release for release in read_releases(file)}

    @property
    def rho(self) -> float:
        """The ρ that was spent."""
        return sum(release.rho for release in self._releases.values())

    @property
    def epsilon(self) -> float:
        """The ε that was spent."""
        return epsilon_of(self.rho, self.delta)

    @property
    def released_rounds(self) -> set[int]:
        """The rounds that have a release."""
        return {release.round for release in self._releases.values()}

    def find(self, token: bytes) -> Release | None:
        """Return the release that answers an instruction; None if there is none."""
        return self._releases.get(token)

    def last_before(self, number: int) -> Release | None:
        """Return the latest release with sums of a round before another; None if there is none."""
        with_sums = (release for release in self._releases.values() if release.sums)
        earlier = [release for release in with_sums if release.round < number]
        return max(reversed(earlier), key=lambda release: release.round, default=None)

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
        if self.rho + self._rho > self._budget * ROUNDING:
            raise TrainingError(
                f"round {number}: the run's privacy budget is spent, ε = {self.epsilon:.3g} at "
                f"δ = {self.delta:g}; no client is asked. {self._file} has every release"
            )

    def add(self, release: Release) -> Release:
        """Write a release, all its sums as one line, and return it once it is on the disk.

        Raises:
            LedgerError: if it cannot be written.
        """
        line = {
            "round": release.round,
            "token": release.token.hex(),
            "rho": release.rho,
            "delta": release.delta,
            "clip": release.clip,
        }
        sums = [one.to_json() for one in release.sums]
        line |= sums[0] if len(sums) == 1 else {"buckets": sums}
        with disk_errors_explained(self._file):
            append_event(self._file, line)
        self._releases[release.token] = release
        return release


def read_releases(file: Path) -> list[Release]:
    """Read the releases in a file after cutting it to its last whole line; none if there is none.

    Raises:
        SamaraError: if a line is no release.
    """
    return parse_releases(read_events(file), file)


def parse_releases(events: Sequence[dict[str, Any]], file: Path) -> list[Release]:
    """Return the releases in the lines of a file.

    Raises:
        LedgerError: if a line is no release.
    """
    return [_read(event, f"{file}:{n}") for n, event in enumerate(events, 1)]


def describe_spent(run: Path) -> str:
    """Return a sentence about the privacy that a run has spent so far; empty without releases.

    Raises:
        SamaraError: if its releases cannot be read.
    """
    releases = read_releases(run / RELEASES_FILE)
    if not releases:
        return ""
    rho = sum(release.rho for release in releases)
    delta = releases[-1].delta
    return (
        f"differential privacy: {len(releases):,} releases, "
        f"ε = {epsilon_of(rho, delta):.3g} so far at δ = {delta:g}"
    )


def _read(event: dict[str, Any], place: str) -> Release:
    try:
        sums = tuple(ReleasedSum.of(one) for one in event.get("buckets", [event]))
        token, clip = bytes.fromhex(event["token"]), float(event["clip"])
        delta, rho = float(event["delta"]), float(event["rho"])
        is_sound = rho > 0 and 0 < delta < 1 and clip >= 0
        if len(token) != 8 or not is_sound or len({len(one.total) for one in sums}) > 1:
            raise ValueError("a number in it is out of its range")
        return Release(int(event["round"]), token, rho, delta, clip, sums)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"{place}: damaged: {error!r}; restore the file, since it says what privacy was spent"
        ) from error
