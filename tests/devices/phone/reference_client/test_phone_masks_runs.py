"""Runs of a board and of phones behind a gateway, with masked reports, on real sockets."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from federations import Settings, config_of
from flwr.app import Message
from gateways import Served, keys_in, serve_phones
from known_noise import add_known_noise
from masked_rounds import Device
from phones import exported, phone_of, splits_of, use_torch_as_runtime
from residents import device_settings
from typescript import node_process
from web_phones import serve_page

from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.limits.privacy_budget import Charge, ChargeLog
from samara.client.protocol import private_report
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.client.training.model_runtime import load_run
from samara.devices.gateway import relay
from samara.devices.gateway.page_server.page_app import STREAM_PATH
from samara.devices.live.connection import gateway_stream
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.phone.manifest import manifest_file
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.server.app import serve
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.server.transport.phone_grid import PhoneGrid
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import hide_report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import to_float32
from samara.shared.protocol.signing import SigningKey
from samara.shared.protocol.wire import FRAMES, RECORD, Kind, kind_of
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

BOARD, PHONES, MOST_PHONES = 7, 3, 5
SMALL = {
    "task": "sst2",
    "learning-rate": 0.1,
    "personal.rounds": 0,
    "steps": 2,
    "queries": 2,
    "batch": 4,
    "threads": 1,
}
PRIVATE = {
    "adapter__layers": "readout",
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "method": "global",
    "cohort__minimum": 3,
    "cohort__available": 1 + PHONES,
    "privacy__mode": "distributed",
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 0.5,
    "privacy__honest_share": 0.7,
    "privacy__secure_aggregation": True,
    "rounds": 2,
}


class Mixed(InProcessGrid):
    """Delivers messages to a board's trainer behind a socket, and to a gateway."""

    def __init__(self, config: RunConfig, socket: Path, served: Served) -> None:
        gateway = relay.gateway_app(served.gateway, served.loop)
        self.frames: list[bytes] = []

        def app(message: Message, context: Any) -> Message:
            if TRAINER in context.node_config:
                return client_app(message, context)
            reply = gateway(message, context)
            self.frames += reply.content.config_records[RECORD][FRAMES]  # type: ignore[arg-type]
            return reply

        nodes = [{TRAINER: str(socket)}, {}]
        super().__init__(app, len(nodes), config.flat(), nodes=nodes)  # type: ignore[arg-type]


