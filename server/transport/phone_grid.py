"""A grid in which every phone and board behind a gateway is a separate node.

A gateway is one Flower node with many attached phones. A gateway's hello reply lists its newly
attached phones, and the numbers of all phones that are still attached. A long list comes in several
replies. This grid gives every phone its own node id and public key, so that roster, cohorts and
strategy need not know about gateways. `PhoneRelay` sends the messages to phones.

A phone's frame is used only if the phone's key has signed the frame together with the instruction
that it answers. For a hello the instruction is a nonce. A gateway therefore cannot replay the hello
of a phone that is no longer attached.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from uuid import uuid4

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.live.keys import ClientKeys
from samara.server.transport.delegating_grid import DelegatingGrid
from samara.server.transport.guarded_grid import GuardedGrid
from samara.server.transport.messages import (
    BLOB_MESSAGE,
    client_of_hello,
    cut_foreign_text,
    decode_foreign,
    make_message,
)
from samara.server.transport.phone_answers import PhonePlace, make_reply, read_answers, read_numbers
from samara.server.transport.phone_relay import PhoneRelay
from samara.server.transport.refusal_notices import PhoneNotices
from samara.shared.errors import SamaraError
from samara.shared.flower_compat import set_message_id
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import (
    ATTACHED,
    FRAMES,
    IN_PARTS,
    KNOWN,
    PENDING,
    RECORD,
    SESSION,
    Kind,
    kind_of,
)

log = logging.getLogger("samara.server")

HELLO_SECONDS = 300.0
"""Seconds after which an unanswered hello request is sent again."""
REFRESH_SECONDS = 5.0
"""Seconds between two requests for a gateway's attached phones."""
HELLO_LIFE_SECONDS = 6 * 3600.0
"""Seconds after which an attached phone must send a new hello."""
NONCE_BYTES = 32


@dataclass(frozen=True)
class _HelloRequest:
    """A hello request to a node.

    Attributes:
        node: Flower's id of the node.
        nonce: random bytes that the phones of a gateway sign with their hellos.
        known: for a gateway, the numbers of the attached phones that need not send a hello again.
        end: deadline for the answer, monotonic seconds.
    """

    node: int
    nonce: bytes
    known: frozenset[int]
    end: float


