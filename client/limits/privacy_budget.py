"""A client's privacy budget: the stored cost of its noised reports over all runs.

Before a report leaves, the client writes a line to the disk: the report, the token of its
instruction, and its cost ρ. A crash leaves either the whole line or no line. So the client never
answers an instruction twice with different noise. Two noised reports on the same examples would
reveal more than the accountant states for one report.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from samara.shared.errors import BudgetError, TrainerError
from samara.shared.privacy.accountant import ROUNDING, epsilon_of, rho_within
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.storage.kept_file import DAMAGE, KeptLog
from samara.shared.terms.privacy import PrivacyTerms

CHARGES_FILE = "privacy.jsonl"
OWN_DELTA = 1e-5
"""δ at which a client computes its total ε, regardless of the server's δ."""
REPORTS_KEPT = 8
"""Number of latest reports kept for repeated instructions. Older reports are deleted when twice as
many reports are stored."""


@dataclass(frozen=True)
class Charge:
    """The privacy cost of a report, recorded before the report leaves the device.

    Attributes:
        run: run id in hex.
        round: round of the instruction.
        token: token of the instruction, 8 bytes.
        mode: party that adds the noise, ``privacy.mode``.
        rho: ρ, the cost of the report.
        report: the report, a frame; empty once it is no longer kept.
    """

    run: str
    round: int
    token: bytes
    mode: str
    rho: float
    report: bytes = b""

    def to_line(self) -> bytes:
        """Return the charge as a line of the file, without the line break."""
        event = asdict(self) | {"token": self.token.hex()}
        if report := event.pop("report"):
            event["report"] = base64.b64encode(report).decode()
        return json.dumps(event, sort_keys=True).encode()

    @classmethod
    def of_event(cls, event: dict[str, Any]) -> Self:
        """Read a charge from a line of the file.

        Raises:
            ValueError, TypeError, KeyError: if the line holds no charge.
        """
        rho, token = float(event["rho"]), bytes.fromhex(event["token"])
        if not rho > 0 or len(token) != 8:
            raise ValueError(f"ρ = {rho} for token {event['token']}")
        report = base64.b64decode(event.get("report", ""), validate=True)
        return cls(str(event["run"]), int(event["round"]), token, str(event["mode"]), rho, report)


def epsilon_spent(charges: Iterable[Charge]) -> float:
    """Return the total ε of some reports at δ = `OWN_DELTA`."""
    return epsilon_of(sum(charge.rho for charge in charges), OWN_DELTA)


def describe_charges(charges: Sequence[Charge], limit: float) -> str:
    """Return a sentence for the owner about the privacy cost of a client's reports.

    Args:
        charges: all charges of the client.
        limit: largest total ε of all reports; 0 for no limit.
    """
    modes = Counter(charge.mode for charge in charges)
    parts = ", ".join(f"{count:,} {mode}" for mode, count in sorted(modes.items()))
    is_trusted = any(mode != "local" for mode in modes)
    trusted = "; for reports that are not local the server must be trusted" if is_trusted else ""
    return (
        f"differential privacy: ε = {epsilon_spent(charges):.3g} at δ = {OWN_DELTA:g} spent, over "
        f"all runs, by {len(charges):,} reports with noise"
        f"{f' ({parts}{trusted})' if parts else ''}; data.epsilon-limit = {limit:g}"
        f"{'' if limit else ': no limit'}"
    )


