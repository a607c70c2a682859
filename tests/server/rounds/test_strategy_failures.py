"""Rounds with failures: absent and late clients, few reports, revoked keys, hostile frames."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import ledger_of, short_run
from flwr.app import Error, Message, MessageType, UserConfig
from helpers import no_room

from benchmarks.faults.toy_client import app
from samara.client.limits.device_settings import CLIENT_INDEX
from samara.server.app import serve
from samara.server.live.keys import KEYS_VARIABLE, ClientKeys
from samara.server.live.status import read_status
from samara.server.restored_run import RestoredRun
from samara.server.rounds.recorded_cohorts import RecordedCohorts, read_cohorts
from samara.server.store import replay_run
from samara.server.transport.deadline_grid import DeadlineGrid
from samara.shared.errors import ConfigError, LedgerError, SamaraError, TrainingError
from samara.shared.flower_compat import ErrorCode
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid

CLIENTS = 4


class Unpunctual(InProcessGrid):
    """Delivers a reply a given number of rounds late; with None it never delivers the reply."""

    delay: Callable[[int, int], int | None] = staticmethod(lambda client, number: 0)
    tamper: Callable[[Message, int, int], Message] = staticmethod(lambda reply, client, n: reply)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        identifiers = list(super().push_messages(messages))
        self.due = getattr(self, "due", {})
        for identifier, message in zip(identifiers, messages, strict=True):
            if message.metadata.message_type == MessageType.TRAIN:
                self.now = int(message.metadata.group_id)
                client = message.metadata.dst_node_id - 1000
                late = self.delay(client, self.now)
                self.due[identifier] = 10**9 if late is None else self.now + late
                tampered = self.tamper(self._replies[identifier], client, self.now)
                self._replies[identifier] = tampered
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [i for i in message_ids if i not in self.due or self.due[i] <= self.now]
        return super().pull_messages(ready)


def config_of(out: Path, **changes: Any) -> RunConfig:
    return short_run(CLIENTS, out, **{"rounds": 4} | changes)


def grid_of(
    config: RunConfig,
    delay: Callable[[int, int], int | None] = lambda client, number: 0,
    tamper: Callable[[Message, int, int], Message] = lambda reply, client, number: reply,
    indices: Sequence[int] = (),
) -> Unpunctual:
    nodes: list[UserConfig] = [{CLIENT_INDEX: index} for index in indices]
    grid = Unpunctual(app, config.data.clients, config.flat(), nodes=nodes)
    grid.delay, grid.tamper = delay, tamper  # type: ignore[method-assign]
    return grid


def contributors(run: Path) -> list[list[int]]:
    return [[c.client for c in r.delta.contributors] for r in read_ledger(run / "ledger")]


def test_who_is_absent_does_not_hold_the_round(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, grid_of(config, lambda client, n: None if (client, n) == (2, 2) else 0))
    assert contributors(run) == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    rounds = read_result(run)["rounds"]
    assert [event["absent"] for event in rounds] == [[], [2], [], []]
    assert list(replay_run(run))[-1].round == 4


def test_a_late_report_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, grid_of(config, lambda client, n: 1 if (client, n) == (2, 2) else 0))
    assert contributors(run)[1:3] == [[0, 1, 3], [0, 1, 2, 3]]
    origins = [sorted(of.values()) for of in read_cohorts(run).values()]
    assert origins == [[1] * 4, [2] * 3, [3] * 4, [4] * 4]


def test_a_late_report_counts_once_with_the_directions_of_its_round(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", cohort__late_rounds=2)

    def delay(client: int, number: int) -> int | None:
        if client == 2:
            return {1: 2, 4: 0}.get(number)
        return 0

    run = serve(config, grid_of(config, delay))
    assert contributors(run) == [[0, 1, 3], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert read_cohorts(run)[3] == {0: 3, 1: 3, 2: 1, 3: 3}
    assert read_result(run)["rounds"][2]["late"] == {"2": 1}
    repeated = config_of(tmp_path / "again", cohort__late_rounds=2)
    again = serve(
        repeated,
        InProcessGrid(app, CLIENTS, repeated.flat()),
        RecordedCohorts(read_cohorts(run)),
    )
    assert read_result(again)["final_digest"] == read_result(run)["final_digest"]
    assert contributors(again) == contributors(run)


def test_the_cohorts_of_a_run_with_an_empty_round_can_be_repeated(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", cohort__fraction=0.5)
    run = serve(config, grid_of(config, lambda client, n: None if n == 2 else 0))
    assert [len(cohort) for cohort in contributors(run)] == [2, 0, 2, 2]
    assert read_result(run)["rounds"][1]["loss"] is None
    repeated = config_of(tmp_path / "again", cohort__fraction=0.5)
    grid = InProcessGrid(app, CLIENTS, repeated.flat())
    again = serve(repeated, grid, RecordedCohorts(read_cohorts(run)))
    assert read_result(again)["final_digest"] == read_result(run)["final_digest"]


def test_a_run_in_which_nobody_reports_any_more_ends_with_the_reasons(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", rounds=9, cohort__empty_rounds=2, cohort__patience=9)
    with pytest.raises(TrainingError, match="round 3: 2 rounds in a row had no usable report"):
        serve(config, grid_of(config, lambda client, n: None if n > 1 else 0))
    assert contributors(tmp_path / "run") == [[0, 1, 2, 3], [], []]


def test_a_restored_run_is_not_ended_before_its_first_report(tmp_path: Path) -> None:
    """A client with a signed scenario does not repeat its answers to rounds after the backup."""
    config = config_of(tmp_path / "run", rounds=4, cohort__empty_rounds=2, cohort__patience=100)
    (tmp_path / "run").mkdir()
    RestoredRun(time="", taken="", round=0, moved=False).write(tmp_path / "run")
    run = serve(config, grid_of(config, lambda client, n: None if n < 4 else 0))
    assert contributors(run) == [[], [], [], [0, 1, 2, 3]]


def test_a_device_that_keeps_failing_rests(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", rounds=9)
    grid = grid_of(config, lambda client, n: None if client == 1 and n < 7 else 0)
    rounds = read_result(serve(config, grid))["rounds"]
    assert [event["absent"] for event in rounds] == [[1], [1], [1], [], [1], [], [], [], []]
    assert [event["resting"] for event in rounds] == [[], [], [1], [], [1], [1], [], [], []]
    assert contributors(Path(config.out))[7] == [0, 1, 2, 3]


def test_a_round_ends_with_the_first_of_those_who_were_asked(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", cohort__fraction=0.5, cohort__oversample=2.0)
    run = serve(config, grid_of(config, lambda client, n: None if client < 2 else 0))
    assert contributors(run) == [[2, 3]] * 4
    assert [event["absent"] for event in read_result(run)["rounds"]] == [[]] * 4


def test_a_report_that_is_sent_again_is_not_folded_again(tmp_path: Path) -> None:
    """Device 0 answers round 3 with the bytes of its report for round 1."""
    kept: list[bytes] = []

    def replays(reply: Message, client: int, number: int) -> Message:
        record = reply.content.config_records["samara"]
        if client == 0 and number == 1:
            kept.append(bytes(record["frame"]))  # type: ignore[arg-type]
        if client == 0 and number == 3:
            record["frame"] = kept[0]
        return reply

    config = config_of(tmp_path / "run", cohort__late_rounds=4)
    run = serve(config, grid_of(config, tamper=replays))
    assert contributors(run) == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    assert "round 1 is already in the ledger" in read_result(run)["rounds"][2]["refused"]["0"]


class Repeating(InProcessGrid):
    """Delivers every report of client 1 twice."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        for reply in super().pull_messages(message_ids):
            yield reply
            metadata = reply.metadata
            if (metadata.message_type, metadata.src_node_id) == (MessageType.TRAIN, 1001):
                yield reply


