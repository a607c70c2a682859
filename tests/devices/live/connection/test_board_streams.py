"""Boards attached to a gateway compute the same bits as boards behind SuperNodes."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from federations import Settings, config_of
from flwr.app import Message
from gateways import Served, keys_in, serve_phones
from residents import device_settings

from samara.client.app import TRAINER
from samara.client.app import app as client_app
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.gateway import relay
from samara.devices.live.connection.board import Board
from samara.devices.live.connection.gateway_stream import attach
from samara.server.app import serve
from samara.server.transport.phone_grid import PhoneGrid
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

SMALL = {
    "task": "sst2",
    "learning-rate": 0.1,
    "steps": 2,
    "queries": 2,
    "batch": 4,
    "threads": 1,
    "rounds": 3,
    "personal.rounds": 2,
    "evaluate.every": 1,
}
PRIVATE = {
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "method": "global",
    "cohort__minimum": 3,
    "privacy__mode": "distributed",
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 0.5,
    "privacy__honest_share": 0.7,
    "privacy__secure_aggregation": True,
}


class Boards:
    """Three boards with the same keys and examples in every run; the first has a SuperNode."""

    def __init__(self, settings: Settings, folder: Path, short: Path) -> None:
        self.settings, self.folder, self.short = settings, folder, short
        self.keys = keys_in(folder)

    def config(self, out: str, **changes: Any) -> RunConfig:
        shared = {"cohort__available": 3, "out": str(self.folder / out)}
        return config_of(self.settings, **(shared | changes))

    def run(self, config: RunConfig, by_stream: bool) -> InProcessGrid:
        """Serve a run with the other two boards, either by the stream or also by SuperNodes."""
        with ExitStack() as stack:
            sockets = [
                stack.enter_context(self._trainer(number, key, config))
                for number, key in enumerate(self.keys)
            ]
            if not by_stream:
                nodes = [{TRAINER: str(socket)} for socket in sockets]
                grid = InProcessGrid(client_app, 3, config.flat(), nodes=nodes)  # type: ignore[arg-type]
                serve(config, grid)
                return grid
            served = stack.enter_context(serve_phones(self.keys[1:]))
            for socket, key in zip(sockets[1:], self.keys[1:], strict=True):
                stack.enter_context(attached_board(served, key, socket))
            served.until(lambda gateway: len(gateway.attached_phones) == 2)
            gateway = relay.gateway_app(served.gateway, served.loop)

            def app(message: Message, context: Any) -> Message:
                is_board = TRAINER in context.node_config
                return client_app(message, context) if is_board else gateway(message, context)

            nodes = [{TRAINER: str(sockets[0])}, {}]
            grid = InProcessGrid(app, 2, config.flat(), nodes=nodes)  # type: ignore[arg-type]
            serve(config, PhoneGrid(grid))
            return grid

    @contextmanager
    def _trainer(self, number: int, key: SigningKey, config: RunConfig) -> Iterator[Path]:
        name = f"{Path(config.out).name}-{number}"
        client, home = client_index_of_key(key.public), self.folder / name
        own = device_settings(self.settings, client, home)
        socket = self.short / f"{name}.sock"

        def load() -> ResidentTrainer:
            return ResidentTrainer.load(own.config, client, own.folder, key)

        with serve_trainer(load, socket):
            yield socket


@contextmanager
def attached_board(served: Served, key: SigningKey, socket: Path) -> Iterator[None]:
    stop, board = threading.Event(), Board(socket, client_index_of_key(key.public))
    arguments = (board, key, served.endpoint, stop)
    thread = threading.Thread(target=attach, args=arguments, kwargs={"is_board": True}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


@pytest.fixture(scope="module")
def boards(
    model_folder: Callable[[str], Path],
    data_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Boards:
    own = {"model.path": str(model_folder("causal")), "data.path": str(data_file)}
    return Boards(SMALL | own, tmp_path_factory.mktemp("boards"), tmp_path_factory.mktemp("s"))


def test_rounds_evaluations_and_personal_models_are_the_same_by_both_wires(boards: Boards) -> None:
    found = []
    for out, by_stream in (("by-flower", False), ("by-stream", True)):
        config = boards.config(out)
        boards.run(config, by_stream)
        result = RunResult.read(Path(config.out))
        assert len(result.evaluations) >= 4
        # After them the model may return to what it was when it was best on validation.
        assert all(event.reports == 3 for event in result.rounds[: config.rounds])
        content = json.loads((Path(config.out) / "result.json").read_text())
        columns = [event["columns"] for event in content["evaluations"]]
        found.append((result.final_digest, columns))
    assert found[0] == found[1]


def test_boards_mask_and_noise_their_reports_by_both_wires(boards: Boards) -> None:
    config = boards.config("masked", personal__rounds=0, evaluate__every=0, **PRIVATE)
    boards.run(config, by_stream=True)
    rounds = json.loads((Path(config.out) / "result.json").read_text())["rounds"]
    assert [event["reports"] for event in rounds] == [3, 3, 3]
    behind = sorted(client_index_of_key(key.public) for key in boards.keys[1:])
    assert [event["by_stream"] for event in rounds] == [behind] * 3