class ChargeLog(KeptLog):
    """The file of a client's charges, with one charge per line."""

    name = CHARGES_FILE
    damaged = (
        "{file}: the privacy costs of the reports cannot be read: {problem}; restore the file from "
        "a backup, or delete it if the budget may begin at 0 again"
    )

    def read(self) -> list[Charge]:
        """Return all charges.

        An incomplete last line is ignored, because its report was never sent.

        Raises:
            TrainerError: if the file cannot be read. An unreadable file does not count as empty,
                because that would reset the budget.
        """
        lines = self.read_lines()
        try:
            return [Charge.of_event(json.loads(line)) for line in lines]
        except DAMAGE as error:
            raise TrainerError(self._tell(self.damaged, error)) from error

    def add(self, charge: Charge) -> None:
        """Add a charge durably.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        charges = [*self.read(), charge]
        with_report = [one.token for one in charges if one.report]
        if len(with_report) <= 2 * REPORTS_KEPT:
            self.append(charge.to_line())
            return
        kept = with_report[-REPORTS_KEPT:]
        self.replace(
            (one if one.token in kept else replace(one, report=b"")).to_line() for one in charges
        )


@dataclass(frozen=True)
class PrivacyBudget:
    """The privacy budget of a client in a run.

    Attributes:
        charges: file with the client's charges.
        terms: the run's differential privacy; None if nobody adds noise.
        limit: largest total ε of all reports, ``data.epsilon-limit``; 0 for no limit.
    """

    charges: ChargeLog
    terms: PrivacyTerms | None
    limit: float

    def find_report(self, token: bytes) -> bytes:
        """Return the stored report that answered an instruction, or b"" for a new instruction.

        Raises:
            BudgetError: if the client has answered the instruction but no longer has the report.
            TrainerError: if the file cannot be read.
        """
        if self.terms is None:
            return b""
        for charge in self.charges.read():
            if charge.token == token:
                if charge.report:
                    return charge.report
                raise BudgetError(
                    f"round {charge.round} of run {charge.run} was already answered, but the "
                    "report is no longer stored; another report would have fresh noise and reveal "
                    "more"
                )
        return b""

    def check(self, instruction: TrainInstruction) -> None:
        """Check that the report for an instruction is within the budgets of the run and the owner.

        Raises:
            BudgetError: if the report exceeds a budget.
            TrainerError: if the file cannot be read.
        """
        if self.terms is None:
            if not self.limit:
                return
            raise BudgetError(
                f"round {instruction.round}: the reports of this run have no noise, but "
                f"data.epsilon-limit = {self.limit:g} allows only reports with noise. Remove "
                "data.epsilon-limit if the client may send reports without noise "
                "(docs/guides/differential-privacy.md)"
            )
        charges, run, rho = self.charges.read(), instruction.run_id.hex(), self._rho
        in_run = sum(charge.rho for charge in charges if charge.run == run)
        if in_run + rho > self.terms.rounds * rho * ROUNDING:
            raise BudgetError(
                f"round {instruction.round} of run {run}: this client has already reported on all "
                f"{self.terms.rounds:,} rounds for which ε is computed; the operator must start "
                "another run (docs/guides/differential-privacy.md)"
            )
        spent = sum(charge.rho for charge in charges)
        if self.limit and spent + rho > rho_within(self.limit, OWN_DELTA) * ROUNDING:
            after = epsilon_of(spent + rho, OWN_DELTA)
            raise BudgetError(
                f"round {instruction.round} would raise the privacy cost of this client's reports "
                f"from ε = {epsilon_of(spent, OWN_DELTA):.3g} to {after:.3g} at δ = {OWN_DELTA:g}, "
                f"over data.epsilon-limit = {self.limit:g}. Raise the limit if the reports may "
                "reveal more (docs/guides/differential-privacy.md)"
            )

    def add(self, instruction: TrainInstruction, token: bytes, report: bytes) -> None:
        """Charge and store a report durably.

        Args:
            instruction: train instruction.
            token: token of the instruction, 8 bytes.
            report: report for the instruction, a frame.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        if self.terms is None:
            return
        run, mode = instruction.run_id.hex(), self.terms.mechanism.mode
        self.charges.add(Charge(run, instruction.round, token, mode, self._rho, report))

    @property
    def _rho(self) -> float:
        """Cost ρ of one report in this run."""
        return self.terms.mechanism.rho if self.terms else 0.0
