"""A device's cost of a round is told to the server only if the device's owner allows it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from federations import Live, Settings, config_of, ledger_of
from flwr.app import Message
from residents import CLIENTS, resident
from typer.testing import CliRunner

from samara.client.limits.work_costs import WorkCosts
from samara.client.trainer.trainer_service import serve_trainer
from samara.server.app import serve
from samara.server.commands import app as server_commands
from samara.server.live.run_status import ClientStatus
from samara.server.live.status import read_status
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.wire import COST, RECORD
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig

SHARING, SILENT = CLIENTS


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    few = {"rounds": 2, "personal.rounds": 0, "evaluate.every": 0}
    return config_of(settings | theirs | few, cohort__available=2)


class Forging(Live):
    """Delivers every reply with a forged cost beside its report."""

    forged = b""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            record = reply.content.config_records[RECORD]
            if COST in record:
                record[COST] = self.forged
        return replies


def run(
    settings: Settings, config: RunConfig, place: Path, grid: type[Live] = Live
) -> tuple[Path, list[Path]]:
    homes = [place / str(client) for client in CLIENTS]
    sockets = [place / f"{client}.sock" for client in CLIENTS]
    sharing, silent = (resident(settings, c, home) for c, home in zip(CLIENTS, homes, strict=True))
    joules = iter(range(0, 10**9, 7))
    with (
        serve_trainer(
            lambda: sharing, sockets[0], lambda: "", lambda: float(next(joules)), shares_cost=True
        ),
        serve_trainer(lambda: silent, sockets[1], lambda: "", lambda: float(next(joules))),
    ):
        out = config_of(config.flat(), out=str(place / "run"))
        return serve(out, grid(sockets, out)), homes


def costs_of(out: Path) -> dict[int, list[Any]]:
    rounds = RunResult.read(out).rounds
    return {client: [one.clients[client].cost for one in rounds] for client in CLIENTS}


def test_the_operator_sees_what_an_owner_shares(
    settings: Settings, server_config: RunConfig, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, homes = run(settings, server_config, short)
    costs = costs_of(out)
    assert costs[SILENT] == [None, None]
    [noted] = WorkCosts(homes[0]).read().values()
    shared = costs[SHARING]
    assert noted.rounds == len(shared) == 2
    assert sum(one.joules for one in shared) == 14
    assert noted.joules > 14  # evaluations cost something too
    assert 0 < sum(one.seconds for one in shared) < noted.seconds
    assert all(one.paused == 0.0 for one in shared)
    clients = read_status(out).clients
    assert clients[SILENT].cost == ""
    assert clients[SHARING].cost_rounds == 2
    assert ", 7.0 J, " in clients[SHARING].cost
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(server_commands, ["status", str(out)]).output
    assert "cost of a round" in shown
    assert clients[SHARING].cost in shown


def test_an_unsound_cost_is_left_out_and_its_report_is_not(
    settings: Settings,
    server_config: RunConfig,
    short: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledgers = []
    for number, (forged, reason) in enumerate(
        [
            (b"rubbish", "a frame of 7 bytes is truncated"),
            (RoundCost(bytes(8), SHARING, 1.0, 0.0, 1.0).encode(), "belongs to another answer"),
            (RoundCost(bytes(8), SHARING, 1.0, 0.0, 1e30).encode(), "is out of range"),
        ]
    ):
        Forging.forged = forged
        (short / str(number)).mkdir()
        out, _ = run(settings, server_config, short / str(number), Forging)
        assert costs_of(out) == {SHARING: [None, None], SILENT: [None, None]}
        assert reason in caplog.text
        assert [one.reports for one in RunResult.read(out).rounds] == [2, 2]
        ledgers.append(ledger_of(out))
    (short / "sound").mkdir()
    assert ledger_of(run(settings, server_config, short / "sound")[0]) == ledgers[0]
    assert ledgers[0] == ledgers[1] == ledgers[2]


def test_a_cost_without_energy_has_no_watts() -> None:
    assert ClientStatus().cost == ""
    status = ClientStatus(cost_rounds=2, cost_seconds=5.0)
    assert status.cost == "2.5 s"
    assert ClientStatus(cost_rounds=2, cost_seconds=5.0, cost_joules=50.0).cost == (
        "2.5 s, 25.0 J, 10.0 W"
    )
