"""Masked runs whose server or client gets kill -9 between two frames, or around a write."""

import json
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Live, Settings
from flwr.app import Message
from killed_runs import Steps, die_at
from masked_runs import masked
from residents import START_SECONDS, device_settings

from samara.client.app import TRAINER
from samara.client.limits.privacy_budget import CHARGES_FILE, ChargeLog
from samara.client.protocol import private_report
from samara.client.protocol.masking_client import MaskingClient
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session_store import SessionFolder
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.keys import create_key
from samara.server.app import serve
from samara.server.rounds.releases import RELEASES_FILE, ReleaseLog, read_releases
from samara.server.rounds.secure_aggregation import SecureAggregation
from samara.server.store import replay_run
from samara.shared.protocol.frames.vector_report import hide_report
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.signing import SigningKey
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS, ROUNDS, FRAMES = (7, 9, 11, 4_000_000_000), 3, 5
KILLED = CLIENTS[0]
ON_SERVER: Steps = {
    "begin": (SecureAggregation, "_note_begin", 1),
    "frame": (InProcessGrid, "_deliver", 3 * FRAMES),
    "release": (ReleaseLog, "add", 1),
    "ledger": (Ledger, "append", 1),
}
"""The server's methods that deliver or write in a round of three clients, with their calls."""
ON_CLIENT: Steps = {
    "answer": (MaskingClient, "answer", FRAMES),
    "charge": (ChargeLog, "add", 1),
    "session": (SessionFolder, "write_session", 2),
}
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["samara.client.app", "samara.client.protocol.resident_trainer", "samara.server.app"]
)


def moments(steps: Steps, shown: Sequence[str]) -> list[Any]:
    """Return the moments before and after each call of the second round; most are exhaustive.

    The moment after one frame is before the next frame, or before a write.
    """
    return [
        pytest.param(moment, marks=() if moment in shown else pytest.mark.exhaustive)
        for step, (_, _, calls) in steps.items()
        for number in range(calls + 1, 2 * calls + 1)
        for moment in (f"before {step} {number}", f"after {step} {number}")
        if not moment.startswith("after frame")
    ]


def config_of(settings: Settings, clients: int) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return masked(settings | theirs, cohort__available=clients, rounds=ROUNDS)


def socket(place: Path, client: int) -> Path:
    return place / f"{client}.sock"


@contextmanager
def running(settings: Settings, client: int, place: Path) -> Iterator[None]:
    """Serve the socket of a client's trainer."""
    own, file = device_settings(settings, client, place / str(client)), place / f"{client}.key"

    def load() -> ResidentTrainer:
        return ResidentTrainer.load(own.config, client, own.folder, SigningKey(file))

    with serve_trainer(load, socket(place, client)):
        yield


def record_vectors(place: Path) -> None:
    """Make the clients of this process append each noised vector to a file of the client."""

    def hide(*arguments: Any, **options: Any) -> Any:
        hidden = hide_report(*arguments, **options)
        line = {"token": hidden.token.hex(), "vector": hidden.vector.tolist()}
        with (place / f"{hidden.client}.vectors").open("a") as written:
            written.write(json.dumps(line) + "\n")
        return hidden

    private_report.hide_report = hide  # type: ignore[attr-defined]


def vectors_of(place: Path, client: int) -> dict[str, list[int]]:
    """Return the noised vector for each instruction; there must be only one each."""
    lines = [json.loads(line) for line in (place / f"{client}.vectors").read_text().splitlines()]
    found = {line["token"]: line["vector"] for line in lines}
    assert len(found) == len(lines)
    return found


def serve_until_killed(settings: Settings, place: Path, clients: int, moment: str) -> None:
    die_at(moment, ON_SERVER)
    config = config_of(settings, clients)
    serve(config, Live([socket(place, client) for client in CLIENTS[-clients:]], config))


def run_client(settings: Settings, place: Path, client: int, moment: str) -> None:
    if moment:
        die_at(moment, ON_CLIENT)
    record_vectors(place)
    with running(settings, client, place):
        signal.pause()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a short path for sockets; the files of the clients' vectors are there."""
    folder = tmp_path_factory.mktemp("s")
    monkeypatch.setattr(private_report, "hide_report", hide_report)
    record_vectors(folder)
    for client in CLIENTS:
        create_key(folder / f"{client}.key")
    return folder


