"""No client can choose its cohorts by making keys; cohorts survive restarts and backups."""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import short_run
from flwr.app import Message

from benchmarks.faults.toy_client import app
from samara.server.app import serve
from samara.server.keeping.backup import back_up
from samara.server.keeping.check import examine
from samara.server.keeping.restoring import restore
from samara.server.live.run_supervisor import FLOWER_FOLDER
from samara.server.rounds.cohort_sampling import (
    COHORT_SECRET_FILE,
    SECRET_BYTES,
    draw_cohort_secrets,
    read_cohort_secret,
    sample_cohort,
)
from samara.server.store import LEDGER_FOLDER
from samara.shared.check_result import Outcome
from samara.shared.errors import LedgerError
from samara.shared.protocol.directions import cohort_keys
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

SEED, CLIENTS, HOSTILE, FRACTION, ROUNDS = 7, 100, 10, 0.1, 100
CANDIDATES = 20_000
TOYS = 8


@pytest.fixture(scope="module")
def chosen_indices() -> list[int]:
    """The ten indices that a hostile client would choose if it knew seed and rounds."""
    candidates = np.arange(1_000, 1_000 + CANDIDATES, dtype=np.uint32)
    times = np.zeros(CANDIDATES, np.int64)
    for number in range(1, ROUNDS + 1):
        times += cohort_keys(SEED, number, candidates) < FRACTION * 2.0**64
    return [int(index) for index in candidates[np.argsort(-times)[:HOSTILE]]]


def hostile_share(key: int | bytes, hostile: list[int]) -> float:
    """Return the hostile clients' share of all places in the cohorts of a run."""
    clients = [*range(CLIENTS - HOSTILE), *hostile]
    cohorts = [sample_cohort(key, n, clients, FRACTION, 1) for n in range(1, ROUNDS + 1)]
    places = [client in hostile for cohort in cohorts for client in cohort]
    return sum(places) / len(places)


def test_who_knows_the_key_of_a_cohort_chooses_it(chosen_indices: list[int]) -> None:
    assert hostile_share(SEED, chosen_indices) > 0.17


@pytest.mark.parametrize("secret", [bytes(32), bytes(range(32)), b"\xff" * 32])
def test_chosen_keys_are_asked_no_more_than_others(
    secret: bytes, chosen_indices: list[int]
) -> None:
    """For three secrets, the share is within four standard deviations of a binomial."""
    deviation = (0.1 * 0.9 / (ROUNDS * CLIENTS * FRACTION)) ** 0.5
    assert abs(hostile_share(secret, chosen_indices) - 0.1) < 4 * deviation


def test_nobody_aims_at_one_round() -> None:
    """Under a secret, at most a few of the ten keys chosen for round 5 are in its cohort."""
    candidates = np.arange(1_000, 1_000 + CANDIDATES, dtype=np.uint32)
    first = candidates[np.argsort(cohort_keys(SEED, 5, candidates))[:HOSTILE]].tolist()
    clients = [*range(CLIENTS - HOSTILE), *first]
    assert set(sample_cohort(SEED, 5, clients, FRACTION, 1)) == set(first)
    assert len(set(sample_cohort(bytes(range(32)), 5, clients, FRACTION, 1)) & set(first)) <= 4


def live_run(out: Path, **changes: Any) -> RunConfig:
    return short_run(TOYS, out, rounds=4, cohort__fraction=0.5, **changes)


def cohorts_of(store: Path) -> list[list[int]]:
    records = read_ledger(store / LEDGER_FOLDER)
    return [[each.client for each in record.delta.contributors] for record in records]


class Killed(InProcessGrid):
    """A grid whose server is killed in the third round."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if messages[0].metadata.group_id == "3":
            raise InterruptedError
        return super().push_messages(messages)


def serve_live(config: RunConfig, kind: type[InProcessGrid] = InProcessGrid) -> Path:
    return serve(config, kind(app, TOYS, config.flat()), patient=True)


def test_a_live_run_asks_by_its_secret_also_after_a_restart_and_elsewhere(tmp_path: Path) -> None:
    config = live_run(tmp_path / "run")
    with pytest.raises(InterruptedError):
        serve_live(config, Killed)
    run = Path(config.out)
    secret = read_cohort_secret(run)
    assert len(secret) == SECRET_BYTES
    assert stat.S_IMODE((run / COHORT_SECRET_FILE).stat().st_mode) == 0o600
    backup = back_up(run, tmp_path / "backup")
    assert backup.secrets == [COHORT_SECRET_FILE]
    elsewhere = tmp_path / "elsewhere"
    restore(backup.file, elsewhere)
    assert stat.S_IMODE((elsewhere / COHORT_SECRET_FILE).stat().st_mode) == 0o600
    expected = [sample_cohort(secret, n, range(TOYS), 0.5, 1) for n in range(1, 5)]
    serve_live(config)
    serve_live(config.with_values({"out": str(elsewhere)}))
    assert cohorts_of(run) == cohorts_of(elsewhere) == expected


def test_two_live_runs_of_one_seed_ask_different_clients(tmp_path: Path) -> None:
    runs = [serve_live(live_run(tmp_path / name)) for name in ("one", "two")]
    assert read_cohort_secret(runs[0]) != read_cohort_secret(runs[1])
    public = [sample_cohort(0, n, range(TOYS), 0.5, 1) for n in range(1, 5)]
    assert [cohorts_of(run) for run in runs].count(public) < 2


def test_simulations_and_runs_of_earlier_versions_ask_by_the_seed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = live_run(tmp_path / "run")
    with pytest.raises(InterruptedError):
        serve(config, Killed(app, TOYS, config.flat()))
    run = serve_live(config)
    assert not read_cohort_secret(run)
    assert cohorts_of(run) == [
        sample_cohort(config.seed, n, range(TOYS), 0.5, 1) for n in range(1, 5)
    ]
    assert "cohorts are sampled by the public seed" in caplog.text
    (run / FLOWER_FOLDER).mkdir()
    (warned,) = [check for check in examine(run) if check.subject == "cohorts"]
    assert warned.outcome is Outcome.WARN


def test_every_cluster_has_a_secret(tmp_path: Path) -> None:
    config = live_run(tmp_path, method="cluster", cohort__clusters=2, cohort__clustering_rounds=1)
    draw_cohort_secrets(tmp_path, config)
    drawn = {read_cohort_secret(tmp_path / f"cluster-{number}") for number in (1, 2)}
    assert len(drawn - {b""}) == 2
    draw_cohort_secrets(tmp_path, config)
    assert {read_cohort_secret(tmp_path / f"cluster-{number}") for number in (1, 2)} == drawn


def test_a_damaged_secret_ends_the_server_and_is_found(tmp_path: Path) -> None:
    config = live_run(tmp_path / "run")
    run = serve_live(config)
    (run / COHORT_SECRET_FILE).write_bytes(b"half")
    with pytest.raises(LedgerError, match="the file has 4 bytes, not 32"):
        serve_live(config)
    (run / FLOWER_FOLDER).mkdir()
    (failed,) = [check for check in examine(run) if check.subject == "cohorts"]
    assert failed.outcome is Outcome.FAIL