class PhoneGrid(DelegatingGrid):
    """A grid in which phones behind gateways are nodes.

    Args:
        grid: grid that delivers the messages.
        keys: client keys of the run, which decide which nodes are gateways and which phones may
            take part; None admits all nodes and phones.
    """

    def __init__(self, grid: Grid, keys: ClientKeys | None = None) -> None:
        super().__init__(grid)
        self._keys = keys
        self._hello_requests: dict[str, _HelloRequest] = {}  # by message id
        self._logged: dict[int, str] = {}  # last warning about each gateway
        # Hello replies of nodes that are not gateways; None if the node must be asked again.
        self._hellos: dict[int, Message | None] = {}
        # Time of the next request for each gateway's phones, monotonic seconds.
        self._gateways: dict[int, float] = {}
        # Nonce of the last request, for each gateway whose reply still lacks hellos.
        self._nonces: dict[int, bytes] = {}
        self._sessions: dict[int, bytes] = {}  # session of each gateway's process
        self._phones: dict[int, PhonePlace] = {}
        self._refreshed = -REFRESH_SECONDS
        self._notices = PhoneNotices()
        # Hello requests to phones with an outdated hello, by node.
        self._waiting_hellos: dict[int, Message] = {}
        self._relay = PhoneRelay(grid, keys, self._warn)
        # Phones' replies that were not pulled yet, with the end of their time to live.
        self._replies: dict[str, tuple[Message, float]] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes, including phones."""
        return list(self.connected_nodes())

    def connected_nodes(self) -> dict[int, bytes]:
        """Return the public key (PEM) of every connected node, by node id; empty without a key.

        Phones are nodes, and gateways are not. Other nodes are left out until they have answered a
        hello request.
        """
        self._refreshed = time.monotonic()
        public_keys = self._flower_nodes()
        self._discard_old_entries(public_keys.keys())
        self._receive_hellos(public_keys)
        self._request_hellos(public_keys)
        self._relay.advance(self._phones)
        direct = [node for node in sorted(public_keys) if node in self._hellos]
        phones = {node: phone.public_key for node, phone in self._phones.items()}
        return {node: public_keys[node] for node in direct} | phones

    def is_attached(self, node: int) -> bool:
        """Return whether a node is a phone or board behind a gateway."""
        return node in self._phones

    def _flower_nodes(self) -> dict[int, bytes]:
        """Return the public key of every node known to Flower, including gateways."""
        if isinstance(self._grid, GuardedGrid):
            return self._grid.connected_nodes()
        return dict.fromkeys(self._grid.get_node_ids(), b"")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        direct: dict[int, Message] = {}
        ids: dict[int, str] = {}
        for index, message in enumerate(messages):
            node, message_type = message.metadata.dst_node_id, message.metadata.message_type
            phone = self._phones.get(node)
            hello = self._hellos.get(node)
            is_hello_request = message_type == MessageType.QUERY
            if phone and is_hello_request:
                ids[index] = _assign_id(message)
                if phone.hello:
                    self._store_reply(make_reply(phone.hello, message), _end_of(message))
                else:
                    self._waiting_hellos[node] = message
            elif phone:
                ids[index] = _assign_id(message)
                if message_type == BLOB_MESSAGE:
                    self._phones[node] = replace(phone, hello=b"")
                self._relay.add(message)
            elif hello and is_hello_request:
                ids[index] = _assign_id(message)
                self._store_reply(Message(hello.content, reply_to=message), _end_of(message))
                self._hellos[node] = None
            else:
                direct[index] = message
        self._relay.advance(self._phones)
        direct_ids = self._grid.push_messages(list(direct.values())) if direct else []
        ids |= zip(direct, direct_ids, strict=True)
        return [ids[index] for index in sorted(ids)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived; each reply is returned once."""
        wanted = list(message_ids)
        is_late = time.monotonic() >= self._refreshed + REFRESH_SECONDS
        if self._waiting_hellos or (is_late and self._relay.message_ids):
            self.connected_nodes()  # also requests lists of phones, perhaps with new hellos
        unsent = {message.metadata.message_id for message in self._waiting_hellos.values()}
        to_phones = (self._relay.message_ids | self._replies.keys() | unsent).intersection(wanted)
        to_pull = self._relay.ids_to_pull(to_phones) | (set(wanted) - to_phones)
        replies = []
        for reply in self._grid.pull_messages(sorted(to_pull)) if to_pull else []:
            if not self._relay.is_whole(reply.metadata.reply_to_message_id):
                replies.append(reply)
                continue
            for of_phone, end in self._relay.split(reply):
                self._store_reply(of_phone, end)
        self._relay.advance(self._phones)  # also requests the answers that the replies lacked
        return replies + [self._replies.pop(i)[0] for i in wanted if i in self._replies]

    def _store_reply(self, reply: Message, end: float) -> None:
        """Keep a reply until it is pulled, at most until `end` (monotonic seconds)."""
        self._replies[reply.metadata.reply_to_message_id] = reply, end

    def _discard_old_entries(self, connected: Set[int]) -> None:
        """Discard the data of disconnected nodes, and messages whose time to live has ended."""
        now = time.monotonic()
        self._hellos = {n: hello for n, hello in self._hellos.items() if n in connected}
        self._gateways = {n: at for n, at in self._gateways.items() if n in connected}
        self._nonces = {n: nonce for n, nonce in self._nonces.items() if n in connected}
        self._sessions = {n: session for n, session in self._sessions.items() if n in connected}
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

    def _request_hellos(self, public_keys: Mapping[int, bytes]) -> None:
        """Request hellos from new nodes, and from gateways whose list of phones is outdated."""
        now = time.monotonic()
        requested = {request.node for request in self._hello_requests.values()}
        due = {node for node, at in self._gateways.items() if now >= at}
        new = public_keys.keys() - self._hellos.keys() - self._gateways.keys()
        nodes = sorted((new | due) - requested)
        if not nodes:
            return
        requests = [
            _HelloRequest(
                node,
                self._nonces.pop(node, b"") or secrets.token_bytes(NONCE_BYTES),
                self._known_at(node),
                now + HELLO_SECONDS,
            )
            for node in nodes
        ]
        messages = [
            make_message(r.node, MessageType.QUERY, "hello", r.nonce, CatchUp(), HELLO_SECONDS)
            for r in requests
        ]
        for request, message in zip(requests, messages, strict=True):
            message.content.config_records[RECORD][IN_PARTS] = True
            if request.known:
                message.content.config_records[RECORD][KNOWN] = sorted(request.known)
        ids = self._grid.push_messages(messages)
        self._hello_requests |= {i: r for i, r in zip(ids, requests, strict=True) if i}
        self._receive_hellos(public_keys)

    def _known_at(self, gateway: int) -> frozenset[int]:
        """Return the numbers of a gateway's phones that need not send a new hello.

        A hostile gateway could falsely report such a phone as attached. The phone would only miss
        rounds, as it would if the gateway withheld the phone's answers.
        """
        long_ago = time.monotonic() - HELLO_LIFE_SECONDS
        return frozenset(
            phone.number
            for phone in self._phones.values()
            if phone.gateway == gateway
            and phone.hello
            and kind_of(phone.hello) is Kind.HELLO
            and phone.introduced > long_ago
            and not (self._keys and self._keys.refusal(phone.public_key))
        )

    def _receive_hellos(self, public_keys: Mapping[int, bytes]) -> None:
        """Fetch the replies to hello requests, which show whether a node is a gateway."""
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
        """Replace the list of a gateway's phones with the phones in its hello reply."""
        gateway = request.node
        record = reply.content.config_records[RECORD]
        staying = request.known.intersection(read_numbers(reply, ATTACHED))
        self._phones = {
            node: phone
            for node, phone in self._phones.items()
            if phone.gateway != gateway or phone.number in staying
        }
        if isinstance(session := record.get(SESSION), bytes):
            if self._sessions.get(gateway, session) != session:
                self._relay.lose(gateway)
            self._sessions[gateway] = session
        answers = read_answers(reply, request.nonce, self._keys)
        has_more = False
        for public_key, frame in answers.signed.items():
            try:
                self._check_client(public_key, decode_foreign(client_of_hello, frame))
            except SamaraError as error:
                answers.refused[client_index_of_key(public_key)] = error
                answers.dropped[f"the hello of a phone is refused: {error}"] += 1
                continue
            phone = PhonePlace(gateway, public_key, frame, time.monotonic())
            self._phones[phone.node] = phone
            has_more |= kind_of(frame) is Kind.HELLO and phone.number not in request.known
            if request_of_phone := self._waiting_hellos.pop(phone.node, None):
                reply_of_phone = make_reply(frame, request_of_phone)
                self._store_reply(reply_of_phone, _end_of(request_of_phone))
        # the next request with this nonce asks only the phones that have not answered
        if has_more and read_numbers(reply, PENDING):
            self._gateways[gateway], self._nonces[gateway] = 0.0, request.nonce
        self._notices.send(self._grid, gateway, answers.refused)
        self._warn(gateway, answers.describe_dropped())

    def _check_client(self, public_key: bytes, client: int) -> None:
        """Raise a `SamaraError` if a key's holder is not the client with this index."""
        if self._keys:
            self._keys.check(public_key, client)
        elif client != client_index_of_key(public_key):
            raise SamaraError(f"its key does not belong to client {client}")

    def _warn(self, gateway: int, text: str) -> None:
        """Log a one-line warning about a gateway's reply, unless it equals the previous warning."""
        text = cut_foreign_text(text)
        if text and self._logged.get(gateway) != text:
            log.warning("gateway %d: %s", gateway, text)
            self._logged[gateway] = text


def _assign_id(message: Message) -> str:
    """Give a message a new id and return it."""
    message_id = str(uuid4())
    set_message_id(message, message_id)
    return message_id


def _end_of(message: Message) -> float:
    """Return the time, in monotonic seconds, at which a message that is sent now expires."""
    return time.monotonic() + message.metadata.ttl
