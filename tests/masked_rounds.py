"""Rounds of secure aggregation without a model, with the real clients and server.

The frames are passed on in this process, and the clients' vectors are random.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from samara.client.protocol.client import make_refusal
from samara.client.protocol.masking_client import MaskingClient, MaskingMemory
from samara.server.rounds.event_log import EventLog
from samara.server.rounds.planner import Request
from samara.server.rounds.private_aggregator import PrivateAggregator
from samara.server.rounds.report_validation import LateReportFilter, ReplyValidator
from samara.server.rounds.secure_aggregation import MaskedAnswers, SecureAggregation
from samara.server.store import RunStore
from samara.server.transport.messages import make_message
from samara.server.transport.roster import Roster, RosterEntry
from samara.shared.errors import SamaraError
from samara.shared.privacy.mechanism import Mechanism
from samara.shared.privacy.vector import numbers_of
from samara.shared.protocol.frames.instructions import (
    GLOBAL_TRACK,
    SeedPolicy,
    TrainInstruction,
    make_local_instruction,
    token_of,
)
from samara.shared.protocol.frames.vector_report import VectorReport
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.signing import public_pem, sign
from samara.shared.protocol.wire import MASKING_ACTION, RECORD, SHARES, Kind, kind_of
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

STAGE_OF = {
    Kind.KEY_REQUEST: "keys",
    Kind.KEY_LIST: "shares",
    Kind.BUCKET_KEY_LIST: "shares",
    Kind.TRAIN: "report",
    Kind.SURVIVOR_LIST: "signature",
    Kind.SIGNATURE_LIST: "reveal",
}
"""The stage of a round, by the kind of the frame that a client receives."""
STAGES = tuple(dict.fromkeys(STAGE_OF.values()))


def stage_of(message: Message) -> str:
    """Return the stage to which a message to a client belongs."""
    return STAGE_OF[kind_of(cast(bytes, message.content.config_records[RECORD]["frame"]))]


class Device:
    """A device's own key, and its masks in memory."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.public, self.memory = public_pem(self._key), MaskingMemory()

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes, DER."""
        return sign(self._key, data)


class MaskedGrid(InProcessGrid):
    """A grid to clients with random vectors, some of which leave before a stage.

    Args:
        clients: client indices.
        minimum: ``cohort.minimum``.
        scalars: projected gradients of a report, K · q.
        bucket: ``privacy.bucket``.

    Attributes:
        nodes: Flower's id of each client's node.
        leaves: by client, the first stage in which it does not take part.
        forge: function of stage, client and answer that returns the answer that the server
            receives.
        sent: frames that have left clients, by stage and client.
        seconds: processor seconds of all clients together.
    """

    def __init__(self, clients: Sequence[int], minimum: int, scalars: int, bucket: int = 0) -> None:
        app = ClientApp()
        app.query(MASKING_ACTION)(self._answer)
        app.train()(self._answer)
        super().__init__(app, len(clients), {})
        self.nodes = dict(zip(clients, self.get_node_ids(), strict=True))
        self.scalars, self.bucket, self.seconds = scalars, bucket, 0.0
        self.devices = {client: Device() for client in clients}
        self.clients = {
            client: MaskingClient(client, device, device.memory, minimum, bucket)
            for client, device in self.devices.items()
        }
        rng = np.random.default_rng(0)
        self.vectors = {
            client: rng.integers(-(2**18), 2**18, numbers_of(scalars), np.int32)
            for client in self.clients
        }
        self.leaves: dict[int, str] = {}
        self.forge: Callable[[str, int, bytes], bytes] = lambda stage, client, frame: frame
        self.sent: dict[tuple[str, int], bytes] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages to the clients that have not left."""
        stays = dict.fromkeys(self.nodes.values(), len(STAGES))
        stays |= {self.nodes[client]: STAGES.index(stage) for client, stage in self.leaves.items()}
        return super().push_messages(
            message
            for message in messages
            if STAGES.index(stage_of(message)) < stays[message.metadata.dst_node_id]
        )

    def _answer(self, message: Message, context: Context) -> Message:
        begun = time.process_time()
        client = list(self.clients)[int(context.node_config["partition-id"])]
        record = message.content.config_records[RECORD]
        frame = cast(bytes, record["frame"])
        stage = stage_of(message)
        try:
            if stage == "report":
                self.clients[client].answer(cast(bytes, record[SHARES]))
                report = VectorReport(token_of(frame), client, self.vectors[client])
                answer = self.clients[client].mask(report).encode()
            else:
                answer = self.clients[client].answer(frame)
        except SamaraError as error:
            answer = make_refusal(frame, client, 0, error)
        self.seconds += time.process_time() - begun
        answer = self.forge(stage, client, answer)
        self.sent[stage, client] = answer
        content = RecordDict({RECORD: ConfigRecord({"frame": answer})})
        return Message(content, reply_to=message)