class Lost(grpc.RpcError):
    """The error of a broken stream."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the stream broke"


class Shaky:
    """A phone whose stream breaks after the phone has made its answer.

    Args:
        make: function that starts the phone.
        restarts: by round, the exchange in which the stream breaks and the phone's process is
            stopped. With None, the stream breaks once in every exchange.
    """

    def __init__(self, make: Callable[[], Phone], restarts: Mapping[int, Kind] | None) -> None:
        self._make, self._restarts, self._phone = make, restarts, make()
        self._broken, self._round = set[bytes](), 0

    def answer(self, task: Task) -> bytes:
        frame, answer = task.instruction, self._phone.answer(task)
        if task.kind == TaskKind.HELLO:
            return answer
        if task.kind == TaskKind.MASK:
            self._round += kind_of(frame) is Kind.KEY_REQUEST and frame not in self._broken
        return self._answered(frame, answer)

    def _answered(self, frame: bytes, answer: bytes) -> bytes:
        if frame in self._broken:
            return answer
        stopped = self._restarts and self._restarts.get(self._round) is kind_of(frame)
        if self._restarts is None or stopped:
            self._broken.add(frame)
            self._phone = self._make() if stopped else self._phone
            raise Lost
        return answer


class Field:
    """A board and phones whose keys, examples and program are the same in every run."""

    def __init__(self, settings: Settings, folder: Path, short: Path) -> None:
        self.settings, self.folder, self.short = settings, folder, short
        self.keys = keys_in(folder, MOST_PHONES)
        config = self.config("plain")
        file = exported(config.flat(), folder / "phone.pte")
        program = load_program(file)
        # what a browser needs of a manifest is the same for ONNX Runtime
        manifest = json.loads(manifest_file(file).read_text())
        self.manifest = json.dumps(manifest | {"version": 3, "runtime": "onnx", "delegate": "none"})
        data, self.trainers = load_run(config)[1], list[PhoneLearner]()
        for number in range(MOST_PHONES):
            rows = folder / f"rows-{number}.jsonl"
            rows.write_text(examples_as_jsonl(data.share_of(number % PHONES, PHONES)))
            self.trainers.append(PhoneLearner(program, read_examples(rows, program.manifest)))

    def config(self, out: str, **changes: Any) -> RunConfig:
        return config_of(self.settings, **(PRIVATE | changes | {"out": str(self.folder / out)}))

    def charges_of(self, number: int, config: RunConfig) -> list[Charge]:
        return ChargeLog(self._home(number, config)).read()

    def run(
        self,
        config: RunConfig,
        disturb: Callable[..., Any] | None = None,
        phone_count: int = PHONES,
        are_pages: bool = False,
    ) -> Mixed:
        """Serve a run. `disturb` gets the function that makes the first phone, and makes it."""
        own = device_settings(self.settings, BOARD, Path(f"{config.out}-board"))
        socket = self.short / f"{Path(config.out).name}.sock"

        def load() -> ResidentTrainer:
            return ResidentTrainer.load(own.config, BOARD, own.folder, Device())

        with serve_trainer(load, socket), serve_phones(self.keys) as served, ExitStack() as phones:
            for number in range(phone_count):
                make = partial(self._phone, number, config)
                if are_pages:
                    phones.enter_context(self._page(served, number))
                    continue
                phone = disturb(make) if disturb and number == 0 else make()
                phones.enter_context(attached_phone(served, self.keys[number], phone))
            served.until(lambda gateway: len(gateway.attached_phones) == phone_count)
            grid = Mixed(config, socket, served)
            serve(config, PhoneGrid(grid))
        return grid

    @contextmanager
    def _page(self, served: Served, number: int) -> Iterator[None]:
        """The phone of the page: it attaches by WebSocket, with a phone's key and examples."""
        key, folder = self.keys[number], self.folder / f"page-{number}"
        own = {"publicPem": key.public.decode(), "privateKey": pkcs8_of(key).hex()}
        own |= {"curve": "P-384", "splits": splits_of(self.trainers[number])}
        with serve_page(served, folder / "served") as page:
            address = f"ws{page.origin.removeprefix('http')}{STREAM_PATH}"
            own |= {"manifest": self.manifest, "address": address, "origin": page.origin}
            with node_process(folder / "node", own):
                yield

    def _phone(self, number: int, config: RunConfig) -> Phone:
        key, home = self.keys[number], self._home(number, config)
        client = client_index_of_key(key.public)
        return phone_of(self.trainers[number], client, home, signer=key)

    def _home(self, number: int, config: RunConfig) -> Path:
        return Path(f"{config.out}-phone-{number}")


def pkcs8_of(key: SigningKey) -> bytes:
    """The private key in the format that WebCrypto reads."""
    form = Encoding.DER, PrivateFormat.PKCS8, NoEncryption()
    return key._key.private_bytes(*form)


