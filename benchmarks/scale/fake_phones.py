"""A gateway with many phones, a fifth of which disappear, and with hostile streams.

    python -m benchmarks.scale.fake_phones --phones 200 --rounds 20

Phones are streams of this process over TLS, each with its key; they answer immediately. The gateway
is a separate process. Its memory is measured after every tenth of the rounds and of the hostile
streams, and while strangers hold connections open (`benchmarks.faults.slow_connections`). All
random choices come from --seed.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import grpc
import psutil
import typer

from benchmarks.faults.slow_connections import all_held
from samara.devices.gateway.gateway import MAX_ANSWER_BYTES, Gateway
from samara.devices.gateway.server import start_gateway
from samara.devices.live.keys import create_key
from samara.shared.network.certificates import CERTIFICATES_FOLDER, make_certificates
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.signing import SigningKey, answer_bytes, proof_bytes

ROUND_SECONDS = 5.0
LET_IN_SECONDS = 15.0
"""Seconds after which a stream counts as not rejected."""
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""gRPC option that gives every phone a separate connection."""
PORT_LINE = "port "


async def hosted() -> None:
    """Run the gateway's process: for every input line, send a request and print its answer."""
    folder = Path(sys.argv[2])
    admitted = {file.read_bytes() for file in folder.glob("*.pem")}
    gateway = Gateway(admitted.__contains__)
    tls = make_certificates(folder / CERTIFICATES_FOLDER, [])
    proof = tls.certificate.read_bytes(), tls.key.read_bytes()
    server = await start_gateway(gateway, f"127.0.0.1:{sys.argv[3]}", *proof)
    print(f"{PORT_LINE}{server.port}", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        instruction = line.strip().encode()
        asked = len(gateway.attached_phones)
        task = Task(kind=TaskKind.TRAIN, instruction=instruction)
        answers = await gateway.ask(task, ROUND_SECONDS) if instruction else {}
        told = {"attached": asked, "answers": sorted(answers), "refused": gateway.refused}
        print(json.dumps(told), flush=True)


class Host:
    """A proxy for the gateway's process."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "benchmarks.scale.fake_phones"]
        command += ["--host", str(folder), str(port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().removeprefix(PORT_LINE))
        self.authority = folder / CERTIFICATES_FOLDER / "ca.pem"

    def ask(self, instruction: str) -> Any:
        """Send one line to the process, and return the answer in the next line of its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(instruction + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def channel(self) -> Any:
        """Return a gRPC channel with a separate connection."""
        credentials = grpc.ssl_channel_credentials(self.authority.read_bytes())
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, CHANNEL_OPTIONS)

    @property
    def process(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def memory(self) -> float:
        """Return the resident memory in MiB."""
        rss: int = psutil.Process(self._process.pid).memory_info().rss
        return round(rss / 2**20, 1)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        with self._process:  # closes pipes, waits for the process
            self._process.kill()


async def fake(key: SigningKey, host: Host, dice: random.Random, vanishing: float) -> None:
    """Run a phone that answers, or disappears and returns, until the task is cancelled."""
    device = client_index_of_key(key.public)
    while True:
        try:
            async with host.channel() as channel:
                stream = GatewayStub(channel).Attach()
                nonce = (await stream.read()).challenge.nonce
                proof = Proof(public_key=key.public, signature=key.sign(proof_bytes(nonce)))
                await stream.write(FromPhone(proof=proof))
                while (said := await stream.read()) is not grpc.aio.EOF:
                    if dice.random() < vanishing:
                        break
                    task = said.task
                    frame = Refusal(token_of(task.instruction), device, 0, 0).encode()
                    signature = key.sign(answer_bytes(task.instruction, frame))
                    done = TaskResult(number=task.number, frame=frame, signature=signature)
                    await stream.write(FromPhone(result=done))
                stream.cancel()
        except grpc.RpcError:
            pass
        # The pause is longer than a round, so that the round misses the phone.
        await asyncio.sleep(ROUND_SECONDS * dice.uniform(1.1, 2))


async def hostile(keys: list[SigningKey], stranger: SigningKey, host: Host, turn: int) -> str:
    """Open one stream that breaks a rule, and return the gateway's status."""
    borrowed = keys[turn % len(keys)]
    forged = Proof(public_key=borrowed.public, signature=stranger.sign(proof_bytes(bytes(32))))
    says: list[FromPhone] = [
        FromPhone(result=TaskResult(frame=bytes(MAX_ANSWER_BYTES + 1))),
        FromPhone(result=TaskResult(number=1)),
        FromPhone(proof=forged),
        FromPhone(proof=Proof(public_key=b"\xff" * 1000)),
    ]
    async with host.channel() as channel:
        stream = GatewayStub(channel).Attach()
        try:
            nonce = (await stream.read()).challenge.nonce
            said = says[turn % 5] if turn % 5 < 4 else None
            if said is None:
                own = Proof(public_key=stranger.public, signature=stranger.sign(proof_bytes(nonce)))
                said = FromPhone(proof=own)
            writing = asyncio.ensure_future(stream.write(said))
            async with asyncio.timeout(LET_IN_SECONDS):
                code = await stream.code()
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        except TimeoutError:
            return "LET IN"
        await asyncio.wait({writing}, timeout=1.0)
        writing.cancel()
        return f"{code.name}: {await stream.details()}"


async def tried(
    phones: int, rounds: int, streams: int, strangers: int, vanishing: float, seed: int
) -> dict[str, Any]:
    """Measure rounds with disappearing phones, hostile streams, slow strangers and a kill."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = []
        for number in range(phones + 1):
            create_key(folder / f"{number}.key")
            keys.append(SigningKey(folder / f"{number}.key"))
        *keys, stranger = keys
        for number, key in enumerate(keys):
            (folder / f"{number}.pem").write_bytes(key.public)
        host = Host(folder)
        loop = asyncio.get_running_loop()

        async def ask(instruction: str) -> Any:
            return await loop.run_in_executor(None, host.ask, instruction)

        async def all_attached() -> None:
            while (await ask(""))["attached"] < phones:
                await asyncio.sleep(0.1)

        def attach(share: float) -> list[asyncio.Task[None]]:
            return [
                asyncio.create_task(fake(key, host, random.Random(dice.random()), share))
                for key in keys
            ]

        crowd = attach(vanishing)
        told: dict[str, Any] = {"phones": phones}
        try:
            await all_attached()
            memory = {"before": host.memory}
            told["answers"] = []
            for number in range(rounds):
                told["answers"].append(len((await ask(f"round {number}"))["answers"]))
                memory |= tenth("rounds", number + 1, rounds, host)
            said = Counter[str]()
            for number in range(streams):
                said[await hostile(keys, stranger, host, number)] += 1
                memory |= tenth("hostile streams", number + 1, streams, host)
            told["hostile"] = dict(said)
            holding = asyncio.create_task(all_held(host.port, strangers, host.authority))
            told["answers among slow strangers"] = []
            while not (await asyncio.wait({holding}, timeout=ROUND_SECONDS))[0]:
                answers = (await ask("among strangers"))["answers"]
                told["answers among slow strangers"].append(len(answers))
                memory["most among slow strangers"] = max(
                    host.memory, memory.get("most among slow strangers", 0.0)
                )
            told["seconds until slow strangers were sent away"] = {
                kind: None if None in seconds else round(max(filter(None, seconds)), 1)
                for kind, seconds in (await holding).items()
            }
            told["memory, MiB"] = memory | {"after": host.memory}
            host.kill()
            for phone in crowd:
                phone.cancel()
            host = Host(folder, host.port)
            crowd = attach(0.0)
            await all_attached()
            told["answers_after_kill"] = len((await ask("after the kill"))["answers"])
        finally:
            for phone in crowd:
                phone.cancel()
            host.kill()
        return told


def tenth(of: str, number: int, count: int, host: Host) -> dict[str, float]:
    """Return the memory if another tenth of some work is done; otherwise an empty mapping."""
    done = 10 * number // count
    return {f"{of}, {done}/10": host.memory} if done > 10 * (number - 1) // count else {}


def main(
    phones: Annotated[int, typer.Option(min=1)] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    streams: Annotated[int, typer.Option(min=5)] = 500,
    strangers: Annotated[int, typer.Option(min=5)] = 200,
    vanishing: Annotated[float, typer.Option(min=0, max=1)] = 0.2,
    seed: int = 0,
) -> None:
    """Print as JSON the answers, the statuses of hostile streams, and the gateway's memory."""
    told = asyncio.run(tried(phones, rounds, streams, strangers, vanishing, seed))
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        asyncio.run(hosted())
    else:
        typer.run(main)
