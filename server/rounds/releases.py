"""The releases of a run: noised sums, each written to disk before any use.

If a server is killed after a release, the next server reads this release and uses the same noise
again. Fresh noise for the same instruction would make a second release, and the mean of two
releases reveals more than one release.
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
from samara.shared.privacy.accountant import ROUNDING, epsilon_of
from samara.shared.storage.events import append_event, read_events
from samara.shared.storage.files import disk_errors_explained

log = logging.getLogger("samara.server")

RELEASES_FILE = "releases.jsonl"


@dataclass(frozen=True, eq=False)
class ReleasedSum:
    """A noised sum of vectors.

    Attributes:
        noise_multiplier: standard deviation of the sum's noise in units of the largest norm of a
            client's vector.
        total: sums of the K · q projected gradients, the loss, the curvature and the count, int64
            [K · q + 3]; with an adaptive clip also the sum of the indicators, int64 [K · q + 4].
        clients: number of clients by which the sum is divided to give a mean.
    """

    noise_multiplier: float
    total: NDArray[np.int64]
    clients: float

    def to_json(self) -> dict[str, Any]:
        """Return the sum as JSON fields."""
        total = base64.b64encode(self.total.astype("<i8").tobytes()).decode()
        return {
            "noise_multiplier": self.noise_multiplier,
            "clients": self.clients,
            "sum": total,
        }

    @classmethod
    def of(cls, event: dict[str, Any]) -> Self:
        """Read a sum from JSON fields.

        Raises:
            KeyError, TypeError, ValueError: if the fields do not describe a sum.
        """
        total = np.frombuffer(base64.b64decode(event["sum"], validate=True), "<i8")
        multiplier, clients = float(event["noise_multiplier"]), float(event["clients"])
        if not (multiplier > 0 and clients >= 1):
            raise ValueError("a number is out of range")
        return cls(multiplier, total.astype(np.int64), clients)


@dataclass(frozen=True, eq=False)
class Release:
    """The noised sums of a round: a single sum, or one sum for each bucket.

    A client's vector is in only one of the sums. All sums of a round together therefore cost a
    client as much privacy as a single sum.

    Attributes:
        round: round of the instruction.
        token: token of the instruction, 8 bytes.
        rho: ρ that the release costs a client.
        delta: δ of the run's ε.
        clip: adaptive clip, the largest norm of a client's projected gradients; 0 if the clip is
            fixed.
        sums: the sums; empty for a lost release, of which only the cost is known.
    """

    round: int
    token: bytes
    rho: float
    delta: float
    clip: float
    sums: tuple[ReleasedSum, ...]

    @classmethod
    def lost(cls, number: int, rho: float, delta: float) -> Self:
        """Return the release of a lost round; its token is the round's number."""
        return cls(number, number.to_bytes(8, "big"), rho, delta, 0.0, ())


class ReleaseLog:
    """The releases of a run in a file beside the ledger, with the run's privacy budget.

    Args:
        file: path of the file.
        rho: ρ that a round costs a client.
        budget: ρ that the run may spend on a client.
        delta: δ of the run's ε.

    Raises:
        SamaraError: if the file is damaged.
    """

    def __init__(self, file: Path, rho: float, budget: float, delta: float) -> None:
        self._file, self._rho, self._budget, self.delta = file, rho, budget, delta
        self._releases = {release.token: release for release in read_releases(file)}

    @property
    def rho(self) -> float:
        """The ρ spent so far."""
        return sum(release.rho for release in self._releases.values())

    @property
    def epsilon(self) -> float:
        """The ε spent so far."""
        return epsilon_of(self.rho, self.delta)

    @property
    def released_rounds(self) -> set[int]:
        """The rounds that have a release."""
        return {release.round for release in self._releases.values()}

    def find(self, token: bytes) -> Release | None:
        """Return the release that answers an instruction; None without one."""
        return self._releases.get(token)

    def last_before(self, number: int) -> Release | None:
        """Return the latest release with sums before a round; None without one."""
        with_sums = (release for release in self._releases.values() if release.sums)
        earlier = [release for release in with_sums if release.round < number]
        return max(reversed(earlier), key=lambda release: release.round, default=None)

    def check_budget(self, number: int, token: bytes) -> None:
        """Check that the privacy budget allows the release of a round.

        Args:
            number: number of the round.
            token: token of the round's instruction.

        Raises:
            TrainingError: if the budget does not allow the release.
        """
        if token in self._releases:
            return
        if self.rho + self._rho > self._budget * ROUNDING:
            raise TrainingError(
                f"round {number}: the run's privacy budget is spent, ε = {self.epsilon:.3g} at "
                f"δ = {self.delta:g}, so no client is asked; {self._file} lists the releases"
            )

    def add(self, release: Release) -> Release:
        """Write a release with all its sums durably as one line, and return the release.

        Raises:
            LedgerError: if the line cannot be written.
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
    """Return the releases in a file; empty if the file is missing.

    A partly written last line is removed from the file.

    Raises:
        SamaraError: if a line is not a release.
    """
    return parse_releases(read_events(file), file)


def parse_releases(events: Sequence[dict[str, Any]], file: Path) -> list[Release]:
    """Return the releases in the lines of a file.

    Raises:
        LedgerError: if a line is not a release.
    """
    return [_read(event, f"{file}:{n}") for n, event in enumerate(events, 1)]


def describe_spent(run: Path) -> str:
    """Describe the privacy that a run has spent so far; empty without releases.

    Raises:
        SamaraError: if the releases cannot be read.
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
        token = bytes.fromhex(event["token"])
        clip = float(event["clip"])
        delta, rho = float(event["delta"]), float(event["rho"])
        is_sound = rho > 0 and 0 < delta < 1 and clip >= 0
        if len(token) != 8 or not is_sound or len({len(one.total) for one in sums}) > 1:
            raise ValueError("a number is out of range")
        return Release(int(event["round"]), token, rho, delta, clip, sums)
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"{place}: damaged: {error!r}; this file records the spent privacy: restore a backup"
        ) from error
