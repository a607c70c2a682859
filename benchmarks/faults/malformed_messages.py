"""Devices with valid keys that send malformed messages to Flower's SuperLink.

    python -m benchmarks.faults.malformed_messages [--messages 1000] [--hostile 3]

The run is `samara server up` over TLS with device keys. Two honest toy devices and the hostile
devices run in this process. A hostile device answers an instruction with a malformed reply, or with
a reply in another device's name. It then sends messages in the SuperLink's name, announcements of
thousands of objects, unrequested objects, and bytes that are not a message. No such message may be
aggregated, no process of the server may end, and the server's memory and disk use must not grow.
"""

import hashlib
import logging
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType

from benchmarks.arguments import arguments
from benchmarks.faults.attacked_run import attack
from benchmarks.faults.signed_requests import connect, send_signed
from benchmarks.faults.toy_clients import Device
from samara.shared.flower_compat import (
    SUPERLINK_NODE_ID,
    ErrorCode,
    ObjectTree,
    PushMessagesRequest,
    PushObjectRequest,
    get_all_nested_objects,
    get_object_tree,
    message_to_proto,
    set_message_id,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.wire import RECORD

PUSHES = 20
"""Number of further messages that a hostile device sends with each reply."""


class Reply(NamedTuple):
    """A reply as pushed by a node: metadata, ids of its objects, and the objects."""

    metadata: Any
    tree: ObjectTree
    objects: dict[str, bytes]


def object_of(kind: str, children: list[str], body: bytes) -> bytes:
    """Return an object's bytes in Flower's format."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def reply_of(message: Message) -> Reply:
    """Return a reply as an honest node pushes it."""
    set_message_id(message, message.object_id)
    objects = {i: part.deflate() for i, part in get_all_nested_objects(message).items()}
    metadata = message_to_proto(message)
    metadata.ClearField("content")
    if message.has_content():
        metadata.content.SetInParent()
    return Reply(metadata, get_object_tree(message), objects)


def made_of(sound: Reply, root: bytes) -> Reply:
    """Return a reply that consists of one object with the given bytes."""
    name = hashlib.sha256(root).hexdigest()
    sound.metadata.metadata.message_id = name
    return Reply(sound.metadata, ObjectTree(object_id=name), {name: root})


def without_parts(sound: Reply, rng: np.random.Generator) -> Reply:
    return made_of(sound, object_of("Message", [rng.bytes(32).hex()], b""))


def of_another_kind(sound: Reply, rng: np.random.Generator) -> Reply:
    kind = ("ConfigRecord", "ArrayRecord", "Array", "RecordDict", "MetricRecord")[rng.integers(5)]
    return made_of(sound, object_of(kind, [], rng.bytes(int(rng.integers(200)))))


def of_noise(sound: Reply, rng: np.random.Generator) -> Reply:
    return made_of(sound, object_of("Message", [], rng.bytes(int(rng.integers(300)))))


def incomplete(sound: Reply, rng: np.random.Generator) -> Reply:
    return Reply(sound.metadata, sound.tree, {})


def large(sound: Reply, rng: np.random.Generator) -> Reply:
    return made_of(sound, object_of("Message", [], rng.bytes(2**21 - 1000)))


BROKEN = (without_parts, of_another_kind, of_noise, incomplete, large)


class MalformedDevice(Device):
    """A device that sends a valid hello, and then malformed messages.

    Attributes:
        sent: number of messages by kind, of all hostile devices together.
        statuses: number of answers by HTTP status.
        victim: id of the node that the device claims to be.
    """

    sent: ClassVar[Counter[str]] = Counter()
    statuses: ClassVar[Counter[int]] = Counter()
    victim = 2**40

    def __init__(self, number: int, devices: int, superlink: str, ca: Path, key: Path) -> None:
        super().__init__(number, devices, superlink, ca, key)
        self._rng = np.random.default_rng(number)
        self._http = connect(superlink, ca)
        self._asked: list[str] = []

    def end(self) -> None:
        """End the device after the current message."""
        super().end()
        self._http.close()

    def reply(self, message: Message, context: Context) -> Message:
        """Return a reply; after a malformed reply, also send all other kinds of messages."""
        sound = super().reply(message, context)
        if message.metadata.message_type != MessageType.TRAIN:
            return sound
        node, run = context.node_id, context.run_id
        self._asked.append(message.metadata.message_id)
        beside = [reply_of(sound) for _ in range(PUSHES)]
        way = len(self._asked) % (len(BROKEN) + 2) - 1  # from the first on
        if way == len(BROKEN):
            self._count("forged_sender")
            frame = sound.content.config_records[RECORD]["frame"]
            assert isinstance(frame, bytes), "a toy device answers with a frame"
            report = replace(Report.decode(frame), client=self._device + 1)
            sound.content[RECORD] = ConfigRecord({"frame": report.encode()})
            sound.metadata.__dict__["_src_node_id"] = self.victim
            sound.metadata.__dict__["_reply_to_message_id"] = self._asked[0]
            self._push_reply(node, run, reply_of(sound), message.metadata.message_id)
        elif way < 0:
            self._count("long_error")
            error = Error(ErrorCode.NODE_UNAVAILABLE, "a lie " * 10_000)
            self._push_reply(node, run, reply_of(Message(error, reply_to=message)), "")
        else:
            self._count(BROKEN[way].__name__)
            broken = BROKEN[way](reply_of(sound), self._rng)
            self._push_reply(node, run, broken, message.metadata.message_id)
        for each in beside:
            self._push_beside(node, each)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "again"), reply_to=message)

    def _answer(self, node: int, message: Message, tree: ObjectTree, connection: Any) -> None:
        """Answer a message, and ignore errors of the SuperLink."""
        with suppress(Exception):
            super()._answer(node, message, tree, connection)

    def _push_reply(self, node: int, run: int, reply: Reply, reply_to: str) -> None:
        """Announce a reply, and send its objects."""
        metadata = reply.metadata.metadata
        metadata.src_node_id = node
        metadata.reply_to_message_id = reply_to or metadata.reply_to_message_id
        self._announce(node, reply)
        for name, content in reply.objects.items():
            self._store(node, run, name, content)

    def _push_beside(self, node: int, sound: Reply) -> None:
        """Send messages that do not belong to an instruction."""
        metadata, run = sound.metadata.metadata, sound.metadata.metadata.run_id
        way = int(self._rng.integers(9))
        name = self._rng.bytes(32).hex()
        if way == 0:
            self._count("as_superlink")
            metadata.src_node_id, metadata.dst_node_id = SUPERLINK_NODE_ID, SUPERLINK_NODE_ID
            metadata.reply_to_message_id = ""
        elif way == 1:
            self._count("many_objects")
            sound.tree.children.extend(ObjectTree(object_id=f"{n:064x}") for n in range(20_000))
        elif way == 2:
            self._count("announced_without_objects")
            metadata.message_id = name
        elif way == 3:
            self._count("impossible_times")
            metadata.created_at, metadata.ttl = 1.8e9, float(("inf", "nan", "1e18")[len(name) % 3])
        elif way == 4:
            self._count("no_message")
            self._send("push-messages", self._rng.bytes(int(self._rng.integers(5000))))
            return
        elif way == 5:
            self._count("objects_nobody_asked_for")
            content = object_of("ConfigRecord", [], self._rng.bytes(10**6))
            self._store(node, run, hashlib.sha256(content).hexdigest(), content)
            return
        elif way == 6:
            self._count("twenty_megabytes")
            with suppress(httpx.TransportError):  # the server may end the request early
                self._send("push-object", bytes(20 * 2**20))
            return
        elif way == 7 and len(self._asked) > 1:
            self._count("to_an_old_message")
            metadata.reply_to_message_id = self._asked[self._rng.integers(len(self._asked) - 1)]
            sound = made_of(sound, object_of("Message", [], self._rng.bytes(100)))
        else:
            self._count("in_anothers_name")
            metadata.src_node_id = self.victim
        self._announce(node, sound)

    def _count(self, way: str) -> None:
        self.sent[way] += 1

    def _announce(self, node: int, reply: Reply) -> None:
        request = PushMessagesRequest(
            messages_list=[reply.metadata], message_object_trees=[reply.tree]
        )
        request.node.node_id = node
        self._send("push-messages", request.SerializeToString())

    def _store(self, node: int, run: int, name: str, content: bytes) -> None:
        request = PushObjectRequest(run_id=run, object_id=name, object_content=content)
        request.node.node_id = node
        self._send("push-object", request.SerializeToString())

    def _send(self, path: str, body: bytes) -> None:
        """Send a request in Flower's format, signed with the device's key."""
        assert self._keys is not None, "these devices have keys"
        self.statuses[send_signed(self._http, self._keys[0], path, body)] += 1


def main() -> None:
    given = arguments(__doc__, messages=1000, hostile=3)
    logging.getLogger().setLevel(logging.ERROR)
    rounds = -(-given.messages // (given.hostile * (PUSHES + 1)))
    with tempfile.TemporaryDirectory(prefix="w") as name:
        footprints = attack(Path(name), rounds, given.hostile, MalformedDevice)
    sent = MalformedDevice.sent
    print(f"{sent.total():,} messages in {rounds} rounds: {dict(sent)}")
    print(f"answers by status: {dict(MalformedDevice.statuses)}")
    print("none aggregated, no process ended; by tenths of rounds, MiB of memory and KiB of files:")
    for footprint in footprints:
        print(f"  {footprint}")


if __name__ == "__main__":
    main()
