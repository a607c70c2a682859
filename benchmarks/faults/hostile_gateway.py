"""A gateway with a valid key that answers for a phone whose private key has been deleted.

    python -m benchmarks.faults.hostile_gateway [--rounds 12]

The run is `samara server up` over TLS with keys, two honest toy devices, and a gateway in this
process that follows Flower's protocol. A phone is attached to the gateway and first reports as it
should. After a quarter of the rounds, the phone's private key is deleted, and the gateway answers
for the phone. It uses old hellos and reports that the phone has signed, new frames with the
gateway's signature, new frames with an old signature of the phone, and frames in the name of an
honest device. None of these answers may be aggregated, and rounds must continue.
"""

import logging
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from benchmarks.arguments import arguments
from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.faults.toy_clients import Device, heartbeats_end_with_the_run
from benchmarks.faults.toy_phone import ToyPhone
from benchmarks.faults.toy_run import settings_of
from samara.devices.live.keys import create_key, read_client_index
from samara.server.live.keys import ClientKeys
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.signing import SigningKey, answer_bytes
from samara.shared.protocol.wire import FRAMES, PUBLIC_KEYS, RECORD, SIGNATURES, Kind, kind_of

HONEST = 2
GATEWAY, PHONE = "gateway", "phone"
OLD, OLD_SIGNATURE = "an old one with its signature", "a new one with an old signature"
OWN, AS_ANOTHER = "signed by the gateway", "signed by the gateway, as another device"
WAYS = (OLD, OLD_SIGNATURE, OWN, AS_ANOTHER)


class HostileGateway(Device):
    """A gateway with one phone, which later answers in the phone's name by itself.

    Args:
        superlink: address, host:port.
        ca: authority of the server's certificate.
        key: the gateway's private key.
        phone_key: the phone's private key, which is deleted.
        last_sound: last round in which the phone still has its key.
        other: client index of a device that the gateway sometimes claims the phone to be.

    Attributes:
        ways: number of forged answers by kind of forgery and kind of frame.
    """

    def __init__(
        self, superlink: str, ca: Path, key: Path, phone_key: Path, last_sound: int, other: int
    ) -> None:
        super().__init__(HONEST, HONEST + 1, superlink, ca, key)
        self._own, self._file = SigningKey(key), phone_key
        self._phone: SigningKey | None = SigningKey(phone_key)
        self._public = self._phone.public
        self._toy = ToyPhone(read_client_index(phone_key), HONEST + 1)
        self._last_sound, self._other = last_sound, other
        self._signed: dict[Kind, tuple[bytes, bytes]] = {}  # the phone's last frame by kind
        self._rng = np.random.default_rng(0)
        self.ways: Counter[str] = Counter()

    def reply(self, message: Message, context: Context) -> Message:
        """Return the gateway's reply with one answer, by the phone or forged."""
        record = message.content.config_records[RECORD]
        instruction, snapshot, tail = (
            bytes(record[name])  # type: ignore[arg-type]
            for name in ("frame", "snapshot", "tail")
        )
        task = Task(instruction=instruction, snapshot=snapshot, tail=tail)
        kind = message.metadata.message_type
        if kind == MessageType.QUERY:
            frame = self._toy.answer(Task(kind=TaskKind.HELLO))
        elif kind == MessageType.TRAIN:
            task.kind = TaskKind.TRAIN
            frame = self._toy.answer(task)
            if self._phone and TrainInstruction.decode(instruction).round > self._last_sound:
                self._file.unlink()
                self._phone = None
        else:
            task.kind = TaskKind.EVALUATE
            frame = self._toy.answer(task)
        if self._phone:
            signature = self._phone.sign(answer_bytes(instruction, frame))
            self._signed[kind_of(frame)] = frame, signature
        else:
            frame, signature = self._forged(instruction, frame)
        lists = {FRAMES: [frame], PUBLIC_KEYS: [self._public], SIGNATURES: [signature]}
        return Message(RecordDict({RECORD: ConfigRecord(lists)}), reply_to=message)  # type: ignore[arg-type]

    def _forged(self, instruction: bytes, frame: bytes) -> tuple[bytes, bytes]:
        """Return a frame in the phone's name and a signature, made without the phone's key."""
        kind = kind_of(frame)
        old, way = self._signed.get(kind, (frame, b"")), WAYS[self._rng.integers(len(WAYS))]
        self.ways[f"{kind.name.lower()}: {way}"] += 1
        if way == OLD:
            return old
        if way == OLD_SIGNATURE:
            return frame, old[1]
        if way == AS_ANOTHER:
            decoded = Hello.decode(frame) if kind is Kind.HELLO else Report.decode(frame)
            frame = replace(decoded, client=self._other).encode()
        return frame, self._own.sign(answer_bytes(instruction, frame))


def speak_for_a_phone(folder: Path, rounds: int) -> tuple[int, int, Counter[str]]:
    """Serve a run to honest devices and a gateway that forges after a quarter of the rounds.

    Args:
        folder: empty folder of the run.
        rounds: number of rounds, at least 4.

    Returns:
        Number of rounds with a report in the phone's name while the phone had its key, number of
        such rounds afterwards, and number of forged answers by kind.

    Raises:
        AssertionError: if the run does not continue.
    """
    names = [f"device-{number}" for number in range(HONEST)]
    address = free_address()
    clients, last_sound = HONEST + 1, max(1, rounds // 4)
    more = {"cohort.fraction": 1.0, "cohort.available": clients, "data.clients": clients}
    settings = settings_of(folder / "run", rounds, 30.0) | more
    del settings["out"]
    phone_key = folder / f"{PHONE}.key"
    create_key(phone_key)
    (folder / f"{PHONE}.pem").write_bytes(SigningKey(phone_key).public)
    live_run = LiveRun(folder, settings, names, address)
    with heartbeats_end_with_the_run(), live_run as live:
        keys = ClientKeys(live.run / "keys")
        gateway_key = keys.create(GATEWAY, gateway=True)
        phone = keys.add(PHONE, folder / f"{PHONE}.pem").client
        live.serve()
        assert live.server is not None, "the server was started above"
        ca = live.run / "certificates" / "ca.pem"
        other = live.devices[names[0]]
        gateway = HostileGateway(address, ca, gateway_key, phone_key, last_sound, other)
        devices = [Device(n, clients, address, ca, live.key(name)) for n, name in enumerate(names)]
        for device in (*devices, gateway):
            device.start()
        try:
            live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        finally:
            for device in (*devices, gateway):
                device.end()
        assert live.server.returncode == 0, live.said()[-2000:]
        assert not phone_key.exists(), "the phone's key was never deleted"
        live.check()
        folded = {
            record.delta.round: [c.client for c in record.delta.contributors]
            for record in read_ledger(live.run / "ledger")
        }
        honest = {live.devices[name] for name in names}
        for number, contributors in folded.items():
            assert honest <= set(contributors), f"round {number} lacks an honest device"
    sound = sum(phone in folded[n] for n in folded if n <= last_sound)
    return sound, sum(phone in folded[n] for n in folded if n > last_sound), gateway.ways


def main() -> None:
    given = arguments(__doc__, rounds=12)
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        sound, forged, ways = speak_for_a_phone(Path(name), given.rounds)
    print(f"{ways.total()} forged answers: {dict(ways)}")
    print(
        f"rounds with a report in the phone's name: {sound} while it had its key, {forged} after; "
        "every round had the reports of both honest devices"
    )


if __name__ == "__main__":
    main()
