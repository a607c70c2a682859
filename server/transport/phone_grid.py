"""PhoneGrid behind a gateway, each as a node of its own.

A gateway is one node of Flower that speaks for many phones: it answers a hello with those of all
who are attached. Here every phone becomes a node with an id and a public key of its own, so that
roster, cohorts and strategy know of no gateways. Messages to the phones of one gateway leave as
one, and what comes back is taken apart: an answer counts if the phone's key has signed it.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from uuid import uuid4

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from server.transport.delegating_grid import DelegatingGrid
from shared.client_index import client_index_of_key
from shared.errors import FrameError
from shared.flower_compat import ErrorCode, HttpGrid, set_message_id
from shared.frames.hello import Hello
from shared.signing import of_answer, verified
from shared.wire import CLIENTS, FRAMES, PUBLIC_KEYS, RECORD, SIGNATURES

log = logging.getLogger("samara.server")

MAX_PHONES = 10_000
"""Behind one gateway."""
HELLO_SECONDS = 300.0
"""For which an introduction is waited for, before it is asked for again."""
REFRESH_SECONDS = 5.0
"""Between two looks at who is attached."""


@dataclass(frozen=True)
class _Phone:
    """An attached phone.

    Attributes:
        gateway: Flower's id of the node that it is behind.
        client: index.
        public_key: PEM.
        hello: frame.
    """

    gateway: int
    client: int
    public_key: bytes
    hello: bytes

    @property
    def node(self) -> int:
        """Its id, made of its key: the same when it comes back, or by another gateway."""
        return int.from_bytes(hashlib.sha256(self.public_key).digest()[:8], "little") >> 1


@dataclass(frozen=True)
class _Relayed:
    """Messages to the phones of a gateway that left as one.

    Attributes:
        frame: in all of them.
        messages: to each phone its own.
        end: of their time, monotonic seconds.
    """

    frame: bytes
    messages: Sequence[Message]
    end: float


class PhoneGrid(DelegatingGrid):
    """A grid in which phones behind gateways are nodes.

    Args:
        grid: delivers the messages.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._greetings: dict[str, tuple[int, float]] = {}
        self._hellos: dict[int, Message | None] = {}
        self._gateways: dict[int, float] = {}
        self._phones: dict[int, _Phone] = {}
        self._relayed: dict[str, _Relayed] = {}
        self._places: dict[str, str] = {}
        self._ready: dict[str, tuple[Message, float]] = {}

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are there, phones among them; a node is seen once it said what it is."""
        return list(self.connected_nodes())

    def connected_nodes(self) -> dict[int, bytes]:
        """The nodes that are there, with their public keys (PEM), empty where they have none."""
        public_keys = self._known()
        there = public_keys.keys()
        self._forget_all_but(there)
        self._take_in()
        self._greet(there)
        direct = [node for node in sorted(there) if node in self._hellos]
        behind = {phone.node: phone.public_key for phone in self._phones.values()}
        return {node: public_keys[node] for node in direct} | behind

    def _known(self) -> dict[int, bytes]:
        """Flower's nodes."""
        if isinstance(self._grid, HttpGrid):
            return {node.node_id: node.public_key for node in self._grid.get_nodes()}
        return dict.fromkeys(self._grid.get_node_ids(), b"")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; returns their ids."""
        direct: list[tuple[int, Message]] = []
        together: dict[tuple[int, str], list[Message]] = {}
        ids: dict[int, str] = {}
        for place, message in enumerate(messages):
            phone = self._phones.get(message.metadata.dst_node_id)
            known = self._hellos.get(message.metadata.dst_node_id)
            asks_hello = message.metadata.message_type == MessageType.QUERY
            if phone is None and not (asks_hello and known):
                direct.append((place, message))
                continue
            ids[place] = _named(message)
            if phone is None and known:
                self._hellos[message.metadata.dst_node_id] = None  # the next time it is asked
                self._keep(Message(known.content, reply_to=message), _end(message))
            elif phone and asks_hello:
                self._keep(_reply(phone.hello, message), _end(message))
            elif phone:
                key = phone.gateway, message.metadata.message_type
                together.setdefault(key, []).append(message)
        self._send(together)
        sent = self._grid.push_messages([message for _, message in direct]) if direct else []
        ids |= {place: name for (place, _), name in zip(direct, sent, strict=True)}
        return [ids[place] for place in sorted(ids)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch the replies that are there."""
        wanted = list(message_ids)
        own = {name for name in wanted if name in self._places or name in self._ready}
        ask = {self._places[name] for name in own if name in self._places}
        ask |= set(wanted) - own
        replies = []
        for reply in self._grid.pull_messages(sorted(ask)) if ask else []:
            relayed = self._relayed.pop(reply.metadata.reply_to_message_id, None)
            if relayed is None:
                replies.append(reply)
            else:
                self._take_apart(reply, relayed)
        return replies + [self._ready.pop(name)[0] for name in wanted if name in self._ready]

    def _keep(self, reply: Message, end: float) -> None:
        """Until it is fetched, or the time of what it answers is over (monotonic seconds)."""
        self._ready[reply.metadata.reply_to_message_id] = reply, end

    def _send(self, together: Mapping[tuple[int, str], Sequence[Message]]) -> None:
        """The messages to the phones of a gateway as one, with the most that any of them needs."""
        for (gateway, message_type), messages in together.items():
            records = [message.content.config_records[RECORD] for message in messages]
            furthest = max(records, key=lambda r: (len(r["snapshot"]) > 0, len(r["tail"])))  # type: ignore[arg-type]
            clients = [self._phones[m.metadata.dst_node_id].client for m in messages]
            record = ConfigRecord({**furthest, CLIENTS: clients})
            first = messages[0].metadata
            one = Message(
                RecordDict({RECORD: record}),
                gateway,
                message_type,
                ttl=first.ttl,
                group_id=first.group_id,
            )
            (name,) = self._grid.push_messages([one])
            frame = records[0]["frame"]
            assert isinstance(frame, bytes)
            self._relayed[name] = _Relayed(frame, messages, _end(one))
            self._places |= {message.metadata.message_id: name for message in messages}

    def _take_apart(self, reply: Message, relayed: _Relayed) -> None:
        """A gateway's reply as one of each phone that was asked."""
        signed = {} if reply.has_error() else dict(_signed(reply, relayed.frame))
        for message in relayed.messages:
            name, node = message.metadata.message_id, message.metadata.dst_node_id
            self._places.pop(name, None)
            if node in signed:
                self._keep(_reply(signed[node], message), relayed.end)
            else:
                failed = reply.error.reason if reply.has_error() else "the phone did not answer"
                self._keep(
                    Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, failed), reply_to=message),
                    relayed.end,
                )

    def _forget_all_but(self, there: Set[int]) -> None:
        self._hellos = {node: hello for node, hello in self._hellos.items() if node in there}
        self._gateways = {node: at for node, at in self._gateways.items() if node in there}
        self._phones = {n: phone for n, phone in self._phones.items() if phone.gateway in there}
        now = time.monotonic()
        self._greetings = {
            name: (node, end)
            for name, (node, end) in self._greetings.items()
            if node in there and now < end
        }
        self._ready = {name: (one, end) for name, (one, end) in self._ready.items() if now < end}
        # To these no reply can come any more.
        self._relayed = {name: one for name, one in self._relayed.items() if now < one.end}
        self._places = {m: name for m, name in self._places.items() if name in self._relayed}

    def _greet(self, there: Set[int]) -> None:
        """Ask who has not said what it is, and gateways again and again."""
        now, waiting = time.monotonic(), {node for node, _ in self._greetings.values()}
        due = {node for node, at in self._gateways.items() if now >= at}
        unknown = (there - self._hellos.keys() - self._gateways.keys() | due) - waiting
        record = ConfigRecord({"frame": b"", "snapshot": b"", "tail": b""})
        messages = [
            Message(
                RecordDict({RECORD: record}),
                node,
                MessageType.QUERY,
                ttl=HELLO_SECONDS,
                group_id="hello",
            )
            for node in sorted(unknown)
        ]
        if messages:
            names = self._grid.push_messages(messages)
            self._greetings |= {
                name: (node, now + HELLO_SECONDS)
                for name, node in zip(names, sorted(unknown), strict=True)
                if name
            }
            self._take_in()

    def _take_in(self) -> None:
        if not self._greetings:
            return
        for reply in self._grid.pull_messages(list(self._greetings)):
            greeting = self._greetings.pop(reply.metadata.reply_to_message_id, None)
            if greeting is None:
                continue
            node, _ = greeting
            record = None if reply.has_error() else reply.content.config_records.get(RECORD)
            if record is not None and FRAMES in record:
                self._gateways[node] = time.monotonic() + REFRESH_SECONDS
                self._welcome(node, reply)
            elif node not in self._gateways:
                self._hellos[node] = None if reply.has_error() else reply  # then asked again

    def _welcome(self, gateway: int, reply: Message) -> None:
        """The phones that are behind a gateway at present."""
        gone = [node for node, phone in self._phones.items() if phone.gateway == gateway]
        for node in gone:
            del self._phones[node]
        for public_key, frame in _answers(reply, b""):
            try:
                client = Hello.decode(frame).client
            except FrameError as error:
                log.warning("a phone's introduction is refused: %s", error)
                continue
            if client != client_index_of_key(public_key):
                log.warning("a phone calls itself client %d, which is not its key's", client)
                continue
            phone = _Phone(gateway, client, public_key, frame)
            self._phones[phone.node] = phone


