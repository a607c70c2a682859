"""A grid in which every phone behind a gateway is a node of its own.

A gateway is one Flower node that many phones attach to; it answers a hello with the hellos of all
attached phones. Here every phone becomes a node with an id and a public key of its own, so that
roster, cohorts and strategy need not know of gateways. The messages with one frame to the phones
of one gateway are sent as one message, and its reply is split into one reply per phone. A phone's
frame counts only with a valid signature under the phone's key over the instruction that it answers.
Where a hello is requested, that is a nonce, so that a gateway cannot send an old hello of a phone
that is not attached.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from uuid import uuid4

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from server.live.keys import ClientKeys
from server.transport.delegating_grid import DelegatingGrid
from server.transport.guarded_grid import GuardedGrid
from server.transport.messages import (
    BLOB_MESSAGE,
    client_of_hello,
    cut_foreign_text,
    decode_foreign,
    make_message,
)
from server.transport.phone_answers import read_answers
from server.transport.refusal_notices import PhoneNotices
from shared.client_index import client_index_of_key
from shared.errors import SamaraError
from shared.flower_compat import ErrorCode, set_message_id
from shared.ledger.catch_up import CatchUp
from shared.wire import CLIENTS, FRAMES, RECORD, SHARES

log = logging.getLogger("samara.server")

HELLO_SECONDS = 300.0
"""Time that a node has to answer a hello request before it is sent again."""
REFRESH_SECONDS = 5.0
"""Time between two requests for the phones that are attached to a gateway."""
NONCE_BYTES = 32


@dataclass(frozen=True)
class _Phone:
    """A phone that is attached to a gateway.

    Attributes:
        gateway: Flower's id of the gateway's node.
        public_key: PEM.
        hello: frame, or a refusal that names a blob which the phone lacks; empty once a part of it
            has been sent, until the gateway's next answer.
    """

    gateway: int
    public_key: bytes
    hello: bytes

    @property
    def node(self) -> int:
        """The phone's node id."""
        return _node_of_key(self.public_key)

    @property
    def number(self) -> int:
        """The number by which its gateway knows it: a gateway sees keys, not rotations."""
        return client_index_of_key(self.public_key)


@dataclass(frozen=True)
class _HelloRequest:
    """A hello request to a node.

    Attributes:
        node: Flower's id of the node.
        nonce: random bytes that the phones of a gateway sign with their hellos.
        end: end of the time to answer, monotonic seconds.
    """

    node: int
    nonce: bytes
    end: float


@dataclass(frozen=True)
class _RelayedMessage:
    """A message to a gateway that stands for the messages to several of its phones.

    Attributes:
        frame: the instruction, the same for all of the phones.
        messages: the messages to the phones, one each.
        end: end of their time to live, monotonic seconds.
    """

    frame: bytes
    messages: Sequence[Message]
    end: float


