"""A client's own privacy budget: what its noised reports have cost it, over all runs, on disk.

A report, the token of the instruction that it answers and its ρ are one line, which is on the disk
before the report leaves. So a crash leaves either all three or none, and a report that may have
left is never made again with fresh noise: who gets two noised reports of the same examples learns
more than the accountant says of one.
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from samara.shared.errors import BudgetError, SamaraError, TrainerError
from samara.shared.events import append_event, read_events, read_whole_events
from samara.shared.files import make_folder, sync_folder, write_durably
from samara.shared.frames.instructions import TrainInstruction
from samara.shared.privacy.accountant import ROUNDING, epsilon_of, rho_within
from samara.shared.privacy.terms import PrivacyTerms

CHARGES_FILE = "privacy.jsonl"
OWN_DELTA = 1e-5
"""The δ of a client's own ε; a server's would say what it likes."""
REPORTS_KEPT = 8
"""The latest reports that are kept for repeated instructions; twice as many before the others are
dropped."""


@dataclass(frozen=True)
class Charge:
    """A report that was about to leave the device, and its cost.

    Attributes:
        run: run id in hex.
        round: round of the instruction.
        token: token of the instruction, 8 bytes.
        mode: who adds the noise, ``privacy.mode``.
        rho: ρ of the round.
        report: the report, a frame; empty once it is no longer kept.
    """

    run: str
    round: int
    token: bytes
    mode: str
    rho: float
    report: bytes = b""

    def to_event(self) -> dict[str, Any]:
        """Return the charge as a line of the file."""
        report = base64.b64encode(self.report).decode()
        line = {"run": self.run, "round": self.round, "token": self.token.hex(), "mode": self.mode}
        return line | {"rho": self.rho} | ({"report": report} if report else {})

    @classmethod
    def of_event(cls, event: dict[str, Any]) -> Self:
        """Read a charge from a line of the file.

        Raises:
            ValueError, TypeError, KeyError: if it is none.
        """
        rho, token = float(event["rho"]), bytes.fromhex(event["token"])
        if not rho > 0 or len(token) != 8:
            raise ValueError(f"ρ = {rho} for token {event['token']}")
        report = base64.b64decode(event.get("report", ""), validate=True)
        return cls(str(event["run"]), int(event["round"]), token, str(event["mode"]), rho, report)


def epsilon_spent(charges: Iterable[Charge]) -> float:
    """Return the ε of reports together, at `OWN_DELTA`."""
    return epsilon_of(sum(charge.rho for charge in charges), OWN_DELTA)


def describe_charges(charges: Sequence[Charge], limit: float) -> str:
    """Return a sentence about what a client's reports have cost, for its owner.

    Args:
        charges: all charges of the client.
        limit: largest ε of all reports together; 0 for none.
    """
    modes = Counter(charge.mode for charge in charges)
    parts = ", ".join(f"{count:,} {mode}" for mode, count in sorted(modes.items()))
    is_trusted = any(mode != "local" for mode in modes)
    trusted = "; the server is trusted with those that are not local" if is_trusted else ""
    return (
        f"differential privacy: ε = {epsilon_spent(charges):.3g} at δ = {OWN_DELTA:g} spent, over "
        f"all runs, by {len(charges):,} reports with noise"
        f"{f' ({parts}{trusted})' if parts else ''}; data.epsilon-limit = {limit:g}"
        f"{'' if limit else ': no limit'}"
    )


class ChargeLog:
    """The charges in a client's file, which one process writes.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / CHARGES_FILE

    def read(self) -> list[Charge]:
        """Return all charges; a last line that is not whole tells of a report that never left.

        Raises:
            TrainerError: if the file cannot be read. It is not replaced by an empty one, which
                would lift the budget.
        """
        return self._parse(read_whole_events)

    def _parse(self, read: Callable[[Path], list[dict[str, Any]]]) -> list[Charge]:
        try:
            return [Charge.of_event(event) for event in read(self._file)]
        except (OSError, SamaraError, ValueError, TypeError, KeyError) as error:
            raise TrainerError(
                f"{self._file}: what reports have cost cannot be read: {error}; restore the file "
                "from a backup, or delete it if the budget may begin anew"
            ) from error

    def add(self, charge: Charge) -> None:
        """Add a charge; it is on the disk when this returns.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        charges = [*self._parse(read_events), charge]  # cuts off a last line that is not whole
        with_report = [one for one in charges if one.report]
        try:
            make_folder(self._file.parent)
            if len(with_report) > 2 * REPORTS_KEPT:
                kept = {one.token for one in with_report[-REPORTS_KEPT:]}
                self._write(charges, kept)
            else:
                is_new = not self._file.exists()
                append_event(self._file, charge.to_event())
                if is_new:
                    sync_folder(self._file.parent)
        except OSError as error:
            raise TrainerError(f"{self._file}: cannot be written: {error.strerror}") from error

    def _write(self, charges: Iterable[Charge], kept: set[bytes]) -> None:
        """Replace the file by one that has the reports of some tokens alone."""
        lines = []
        for charge in charges:
            event = charge.to_event()
            if charge.token not in kept:
                event.pop("report", None)
            lines.append(json.dumps(event, sort_keys=True) + "\n")
        write_durably(self._file, "".join(lines).encode())


@dataclass(frozen=True)
class PrivacyBudget:
    """The budget of a client in a run.

    Attributes:
        charges: the client's file.
        terms: the run's differential privacy; None if nobody adds noise.
        limit: largest ε of all reports together, ``data.epsilon-limit``; 0 for none.
    """

    charges: ChargeLog
    terms: PrivacyTerms | None
    limit: float

    def find_report(self, token: bytes) -> bytes:
        """Return the report that answered an instruction; nothing if none did.

        Raises:
            BudgetError: if one did, and is no longer kept.
            TrainerError: if the file cannot be read.
        """
        if self.terms is None:
            return b""
        for charge in self.charges.read():
            if charge.token == token:
                if charge.report:
                    return charge.report
                raise BudgetError(
                    f"round {charge.round} of run {charge.run} was answered, and the report is no "
                    "longer kept; another one would have fresh noise, which tells more"
                )
        return b""

    def check(self, instruction: TrainInstruction) -> None:
        """Raise an error if the report on an instruction is beyond the run's budget or the owner's.

        Raises:
            BudgetError: if it is.
            TrainerError: if the file cannot be read.
        """
        if self.terms is None:
            if not self.limit:
                return
            raise BudgetError(
                f"round {instruction.round}: the reports of this run have no noise, and "
                f"data.epsilon-limit = {self.limit:g} allows none without. Leave it out if they "
                "may be sent (docs/guides/differential-privacy.md)"
            )
        charges, run, rho = self.charges.read(), instruction.run_id.hex(), self._rho
        in_run = sum(charge.rho for charge in charges if charge.run == run)
        if in_run + rho > self.terms.rounds * rho * ROUNDING:
            raise BudgetError(
                f"round {instruction.round} of run {run} would be one more than the "
                f"{self.terms.rounds:,} that its settings say and its ε is for; this client has "
                "reported on as many (docs/guides/differential-privacy.md)"
            )
        spent = sum(charge.rho for charge in charges)
        if self.limit and spent + rho > rho_within(self.limit, OWN_DELTA) * ROUNDING:
            after = epsilon_of(spent + rho, OWN_DELTA)
            raise BudgetError(
                f"round {instruction.round} would bring what this client's reports have cost from "
                f"ε = {epsilon_of(spent, OWN_DELTA):.3g} to {after:.3g} at δ = {OWN_DELTA:g}, over "
                f"data.epsilon-limit = {self.limit:g}. Raise the limit if more may be told "
                "(docs/guides/differential-privacy.md)"
            )

    def add(self, instruction: TrainInstruction, token: bytes, report: bytes) -> None:
        """Charge a report, and keep it; both are on the disk when this returns.

        Args:
            instruction: train instruction.
            token: its token, 8 bytes.
            report: the report on it, a frame.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        if self.terms is None:
            return
        run, mode = instruction.run_id.hex(), self.terms.mechanism.mode
        self.charges.add(Charge(run, instruction.round, token, mode, self._rho, report))

    @property
    def _rho(self) -> float:
        """The ρ of a report."""
        return self.terms.mechanism.rho if self.terms else 0.0