class Patient(Live):
    """Waits until a starting client listens, however busy the machine is."""

    def _deliver(self, message: Message) -> Message:
        node = self._contexts[message.metadata.dst_node_id].node_config
        with RemoteTrainer(str(node[TRAINER]), START_SECONDS):
            return super()._deliver(message)


def start(target: Callable[..., None], *arguments: Any) -> Any:
    process = PROCESSES.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def assert_nothing_twice_and_nothing_lost(place: Path, config: RunConfig) -> None:
    """Check that each sum has vectors that left once and were charged, and gives the ledger."""
    folder, charged = Path(config.out), dict[int, set[str]]()
    for client in CLIENTS[-config.cohort.available :]:
        (own,) = (place / str(client)).rglob(CHARGES_FILE)
        tokens = [charge.token.hex() for charge in ChargeLog(own.parent).read()]
        charged[client] = set(tokens)
        assert len(tokens) == len(charged[client])
        assert charged[client] <= vectors_of(place, client).keys()
    result = RunResult.read(folder)
    releases = {release.token: release for release in read_releases(folder / RELEASES_FILE)}
    records = list(read_ledger(folder / "ledger"))
    assert [record.delta.round for record in records] == [1, 2, 3]
    assert [r.delta.token for r in records if r.delta.groups] == list(releases)
    told = {event.round: event for event in result.rounds}
    for record in records:
        release, event = releases.get(record.delta.token), told[record.delta.round]
        if release is None:
            assert str(event.problem).startswith("the round is abandoned: ")
            continue
        (total,) = release.sums
        token = release.token.hex()
        reporting = set(event.clients) or set(charged)  # after a restart nobody is asked
        assert all(token in charged[client] for client in reporting)
        plain = np.sum([vectors_of(place, client)[token] for client in reporting], axis=0)
        assert total.total.tolist() == plain.tolist()
        assert total.clients == len(reporting)
    *_, last = replay_run(folder)
    assert last.round == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("moment", moments(ON_SERVER, ("before frame 26",)))
def test_a_server_that_is_killed_unmasks_no_round_twice(
    settings: Settings, place: Path, moment: str
) -> None:
    """The restarted server repeats the round only if its masking had not begun."""
    clients = CLIENTS[-3:]
    with ExitStack() as stack:
        for client in clients:
            stack.enter_context(running(settings, client, place))
        killed = start(serve_until_killed, settings, place, len(clients), moment)
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        config = config_of(settings, len(clients))
        sockets = [socket(place, client) for client in clients]
        result = RunResult.read(serve(config, Live(sockets, config)))
    is_abandoned = "frame" in moment or moment in ("after begin 2", "before release 2")
    assert [event.reports for event in result.rounds] == [3, 0 if is_abandoned else 3, 3]
    if is_abandoned:
        assert "the server was stopped after masking had begun" in str(result.rounds[1].problem)
    assert_nothing_twice_and_nothing_lost(place, config)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [4, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("moment", moments(ON_CLIENT, ("after charge 2",)))
def test_a_client_that_is_killed_is_a_drop_out_and_takes_part_again(
    settings: Settings, place: Path, moment: str, clients: int
) -> None:
    """Three of four clients are enough for a sum; two of three are too few."""
    config = config_of(settings, clients)
    killed, *others = CLIENTS[-clients:]
    processes = [start(run_client, settings, place, killed, moment)]

    def supervise() -> None:
        processes[0].join()
        if processes[0].exitcode == -signal.SIGKILL:
            processes.append(start(run_client, settings, place, killed, ""))

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        with ExitStack() as stack:
            for client in others:
                stack.enter_context(running(settings, client, place))
            sockets = [socket(place, client) for client in (killed, *others)]
            result = RunResult.read(serve(config, Patient(sockets, config)))
    finally:
        processes[0].kill()
        supervisor.join()
        for process in processes:
            process.kill()
            process.join()
    assert len(processes) == 2, "it was not killed"
    _, step, number = moment.split()
    has_left = step == "answer" and int(number) > 2 * FRAMES - 2
    reports = 0 if clients == 3 else clients if has_left else clients - 1
    assert [event.reports for event in result.rounds] == [clients, reports, clients]
    assert_nothing_twice_and_nothing_lost(place, config)