class PhoneGrid(DelegatingGrid):
    """A grid in which phones behind gateways are nodes.

    Args:
        grid: delivers the messages.
        keys: client keys of the run, which say whose nodes are gateways and which phones may take
            part; None admits all.
    """

    def __init__(self, grid: Grid, keys: ClientKeys | None = None) -> None:
        super().__init__(grid)
        self._keys = keys
        self._hello_requests: dict[str, _HelloRequest] = {}  # by message id
        self._logged: dict[int, str] = {}  # last warning about each gateway
        # Hello replies of nodes that are no gateways; None if the next request goes to the node.
        self._hellos: dict[int, Message | None] = {}
        # When the phones of each gateway are requested again, monotonic seconds.
        self._gateways: dict[int, float] = {}
        self._phones: dict[int, _Phone] = {}
        self._notices = PhoneNotices()
        # Hello requests to phones whose hello is out of date, by node.
        self._waiting_hellos: dict[int, Message] = {}
        self._relayed: dict[str, _RelayedMessage] = {}
        # Id of the relayed message by the id of a phone's message.
        self._relayed_ids: dict[str, str] = {}
        # Phones' replies that nobody has pulled, with the end of their time to live.
        self._replies: dict[str, tuple[Message, float]] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes, phones among them."""
        return list(self.connected_nodes())

    def connected_nodes(self) -> dict[int, bytes]:
        """Return the public key (PEM) of every connected node; empty for nodes without one.

        Phones are nodes, gateways are not; other nodes are left out until they answer a hello.
        """
        public_keys = self._flower_nodes()
        self._discard_old_entries(public_keys.keys())
        self._receive_hellos(public_keys)
        self._request_hellos(public_keys)
        direct = [node for node in sorted(public_keys) if node in self._hellos]
        phones = {phone.node: phone.public_key for phone in self._phones.values()}
        return {node: public_keys[node] for node in direct} | phones

    def _flower_nodes(self) -> dict[int, bytes]:
        """Return the public key of every node that Flower knows, gateways among them."""
        if isinstance(self._grid, GuardedGrid):
            return self._grid.connected_nodes()
        return dict.fromkeys(self._grid.get_node_ids(), b"")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        direct: dict[int, Message] = {}
        relayed: dict[tuple[int, str, bytes], list[Message]] = {}
        ids: dict[int, str] = {}
        for index, message in enumerate(messages):
            node, message_type = message.metadata.dst_node_id, message.metadata.message_type
            phone, hello = self._phones.get(node), self._hellos.get(node)
            is_hello_request = message_type == MessageType.QUERY
            if phone and is_hello_request:
                ids[index] = _assign_id(message)
                if phone.hello:
                    self._store_reply(_make_reply(phone.hello, message), _end_of(message))
                else:
                    self._waiting_hellos[node] = message
            elif phone:
                ids[index] = _assign_id(message)
                if message_type == BLOB_MESSAGE:
                    self._phones[node] = replace(phone, hello=b"")
                key = phone.gateway, message_type, _frame_of(message)
                relayed.setdefault(key, []).append(message)
            elif hello and is_hello_request:
                ids[index] = _assign_id(message)
                self._store_reply(Message(hello.content, reply_to=message), _end_of(message))
                self._hellos[node] = None
            else:
                direct[index] = message
        for (gateway, _, frame), parts in relayed.items():
            self._relay(gateway, frame, parts)
        direct_ids = self._grid.push_messages(list(direct.values())) if direct else []
        ids |= zip(direct, direct_ids, strict=True)
        return [ids[index] for index in sorted(ids)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived, each once."""
        wanted = list(message_ids)
        if self._waiting_hellos:
            self.connected_nodes()  # asks the gateways, whose answers hold new hellos
        unsent = {message.metadata.message_id for message in self._waiting_hellos.values()}
        local = self._relayed_ids.keys() | self._replies.keys() | unsent
        to_phones = local.intersection(wanted)
        to_pull = {self._relayed_ids[i] for i in to_phones if i in self._relayed_ids}
        to_pull |= set(wanted) - to_phones
        replies = []
        for reply in self._grid.pull_messages(sorted(to_pull)) if to_pull else []:
            relayed = self._relayed.pop(reply.metadata.reply_to_message_id, None)
            if relayed is None:
                replies.append(reply)
            else:
                self._split_reply(reply, relayed)
        return replies + [self._replies.pop(i)[0] for i in wanted if i in self._replies]

    def _store_reply(self, reply: Message, end: float) -> None:
        """Keep a reply until it is pulled, or until end (monotonic seconds)."""
        self._replies[reply.metadata.reply_to_message_id] = reply, end

    def _relay(self, gateway: int, frame: bytes, messages: Sequence[Message]) -> None:
        """Send messages with the same frame to phones of a gateway as one message.

        It carries the longest catch-up of them, which contains what the other phones lack, and the
        sealed shares for each phone.
        """
        records = [message.content.config_records[RECORD] for message in messages]
        longest = max(records, key=lambda r: (len(r["snapshot"]) > 0, len(r["tail"])))  # type: ignore[arg-type]
        phones = [self._phones[message.metadata.dst_node_id].number for message in messages]
        first, content = messages[0].metadata, ConfigRecord({**longest, CLIENTS: phones})
        if SHARES in longest:
            content[SHARES] = [record[SHARES] for record in records]  # type: ignore[assignment]
        whole = Message(
            RecordDict({RECORD: content}),
            gateway,
            first.message_type,
            ttl=first.ttl,
            group_id=first.group_id,
        )
        (whole_id,) = self._grid.push_messages([whole])
        self._relayed[whole_id] = _RelayedMessage(frame, messages, _end_of(whole))
        self._relayed_ids |= {message.metadata.message_id: whole_id for message in messages}

    def _split_reply(self, reply: Message, relayed: _RelayedMessage) -> None:
        """Store a reply of each phone that a relayed message was for; an error if it has none."""
        frames = {}
        reason = "the phone did not answer"
        if reply.has_error():
            self._warn(reply.metadata.src_node_id, f"it failed: {reply.error.reason}")
            reason = "its gateway failed"
        else:
            answers = read_answers(reply, relayed.frame, self._keys)
            frames = {_node_of_key(key): frame for key, frame in answers.signed.items()}
            self._warn(reply.metadata.src_node_id, answers.describe_dropped())
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        for message in relayed.messages:
            self._relayed_ids.pop(message.metadata.message_id, None)
            node = message.metadata.dst_node_id
            if node in frames:
                self._store_reply(_make_reply(frames[node], message), relayed.end)
            else:
                self._store_reply(Message(error, reply_to=message), relayed.end)

    def _discard_old_entries(self, connected: Set[int]) -> None:
        """Discard entries of nodes that are not connected, and what can no longer be answered."""
        now = time.monotonic()
        self._hellos = {n: hello for n, hello in self._hellos.items() if n in connected}
        self._gateways = {n: at for n, at in self._gateways.items() if n in connected}
        self._phones = {n: phone for n, phone in self._phones.items() if phone.gateway in connected}
        self._waiting_hellos = {n: m for n, m in self._waiting_hellos.items() if n in self._phones}
        self._logged = {n: text for n, text in self._logged.items() if n in connected}
        self._notices.forget(connected)
        self._hello_requests = {
            i: request
            for i, request in self._hello_requests.items()
            if request.node in connected and now < request.end
        }
        self._replies = {i: (reply, end) for i, (reply, end) in self._replies.items() if now < end}
        self._relayed = {i: relayed for i, relayed in self._relayed.items() if now < relayed.end}
        self._relayed_ids = {i: r for i, r in self._relayed_ids.items() if r in self._relayed}

    def _request_hellos(self, public_keys: Mapping[int, bytes]) -> None:
        """Request hellos of new nodes, and of gateways whose phones are to be refreshed."""
        now = time.monotonic()
        requested = {request.node for request in self._hello_requests.values()}
        due = {node for node, at in self._gateways.items() if now >= at}
        new = public_keys.keys() - self._hellos.keys() - self._gateways.keys()
        nodes = sorted((new | due) - requested)
        if not nodes:
            return
        requests = [
            _HelloRequest(node, secrets.token_bytes(NONCE_BYTES), now + HELLO_SECONDS)
            for node in nodes
        ]
        messages = [
            make_message(r.node, MessageType.QUERY, "hello", r.nonce, CatchUp(), HELLO_SECONDS)
            for r in requests
        ]
        ids = self._grid.push_messages(messages)
        self._hello_requests |= {i: r for i, r in zip(ids, requests, strict=True) if i}
        self._receive_hellos(public_keys)

    def _receive_hellos(self, public_keys: Mapping[int, bytes]) -> None:
        """Fetch the replies to hello requests, and tell gateways from other nodes by them."""
        if not self._hello_requests:
            return
        for reply in self._grid.pull_messages(list(self._hello_requests)):
            request = self._hello_requests.pop(reply.metadata.reply_to_message_id, None)
            if request is None or request.node not in public_keys:
                continue
            record = None if reply.has_error() else reply.content.config_records.get(RECORD)
            may_be_gateway = not self._keys or self._keys.is_gateway(public_keys[request.node])
            if record is not None and FRAMES in record and may_be_gateway:
                self._gateways[request.node] = time.monotonic() + REFRESH_SECONDS
                self._update_phones(request, reply)
            elif request.node not in self._gateways:
                self._hellos[request.node] = None if reply.has_error() else reply

    def _update_phones(self, request: _HelloRequest, reply: Message) -> None:
        """Replace the phones of a gateway by those in its reply to a hello request."""
        gateway = request.node
        self._phones = {n: phone for n, phone in self._phones.items() if phone.gateway != gateway}
        answers = read_answers(reply, request.nonce, self._keys)
        for public_key, frame in answers.signed.items():
            try:
                self._check_client(public_key, decode_foreign(client_of_hello, frame))
            except SamaraError as error:
                answers.refused[client_index_of_key(public_key)] = error
                answers.dropped[f"the hello of a phone is refused: {error}"] += 1
                continue
            phone = _Phone(gateway, public_key, frame)
            self._phones[phone.node] = phone
            if request_of_phone := self._waiting_hellos.pop(phone.node, None):
                reply_of_phone = _make_reply(frame, request_of_phone)
                self._store_reply(reply_of_phone, _end_of(request_of_phone))
        self._notices.send(self._grid, gateway, answers.refused)
        self._warn(gateway, answers.describe_dropped())

    def _check_client(self, public_key: bytes, client: int) -> None:
        """Raise a `SamaraError` if the holder of a key is not the client with this index."""
        if self._keys:
            self._keys.check(public_key, client)
        elif client != client_index_of_key(public_key):
            raise SamaraError(f"its key is not that of client {client}")

    def _warn(self, gateway: int, text: str) -> None:
        """Log a warning about a reply of a gateway in one line, unless it was the last one."""
        text = cut_foreign_text(text)
        if text and self._logged.get(gateway) != text:
            log.warning("gateway %d: %s", gateway, text)
            self._logged[gateway] = text


def _node_of_key(public_key: bytes) -> int:
    """Return the node id of the phone with this key, which is the same behind every gateway."""
    return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "little") >> 1


def _assign_id(message: Message) -> str:
    """Give a message a new id and return it."""
    message_id = str(uuid4())
    set_message_id(message, message_id)
    return message_id


def _end_of(message: Message) -> float:
    """Return the end of a message's time to live, in monotonic seconds, if it is sent now."""
    return time.monotonic() + message.metadata.ttl


def _frame_of(message: Message) -> bytes:
    frame = message.content.config_records[RECORD]["frame"]
    assert isinstance(frame, bytes), "make_message puts bytes there"
    return frame


def _make_reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)
