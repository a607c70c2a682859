"""A later private round that fails or leaves the exact range is reverted; the client goes on."""

import json
from typing import Any

import pytest
from federations import Settings, config_of, wrap_local_steps

from samara.client.personal.methods import ERASURE
from samara.server.store import read_layout
from samara.shared.errors import ReplayError, TrainingError
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.step_size import SETBACK
from samara.shared.results.result import RunResult
from samara.simulations.simulate import simulate

RATE = 0.1


@pytest.mark.parametrize("method", ["local", "ditto"])
@pytest.mark.parametrize("error", [ReplayError, TrainingError])
def test_a_later_round_is_reverted(
    method: str,
    error: type[Exception],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def third_fails(
        plain: Any, runtime: Any, data: Any, instruction: TrainInstruction, *rest: Any
    ) -> Report:
        if instruction.track == PERSONAL_TRACK and instruction.round == 3:
            raise error("too far")
        report: Report = plain(runtime, data, instruction, *rest)
        return report

    wrap_local_steps(monkeypatch, third_fails)
    rounds = {"rounds": 1, "personal__rounds": 5, "personal__learning_rate": RATE}
    config = config_of(settings, method=method, **rounds)
    folder = simulate(config)
    for client in range(config.data.clients):
        message = f"client {client}: the loss rises too far in private round 3; reverting"
        assert message in caplog.text
        own = folder / "clients" / str(client)
        records = list(read_ledger(own / "personal.ledger"))
        assert [record.delta.round for record in records] == [*range(1, config.private_rounds + 1)]
        third = records[2]
        assert (third.delta.entries == ERASURE) == (method == "ditto")
        if method == "local":
            layout = read_layout(folder)
            assert third.end_digest == digest(layout.hash, zero_state(layout.size))
        assert records[-1].end_digest != third.end_digest
        lines = (own / "personal_step_size.jsonl").read_text().splitlines()
        rates = [json.loads(line)["learning_rate"] for line in lines]
        assert rates == pytest.approx([RATE] * 3 + [SETBACK * RATE] * (len(rates) - 3))
    last = RunResult.read(folder).evaluations[-1]
    assert all(len(its.clients) == config.data.clients for its in last.columns.values())


def test_an_error_in_the_first_round_is_a_refusal(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def client_0_fails(plain: Any, *arguments: Any) -> Report:
        report: Report = plain(*arguments)
        if report.client == 0:
            raise ReplayError("too far")
        return report

    wrap_local_steps(monkeypatch, client_0_fails)
    folder = simulate(config_of(settings, method="local", personal__learning_rate=RATE))
    (refusal,) = RunResult.read(folder).evaluations[-1].refused.items()
    assert refusal[0] == 0
    assert refusal[1].startswith("coefficients do not fit the exact range of its state")
    assert "client 0 refuses: too far" in caplog.text
