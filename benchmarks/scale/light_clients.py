"""Clients without a model, thousands in one process, attached to gateways by real streams.

    python -m benchmarks.scale.light_clients FOLDER KEYS FIRST COUNT CLIENTS GATEWAY CERTIFICATE

Every client has a private key of its own, proves it, reads its tasks, and signs its answers, which
are those of `benchmarks.faults.toy_client`: frames in full. The state is the same for all of them,
so the clients of one process replay what the ledger brings once, into one session, and check every
instruction's digest against it. FOLDER has what they did so far, as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path

import grpc

from benchmarks.faults.toy_client import answer, hello_of
from client.protocol.session import Session
from devices.live.gateway_protocol import FINISHED, KEEPALIVE
from shared.client_index import client_index_of_key
from shared.files import write_durably
from shared.frames.instructions import EvaluateInstruction, TrainInstruction
from shared.ledger.catch_up import CatchUp
from shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult
from shared.proto.trainer_pb2_grpc import GatewayStub
from shared.signing import SigningKey, answer_bytes, proof_bytes

AT_ONCE = 32
"""Most streams of a process that are being opened."""
OPTIONS = (("grpc.use_local_subchannel_pool", 1), *KEEPALIVE)
"""A connection of its own for every client."""
_AGAIN_SECONDS, _NOTE_SECONDS = 5.0, 1.0


class Crowd:
    """The clients of a process.

    Args:
        clients: number of clients that their hellos name.

    Attributes:
        attached: those that have been attached.
        answered: number of tasks that were answered.
        bytes_up, bytes_down: bytes of the answers and of the tasks, as messages of the stream.
    """

    def __init__(self, clients: int) -> None:
        self.attached = set[int]()
        self.answered = self.bytes_up = self.bytes_down = 0
        self._clients = clients
        self._session: Session | None = None

    def answer(self, task: Task, key: SigningKey, client: int) -> TaskResult:
        """Return a client's answer to a task."""
        if task.kind == TaskKind.HELLO:
            frame = hello_of(client, None, self._clients)
        elif task.kind == TaskKind.REFUSED:
            frame = task.instruction
        else:
            kind = TrainInstruction if task.kind == TaskKind.TRAIN else EvaluateInstruction
            # another client's report is no answer of this one
            known = self._session and self._session.with_report(b"", b"")
            catch_up = CatchUp(task.snapshot, task.tail)
            frame, self._session = answer(kind, task.instruction, catch_up, client, known)
        signature = key.sign(answer_bytes(task.instruction, frame))
        result = TaskResult(number=task.number, frame=frame, signature=signature)
        self.answered += 1
        self.bytes_up += result.ByteSize()
        self.bytes_down += task.ByteSize()
        return result

    async def note(self, file: Path) -> None:
        """Write what the clients did so far, every second."""
        while True:
            told = {"attached": len(self.attached), "answered": self.answered}
            told |= {"up": self.bytes_up, "down": self.bytes_down}
            write_durably(file, json.dumps(told).encode())
            await asyncio.sleep(_NOTE_SECONDS)


async def stay_attached(
    crowd: Crowd, key: SigningKey, door: str, authority: bytes, opening: asyncio.Semaphore
) -> None:
    """Attach a client, and answer its tasks until the run is finished."""
    credentials, client = grpc.ssl_channel_credentials(authority), client_index_of_key(key.public)
    while True:
        try:
            async with grpc.aio.secure_channel(door, credentials, OPTIONS) as channel:
                stream = GatewayStub(channel).Attach()
                async with opening:
                    nonce = (await stream.read()).challenge.nonce
                    proof = Proof(public_key=key.public, signature=key.sign(proof_bytes(nonce)))
                    await stream.write(FromPhone(proof=proof))
                crowd.attached.add(client)
                while (message := await stream.read()) is not grpc.aio.EOF:
                    result = crowd.answer(message.task, key, client)
                    await stream.write(FromPhone(result=result))
        except grpc.aio.AioRpcError as error:
            if error.code() == FINISHED:
                return
            print(f"client {client}: {error.code().name}: {error.details()}", flush=True)
        await asyncio.sleep(_AGAIN_SECONDS)


async def attach(
    folder: Path, keys: Path, first: int, count: int, clients: int, door: str, certificate: Path
) -> None:
    """Keep clients FIRST and following attached until the run is finished."""
    crowd, opening = Crowd(clients), asyncio.Semaphore(AT_ONCE)
    authority = certificate.read_bytes()
    own = [SigningKey(keys / f"light-{number}.key") for number in range(first, first + count)]
    noting = asyncio.create_task(crowd.note(folder / f"lights-{first}.json"))
    await asyncio.gather(*(stay_attached(crowd, key, door, authority, opening) for key in own))
    noting.cancel()


def main() -> None:
    folder, keys, first, count, clients, door, certificate = sys.argv[1:]
    numbers = int(first), int(count), int(clients)
    asyncio.run(attach(Path(folder), Path(keys), *numbers, door, Path(certificate)))


if __name__ == "__main__":
    main()