def test_a_client_that_answers_twice_is_counted_once_and_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, Repeating(app, CLIENTS, config.flat()))
    assert contributors(run) == [[0, 1, 2, 3]] * 4
    result = read_result(run)
    assert result["refused"] == {}
    assert [event["resting"] for event in result["rounds"]] == [[]] * 4
    assert "client 1: another answer is dropped: it answers twice" in caplog.text


def test_a_flood_and_a_strangers_words_leave_no_mark(tmp_path: Path) -> None:
    def floods(reply: Message, client: int, number: int) -> Message:
        record = reply.content.config_records["samara"]
        if client == 0:
            record["frame"] = bytes(10 * 2**20)
        if client == 1:
            sound = Report.decode(bytes(record["frame"]))  # type: ignore[arg-type]
            sound.gradients[0, 0] = np.nan
            record["frame"] = sound.encode()
        return reply

    config = config_of(tmp_path / "run", rounds=1)
    run = serve(config, grid_of(config, tamper=floods))
    (only,) = read_result(run)["rounds"]
    assert contributors(run) == [[2, 3]]
    assert "10485760 bytes is longer" in only["refused"]["0"]
    assert "not finite" in only["refused"]["1"]
    assert read_result(run)["refused"] == {"0": 1, "1": 1}


def test_a_revoked_devices_reports_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ClientKeys(tmp_path / "run" / "keys")
    for number in range(CLIENTS):
        keys.create(f"client-{number}")
    public = [key.public_key.encode() for key in keys.read_all()]
    indices = [key.client for key in keys.read_all()]
    public[3] = b"of a stranger"
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path / "run" / "keys"))
    monkeypatch.setattr(
        DeadlineGrid,
        "connected_nodes",
        lambda post: {n: public[n - 1000] for n in post.get_node_ids()},
    )

    def revokes(reply: Message, client: int, number: int) -> Message:
        if (client, number) == (1, 2):
            keys.revoke("client-1")
        return reply

    config = config_of(tmp_path / "run")
    run = serve(config, grid_of(config, tamper=revokes, indices=indices))
    first, second, third, stranger = indices
    assert contributors(run) == [sorted(indices[:3]), *[sorted([first, third])] * 3]
    refused = read_result(run)["rounds"][1]["refused"]
    assert "its key client-1 was revoked" in refused[str(second)]
    status = read_status(tmp_path / "run")
    assert (status.round, list(status.clients)) == (4, sorted(indices))
    assert (status.clients[second].name, status.clients[second].state) == ("client-1", "revoked")
    assert (status.clients[third].reports, status.clients[third].round) == (4, 3)
    assert status.clients[stranger].reports == 0