@contextmanager
def attached_phone(served: Served, key: SigningKey, phone: Any) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=attach, args=(phone, key, served.endpoint, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


@pytest.fixture(scope="module")
def field(
    model_folder: Callable[[str], Path],
    data_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Field]:
    with pytest.MonkeyPatch.context() as patch:
        use_torch_as_runtime(patch)
        patch.setattr(gateway_stream, "FIRST_PAUSE", 0.01)
        own = {"model.path": str(model_folder("causal")), "data.path": str(data_file)}
        folder = tmp_path_factory.mktemp("field")
        yield Field(SMALL | own, folder, tmp_path_factory.mktemp("s"))


def reports_of(config: RunConfig) -> list[int]:
    return [event.reports for event in RunResult.read(Path(config.out)).rounds]


@pytest.fixture
def noised(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Client and token of every report to which noise was added."""
    made: list[bytes] = []

    def hide(report: Report, *rest: Any, **named: Any) -> Any:
        made.append(report.token + report.client.to_bytes(4, "little"))
        return hide_report(report, *rest, **named)

    monkeypatch.setattr(private_report, "hide_report", hide)
    return made


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_the_ledger_of_boards_and_phones_is_that_of_the_same_run_without_masks(
    field: Field, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise, coefficients and states are equal bit for bit."""
    add_known_noise(monkeypatch)
    runs, kinds = [], []
    for name, is_masked in (("plain", False), ("masked", True)):
        changes = {"privacy__mode": mode, "privacy__secure_aggregation": is_masked}
        config = field.config(f"{name}-{mode}", **changes)
        grid = field.run(config)
        kinds.append({kind_of(frame) for frame in grid.frames})
        records = list(read_ledger(Path(config.out) / "ledger"))
        groups = [[group.encode() for group in record.delta.groups] for record in records]
        runs.append((groups, [record.end_digest for record in records]))
        assert reports_of(config) == [4, 4]
    assert runs[0] == runs[1]
    assert all(runs[0][0])
    reports = {"central": Kind.VECTOR_REPORT, "distributed": Kind.NOISED_VECTOR_REPORT}
    assert kinds[0] == {Kind.HELLO, reports[mode]}
    assert kinds[1] == {
        *(Kind.HELLO, Kind.MASKING_KEYS, Kind.SEALED_SHARES, Kind.MASKED_REPORT),
        *(Kind.SURVIVOR_SIGNATURE, Kind.REVEALED_SHARES),
    }
    for number in range(PHONES):
        charges = field.charges_of(number, config)
        assert [(charge.round, charge.mode) for charge in charges] == [(1, mode), (2, mode)]


def test_phones_of_the_page_are_in_sums_under_masks(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers' phones give the weights of the reference phones, up to rounding."""
    add_known_noise(monkeypatch)
    changes = {"privacy__mode": "central", "cohort__available": 1 + PHONES}
    ends = []
    for name, are_pages in (("reference", False), ("page", True)):
        config = field.config(name, **changes)
        grid = field.run(config, are_pages=are_pages)
        assert reports_of(config) == [4, 4]
        assert Kind.REVEALED_SHARES in {kind_of(frame) for frame in grid.frames}
        *_, last = verify_ledger(Path(config.out) / "ledger", field.trainers[0].layout)
        ends.append(to_float32(last.state))
    np.testing.assert_allclose(ends[1], ends[0], atol=2e-3 * np.abs(ends[0]).max())


def test_a_phone_that_loses_every_exchange_and_comes_back_is_in_the_sum(
    field: Field, noised: list[bytes]
) -> None:
    config = field.config("shaky", rounds=1)
    field.run(config, lambda make: Shaky(make, None))
    assert reports_of(config) == [4]
    assert len(noised) == len(set(noised)) == 4
    assert len(field.charges_of(0, config)) == 1


def test_a_phone_that_is_stopped_in_an_exchange_has_left_and_adds_no_second_noise(
    field: Field, noised: list[bytes]
) -> None:
    """A phone that has sent only its keys starts again with new keys."""
    asked = (Kind.KEY_REQUEST, Kind.KEY_LIST, Kind.TRAIN, Kind.SURVIVOR_LIST, Kind.SIGNATURE_LIST)
    config = field.config("stopped", rounds=6)
    field.run(config, lambda make: Shaky(make, dict(enumerate(asked, 1))))
    assert reports_of(config) == [4, 3, 3, 4, 4, 4]
    assert len(noised) == len(set(noised)) == 23
    charges = field.charges_of(0, config)
    assert [charge.round for charge in charges] == [1, 3, 4, 5, 6]
    assert len({charge.token for charge in charges}) == 5
    for number in (1, 2):
        assert len(field.charges_of(number, config)) == 6


def test_phones_are_drawn_into_buckets_with_a_sum_of_their_own(
    field: Field, noised: list[bytes]
) -> None:
    """Five phones and a board.

    A phone that leaves after its keys makes its bucket of three fail.
    """
    buckets = {"cohort__available": 1 + MOST_PHONES, "privacy__bucket": 3, "rounds": 2}
    config = field.config("buckets", **buckets)
    field.run(config, lambda make: Shaky(make, {2: Kind.BUCKET_KEY_LIST}), MOST_PHONES)
    rounds = RunResult.read(Path(config.out)).rounds
    assert [(event.reports, event.buckets) for event in rounds] == [(6, 2), (3, 1)]
    releases = read_releases(Path(config.out) / RELEASES_FILE)
    assert [[total.clients for total in one.sums] for one in releases] == [[3, 3], [3]]
    assert len(noised) == len(set(noised)) >= 6 + 3
    for number in range(1, MOST_PHONES):
        assert field.charges_of(number, config)[0].round == 1
