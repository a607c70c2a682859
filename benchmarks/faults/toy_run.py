"""Settings of a run of toy clients, and checks at the end of the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import UserConfig

from benchmarks.faults.toy_client import app
from samara.server.app import serve
from samara.server.rounds.recorded_cohorts import RecordedCohorts, read_cohorts
from samara.server.store import read_layout, replay_run
from samara.shared.protocol.replay import digest
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS = 4


def settings_of(out: Path, rounds: int, timeout: float) -> dict[str, Scalar]:
    return {
        "out": str(out),
        "rounds": rounds,
        "steps": 1,
        "queries": 2,
        "learning-rate": 0.001,
        "data.clients": CLIENTS,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "cohort.fraction": 0.75,
        "cohort.available": CLIENTS,
        "cohort.timeout": timeout,
        "ledger.snapshot-every": 0,
    }


def check(
    folder: Path,
    settings: Mapping[str, Scalar],
    acknowledged: Mapping[int, str],
    what: str,
    nodes: Sequence[UserConfig] = (),
) -> str:
    """Prove the ledger by replay; compare it with the acknowledged rounds and an undisturbed run.

    Args:
        folder: folder with the run, finished or not, in the subfolder `run`.
        settings: settings of the run.
        acknowledged: digest of every acknowledged round.
        what: description of the run's disturbances for the returned text.
        nodes: node config of each client; by default of toy clients 0 to 3.

    Returns:
        A sentence about the outcome.

    Raises:
        AssertionError: if an acknowledged round is lost or differs, or the final digests differ.
    """
    run = folder / "run"
    layout_hash = read_layout(run).hash
    rounds = {step.round: digest(layout_hash, step.state).hex() for step in replay_run(run)}
    for number, said in acknowledged.items():
        assert rounds.get(number) == said, f"round {number} differs from the acknowledged round"
    end = rounds[max(rounds)]
    config = RunConfig.of({**settings, "out": str(folder / "again")}, "again")
    grid = InProcessGrid(app, len(nodes) or CLIENTS, config.flat(), nodes=nodes)
    again = serve(config, grid, RecordedCohorts(read_cohorts(run)))
    assert read_result(again)["final_digest"] == end, "another end"
    return (
        f"{what}: {len(acknowledged)} rounds acknowledged, none lost; {len(rounds) - 1} rounds end "
        f"in {end[:16]}, as the undisturbed run with the same cohorts does"
    )