@pytest.mark.parametrize("size", [200, 400, 800, 1_200, 1_600, 2_000, 2_500, 3_000, 3_500, 4_000])
def test_a_full_disk_ends_the_run_cleanly_and_it_goes_on(tmp_path: Path, size: int) -> None:
    config = config_of(tmp_path / "run", rounds=6)
    with no_room(size), pytest.raises(LedgerError, match=r"cannot be|No space|too large"):
        serve(config, grid_of(config))
    assert not (tmp_path / "run" / "result.json").exists()
    run = serve(config, grid_of(config))
    whole = config_of(tmp_path / "whole", rounds=6)
    assert ledger_of(run) == ledger_of(serve(whole, grid_of(whole)))


class Misheard(InProcessGrid):
    """Delivers a changed first hello of every client."""

    def __init__(self, config: RunConfig, first: Callable[[Message], Message]) -> None:
        super().__init__(app, config.data.clients, config.flat())
        self._first, self._heard = first, 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        hellos = [r for r in replies if r.metadata.message_type == MessageType.QUERY]
        self._heard += len(hellos)
        return list(map(self._first, replies)) if self._heard <= CLIENTS else replies


def lost(reply: Message) -> Message:
    reply.__dict__["_content"] = None
    reply.__dict__["_error"] = Error(ErrorCode.MESSAGE_UNAVAILABLE, "it expired")
    return reply


def test_a_hello_that_is_lost_is_asked_for_again(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", rounds=1)
    assert contributors(serve(config, Misheard(config, lost))) == [[0, 1, 2, 3]]


class LateHello(InProcessGrid):
    """Loses the first hello of the last client, and delivers its second at the sixth request."""

    pulls = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        last = FIRST_CLIENT_NODE + CLIENTS - 1
        late = {m for m, reply in self._replies.items() if reply.metadata.src_node_id == last}
        hidden = late if 1 < self.pulls < 6 else set[str]()
        replies = super().pull_messages([m for m in message_ids if m not in hidden])
        return [
            lost(r) if self.pulls == 1 and r.metadata.src_node_id == last else r for r in replies
        ]


def test_a_run_begins_with_the_clients_that_it_waits_for(tmp_path: Path) -> None:
    """Fewer hellos do not begin it, even if they are a quorum and enough for a round."""
    settings = {"cohort__available": CLIENTS, "cohort__minimum": 2, "cohort__timeout": 60.0}
    config = config_of(tmp_path / "run", rounds=1, **settings)
    assert contributors(serve(config, LateHello(app, CLIENTS, config.flat()))) == [[0, 1, 2, 3]]


def test_a_live_run_waits_on_when_nobody_can_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.server.transport.roster._REFUSED_SECONDS", 0.0)

    def garbage(reply: Message) -> Message:
        reply.content.config_records["samara"]["frame"] = b"garbage"
        return reply

    config = config_of(tmp_path / "run", rounds=1)
    with pytest.raises(SamaraError, match=r"no client can take part: .* truncated"):
        serve(config, Misheard(config, garbage))
    run = serve(config, Misheard(config, garbage), patient=True)
    assert contributors(run) == [[0, 1, 2, 3]]


def test_late_reports_need_directions_of_their_own() -> None:
    with pytest.raises(
        ConfigError, match="seed-policy shared: a late report needs its own directions"
    ):
        RunConfig.of({"cohort.late-rounds": 1, "seed-policy": "shared"}, "test")
