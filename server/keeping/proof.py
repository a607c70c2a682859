"""Verification of a run: replay all rounds and reproduce every digest."""

from collections.abc import Iterator
from pathlib import Path

from samara.server.store import cluster_folders, read_layout, replay_run
from samara.shared.check_result import CheckResult, Outcome
from samara.shared.errors import LedgerError, SamaraError
from samara.shared.protocol.ledger.reading import without_remedy
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest
from samara.shared.results.result import RESULT_FILE, read_result

_REMEDY = "restore a backup, or replay on another machine if this one's memory may be faulty"


def prove(run: Path) -> Iterator[CheckResult]:
    """Replay a run, or each of its clusters, from the oldest kept state.

    No process may write to the run at the same time.

    Args:
        run: folder of a run.
    """
    for store in cluster_folders(run) or [run]:
        try:
            yield from _prove(store, "replay" if store == run else store.name)
        except SamaraError as error:
            yield CheckResult(Outcome.FAIL, "replay", without_remedy(error), _REMEDY)


def _prove(run: Path, name: str) -> Iterator[CheckResult]:
    """Replay one ledger, compare its end with the result, and replay its personal ledgers.

    Raises:
        SamaraError: at the first damage.
    """
    layout = read_layout(run)
    steps = replay_run(run)
    first = step = next(steps)
    scalars = 0
    for step in steps:
        groups = step.record.delta.groups if step.record else ()
        scalars += sum(len(group.scalars.coefficients) for group in groups)
    end = digest(layout.hash, step.state).hex()
    if (run / RESULT_FILE).exists():
        result = read_result(run)
        expected = result.get("final_round"), result.get("final_digest")
        if expected != (step.round, end):
            raise LedgerError(
                f"{run / RESULT_FILE}: ends with round {expected[0]} and digest "
                f"{str(expected[1])[:16]}, but the ledger ends with round {step.round} and digest "
                f"{end[:16]}; rounds are missing or belong to another run"
            )
    before = f"rounds 1 to {first.round} are in a snapshot; " if first.round else ""
    finding = f"{before}{step.round - first.round} rounds, {scalars} scalars, "
    yield CheckResult(Outcome.PASS, name, f"{finding}every digest reproduced; the last is {end}")
    personal = sorted(run.glob("clients/*/personal.ledger"))
    for ledger in personal:
        for _ in verify_ledger(ledger, layout):
            pass
    if personal:
        finding = f"personal ledgers of {len(personal)} clients: every digest reproduced"
        yield CheckResult(Outcome.PASS, name, finding)