class MaskedServer:
    """The server's side of rounds with masks.

    Args:
        folder: folder of the run.
        grid: grid to the clients.
        minimum: ``cohort.minimum``.

    Attributes:
        is_released: whether the next round counts as released.
    """

    def __init__(self, folder: Path, grid: MaskedGrid, minimum: int) -> None:
        self.grid, self.is_released = grid, False
        own: dict[str, str | int | float] = {"cohort.minimum": minimum, "method": "global"}
        if grid.bucket:
            own |= {"privacy.bucket": grid.bucket, "privacy.mode": "central"}
            own |= {"privacy.noise-multiplier": 1.0, "privacy.secure-aggregation": True}
            own |= {"seed-policy": "shared", "aggregation.rule": "mean"}
        config = RunConfig.of(own, "masked rounds")
        roster = Roster()
        for client, device in grid.devices.items():
            node = grid.nodes[client]
            roster.entries[node] = RosterEntry(node, client, 0, 0, {}, device.public)
        store = cast(RunStore, SimpleNamespace(folder=folder))
        events = cast(EventLog, SimpleNamespace(log_refusal=lambda client, reason: None))
        validator = ReplyValidator(config, roster, LateReportFilter(0), events)
        private = SimpleNamespace(
            mechanism=Mechanism("central", 1.0, 1, numbers_of(grid.scalars)),
            is_released=lambda token: self.is_released,
        )
        self.aggregation = SecureAggregation(
            config, store, validator, cast(PrivateAggregator, private)
        )

    def request(self, number: int) -> Request[TrainInstruction]:
        """Return the instruction of a round, and a message for every client."""
        made = make_local_instruction(
            *(number, GLOBAL_TRACK, 0),
            steps=1,
            queries=self.grid.scalars,
            batch=8,
            epsilon=0.01,
            learning_rate=0.1,
            clip=0.0,
            layout_hash=bytes(32),
            start_digest=bytes(32),
        )
        instruction = replace(made, seed_policy=SeedPolicy.SHARED)
        frame, nodes = instruction.encode(), self.grid.nodes
        messages = [
            make_message(node, MessageType.TRAIN, "1", frame, CatchUp(), 10.0)
            for node in nodes.values()
        ]
        return Request(instruction, messages, dict.fromkeys(nodes, len(frame)))

    def begin(self, number: int = 1) -> Request[TrainInstruction]:
        """Let the clients agree on the masks of a round."""
        return self.aggregation.begin(self.request(number), self.grid)

    def run_round(self, number: int = 1) -> MaskedAnswers:
        """Run a whole round."""
        request = self.begin(number)
        replies = self.grid.send_and_receive(request.messages) if request.messages else []
        return self.aggregation.finish(replies)


def make_rounds(
    folder: Path, clients: int = 8, minimum: int = 3, scalars: int = 4, bucket: int = 0
) -> tuple[MaskedServer, MaskedGrid]:
    """Return a server and its clients, whose indices are not consecutive.

    Args:
        folder: folder of the run.
        clients: number of clients.
        minimum: ``cohort.minimum``.
        scalars: projected gradients of a report.
        bucket: fewest clients of a bucket; 0 without buckets.
    """
    indices = random.Random(clients).sample(range(10**6), clients)
    grid = MaskedGrid(sorted(indices), minimum, scalars, bucket)
    return MaskedServer(folder, grid, minimum), grid
