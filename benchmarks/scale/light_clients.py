"""Clients without a model, thousands in one process, attached to gateways by real streams.

    python -m benchmarks.scale.light_clients PLAN

PLAN is a JSON file with a `Plan`. Every client has a private key of its own, proves it, reads its
tasks, and signs its answers, which are those of `benchmarks.faults.toy_client`: frames in full. The
state is the same for all of them, so the clients of one process replay what the ledger brings once,
into one session, and check every instruction's digest against it. The plan's folder has what they
did so far, as JSON.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

import grpc

from benchmarks.faults.live_run import ROOT
from benchmarks.faults.toy_client import LAYOUT, MODEL_ID, answer, hello_of
from samara.client.protocol.session import Session
from samara.devices.live.connection.gateway_protocol import FINISHED, KEEPALIVE
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.instructions import EvaluateInstruction, TrainInstruction
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.signing import SigningKey, answer_bytes, proof_bytes
from samara.shared.storage.files import write_durably

AT_ONCE = 32
"""Most streams of a process that are being opened."""
OPTIONS = (("grpc.use_local_subchannel_pool", 1), *KEEPALIVE)
"""A connection of its own for every client."""
_AGAIN_SECONDS, _NOTE_SECONDS = 5.0, 1.0


@dataclass(frozen=True)
class Plan:
    """The clients of a process, and how they behave.

    Attributes:
        folder: folder that what they did is written to.
        keys: folder of their keys, light-NUMBER.key.
        first, count: numbers of the clients.
        clients: number of clients that their hellos name.
        gateway: host:port of their gateway.
        certificate: file of the gateway's authority.
        layout: layout that their hellos name, JSON.
        model_id: base model that their hellos name, hex.
        leaving: probability that a client leaves when it is asked to train, without an answer.
        away: mean seconds until it is back, exponentially distributed.
    """

    folder: str
    keys: str
    first: int
    count: int
    clients: int
    gateway: str
    certificate: str
    layout: str = LAYOUT.to_json()
    model_id: str = MODEL_ID.hex()
    leaving: float = 0.0
    away: float = 0.0

    @property
    def told(self) -> Path:
        """The file with what they did so far."""
        return Path(self.folder) / f"lights-{self.first}.json"

    def write(self) -> Path:
        """Write the plan to its folder; returns the file."""
        file = Path(self.folder) / f"plan-{self.first}.json"
        file.write_text(json.dumps(asdict(self)))
        return file


class _LeftError(Exception):
    """A client leaves without an answer."""


class Crowd:
    """The clients of a process.

    Attributes:
        attached: those that have been attached.
        answered: number of tasks that were answered.
        left: number of tasks at which a client left.
        bytes_up, bytes_down: bytes of the answers and of the tasks, as messages of the stream.
    """

    def __init__(self, plan: Plan) -> None:
        self.attached = set[int]()
        self.answered = self.left = self.bytes_up = self.bytes_down = 0
        self._plan, self._layout = plan, Layout.from_json(plan.layout)
        self._session: Session | None = None
        self._random = random.Random(plan.first)

    def answer(self, task: Task, key: SigningKey, client: int) -> TaskResult:
        """Return a client's answer to a task.

        Raises:
            _LeftError: if it leaves instead.
        """
        if task.kind == TaskKind.HELLO:
            model = self._layout, bytes.fromhex(self._plan.model_id)
            frame = hello_of(client, None, self._plan.clients, *model)
        elif task.kind == TaskKind.REFUSED:
            frame = task.instruction
        elif task.kind == TaskKind.TRAIN and self._random.random() < self._plan.leaving:
            self.left += 1
            raise _LeftError
        else:
            kind = TrainInstruction if task.kind == TaskKind.TRAIN else EvaluateInstruction
            # another client's report is no answer of this one
            known = self._session and self._session.with_report(b"", b"")
            caught = CatchUp(task.snapshot, task.tail), client, known, self._layout
            frame, self._session = answer(kind, task.instruction, *caught)
        signature = key.sign(answer_bytes(task.instruction, frame))
        result = TaskResult(number=task.number, frame=frame, signature=signature)
        self.answered += 1
        self.bytes_up += result.ByteSize()
        self.bytes_down += task.ByteSize()
        return result

    def absence(self) -> float:
        """Return the seconds that a client that left stays away."""
        return self._random.expovariate(1 / self._plan.away) if self._plan.away else 0.0

    async def note(self, file: Path) -> None:
        """Write what the clients did so far, every second."""
        while True:
            told = {"attached": len(self.attached), "answered": self.answered, "left": self.left}
            told |= {"up": self.bytes_up, "down": self.bytes_down}
            write_durably(file, json.dumps(told).encode())
            await asyncio.sleep(_NOTE_SECONDS)


async def stay_attached(
    crowd: Crowd,
    key: SigningKey,
    door: str,
    credentials: grpc.ChannelCredentials,
    opening: asyncio.Semaphore,
) -> None:
    """Attach a client, and answer its tasks until the run is finished."""
    client = client_index_of_key(key.public)
    while True:
        pause = _AGAIN_SECONDS
        try:
            async with grpc.aio.secure_channel(door, credentials, OPTIONS) as channel:
                async with opening:  # also the connection, which is made with the stream
                    stream = GatewayStub(channel).Attach()
                    nonce = (await stream.read()).challenge.nonce
                    proof = Proof(public_key=key.public, signature=key.sign(proof_bytes(nonce)))
                    await stream.write(FromPhone(proof=proof))
                crowd.attached.add(client)
                while (message := await stream.read()) is not grpc.aio.EOF:
                    result = crowd.answer(message.task, key, client)
                    await stream.write(FromPhone(result=result))
        except _LeftError:
            pause = crowd.absence()
        except grpc.aio.AioRpcError as error:
            if error.code() == FINISHED:
                return
            print(f"client {client}: {error.code().name}: {error.details()}", flush=True)
        await asyncio.sleep(pause)


def started(plan: Path, said: IO[bytes], behind: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """Start a process with the clients of a plan; what it says goes to a file."""
    return subprocess.Popen(
        [*behind, sys.executable, "-m", "benchmarks.scale.light_clients", str(plan)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=said,
        stderr=said,
        start_new_session=True,
    )


async def attach(plan: Plan) -> None:
    """Keep the clients of a plan attached until the run is finished."""
    crowd, opening = Crowd(plan), asyncio.Semaphore(AT_ONCE)
    credentials = grpc.ssl_channel_credentials(Path(plan.certificate).read_bytes())
    keys = Path(plan.keys)
    numbers = range(plan.first, plan.first + plan.count)
    own = [SigningKey(keys / f"light-{number}.key") for number in numbers]
    noting = asyncio.create_task(crowd.note(plan.told))
    attach_one = partial(stay_attached, crowd, door=plan.gateway, credentials=credentials)
    await asyncio.gather(*(attach_one(key, opening=opening) for key in own))
    noting.cancel()


def main() -> None:
    (file,) = sys.argv[1:]
    asyncio.run(attach(Plan(**json.loads(Path(file).read_text()))))


if __name__ == "__main__":
    main()