def _named(message: Message) -> str:
    """Give a message an id, as Flower's grids do when they send one."""
    name = str(uuid4())
    set_message_id(message, name)
    return name


def _end(message: Message) -> float:
    """Of its time, monotonic seconds, if it leaves now."""
    return time.monotonic() + message.metadata.ttl


def _reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)


def _signed(reply: Message, instruction: bytes) -> Iterator[tuple[int, bytes]]:
    """Nodes and frames of the sound answers."""
    for public_key, frame in _answers(reply, instruction):
        yield _Phone(0, 0, public_key, b"").node, frame


def _answers(reply: Message, instruction: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Public keys and the frames that they signed, of a gateway's reply; others are dropped."""
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    parts = [record.get(name) for name in (PUBLIC_KEYS, FRAMES, SIGNATURES)]
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) < len(parts) or len({len(part) for part in lists} | {0}) > 2:
        log.warning("a gateway's reply is not whole and is dropped")
        return
    for public_key, frame, signature in list(zip(*lists, strict=True))[:MAX_PHONES]:
        sound = all(isinstance(part, bytes) for part in (public_key, frame, signature))
        if sound and verified(public_key, signature, of_answer(instruction, frame)):
            yield public_key, frame
        else:
            log.warning("a gateway passes on an answer that no phone signed; it is dropped")
