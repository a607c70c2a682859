"""The requests of nodes that the filter passes on to Flower, in Flower's own message format."""

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest as AnnounceRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Message, Metadata, ObjectTree
from flwr.proto.message_pb2 import PushObjectRequest as ObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest

from samara.server.live import fleet_filter, open_requests, told_clients
from samara.server.live.keys import ClientKeys
from samara.server.live.superlink import AccessFilter
from samara.server.live.told_clients import TOLD_FILE
from samara.shared.flower_compat import SUPERLINK_NODE_ID
from samara.shared.network import log_budget
from samara.shared.network.rejection import HEADER, RejectionCode, rejection_in
from samara.shared.protocol.signing import SigningKey

NODE, OTHER = 11, 12
MAX_BYTES = 2**20
MEDIA_TYPE = (b"content-type", b"application/protobuf")
FAR_AWAY = ("10.0.0.7", 1234)
HERE = ("127.0.0.1", 1234)
REQUEST = "5e" * 32

Change = Callable[[AnnounceRequest], None]


class Flower:
    """Flower's app: it accepts every request and records the paths."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        self.paths.append(scope["path"])
        await send({"type": "http.response.start", "status": 200})


@pytest.fixture
def flower() -> Flower:
    return Flower()


@pytest.fixture
def access(flower: Flower) -> AccessFilter:
    """The filter of a run without keys; the run has sent a request to `NODE`."""
    access = AccessFilter(flower, MAX_BYTES)
    metadata = Metadata(message_id=REQUEST, dst_node_id=NODE, ttl=60.0)
    sent = PushAppMessagesRequest(messages_list=[Message(metadata=metadata)])
    assert post(access, "/v1/runtime/push-messages", sent.SerializeToString(), HERE) == 200
    flower.paths.clear()
    return access


def post(
    access: AccessFilter,
    path: str,
    body: bytes = b"",
    client: tuple[str, int] = FAR_AWAY,
    headers: tuple[tuple[bytes, bytes], ...] = (MEDIA_TYPE,),
    method: str = "POST",
) -> int:
    """Send a request; return the status of the response."""
    return asyncio.run(_post(access, path, body, client, headers, method))


async def _post(
    access: AccessFilter, path: str, body: bytes, client: Any, headers: Any, method: str
) -> int:
    statuses: list[int] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {"type": "http", "method": method, "client": client, "path": path}
    await access(scope | {"headers": list(headers)}, receive, send)
    [status] = statuses
    return status


def announcement(root: str, parts: int = 2, node: int = NODE) -> AnnounceRequest:
    """Return a valid announcement of a reply."""
    metadata = Metadata(
        message_id=root,
        src_node_id=node,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=REQUEST,
        ttl=50.0,
        created_at=1.8e9,
        message_type="train",
    )
    children = [ObjectTree(object_id=name_of(bytes([part]))) for part in range(parts)]
    return AnnounceRequest(
        node=Node(node_id=node),
        messages_list=[Message(metadata=metadata)],
        message_object_trees=[ObjectTree(object_id=root, children=children)],
        clientapp_runtime_list=[1.0],
    )


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def announce(access: AccessFilter, pushed: AnnounceRequest) -> int:
    return post(access, "/v1/fleet/push-messages", pushed.SerializeToString())


def push(access: AccessFilter, content: bytes, node: int = NODE, name: str = "") -> int:
    pushed = ObjectRequest(
        node=Node(node_id=node), object_id=name or name_of(content), object_content=content
    )
    return post(access, "/v1/fleet/push-object", pushed.SerializeToString())


def test_a_sound_reply_reaches_flower(access: AccessFilter, flower: Flower) -> None:
    assert announce(access, announcement("aa" * 32)) == 200
    assert push(access, b"\0") == push(access, b"\1") == 200
    assert flower.paths == ["/v1/fleet/push-messages", *["/v1/fleet/push-object"] * 2]


def test_what_flower_stores_of_a_reply_is_said_to_have_arrived(flower: Flower) -> None:
    said: list[str] = []
    access = AccessFilter(flower, MAX_BYTES, arrived=lambda: said.append(flower.paths[-1]))
    metadata = Metadata(message_id=REQUEST, dst_node_id=NODE, ttl=60.0)
    sent = PushAppMessagesRequest(messages_list=[Message(metadata=metadata)])
    assert post(access, "/v1/runtime/push-messages", sent.SerializeToString(), HERE) == 200
    assert post(access, "/v1/fleet/pull-messages") == 200
    assert push(access, bytes([0])) == 200  # answers nothing, and is not stored
    assert said == []
    assert announce(access, announcement("reply")) == 200
    assert push(access, bytes([0])) == 200
    assert said == ["/v1/fleet/push-messages", "/v1/fleet/push-object"]


def metadata_of(pushed: AnnounceRequest) -> Any:
    return pushed.messages_list[0].metadata


def as_superlink(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).reply_to_message_id = ""
    metadata_of(pushed).src_node_id = SUPERLINK_NODE_ID
    metadata_of(pushed).dst_node_id = OTHER


def to_another_node(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).dst_node_id = OTHER


def for_another_node(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).src_node_id = OTHER


def without_objects(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).message_id = "bb" * 32


def without_end(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).ttl = float("inf")


def without_time(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).created_at = float("nan")


def for_a_year(pushed: AnnounceRequest) -> None:
    metadata_of(pushed).ttl = 3e7


def long(pushed: AnnounceRequest) -> None:
    pushed.messages_list[0].error.reason = "lie" * 2**17


def twice(pushed: AnnounceRequest) -> None:
    pushed.messages_list.append(pushed.messages_list[0])


def of_no_message(pushed: AnnounceRequest) -> None:
    del pushed.messages_list[:]


def with_many_objects(pushed: AnnounceRequest) -> None:
    [tree] = pushed.message_object_trees
    tree.children.extend(ObjectTree(object_id=f"{n:064x}") for n in range(5000))


def with_no_number(pushed: AnnounceRequest) -> None:
    pushed.clientapp_runtime_list[:] = [float("nan")]


@pytest.mark.parametrize(
    "change",
    [
        *(as_superlink, to_another_node, for_another_node, without_objects, without_end),
        *(without_time, for_a_year, long, twice, of_no_message, with_many_objects, with_no_number),
    ],
)
def test_an_announcement_that_no_honest_node_sends_is_refused(
    access: AccessFilter, flower: Flower, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    pushed = announcement("aa" * 32)
    change(pushed)
    assert [announce(access, pushed) for _ in range(20)] == [400] * 20
    assert flower.paths == []
    assert len(caplog.records) == 1


def test_a_reply_to_no_request_stores_nothing(access: AccessFilter, flower: Flower) -> None:
    pushed = announcement("aa" * 32)
    metadata_of(pushed).reply_to_message_id = "77" * 32
    assert announce(access, pushed) == 200
    assert announce(access, announcement("aa" * 32, node=OTHER)) == 200  # the request is NODE's
    assert push(access, b"\0") == 200
    assert flower.paths == []


def test_a_node_cannot_announce_again_and_again(access: AccessFilter, flower: Flower) -> None:
    statuses = [announce(access, announcement(f"{n:064x}")) for n in range(50)]
    assert statuses == [200] * 3 + [400] * 47
    assert len(flower.paths) == 3


def test_objects_are_those_that_were_announced_once_each(
    access: AccessFilter, flower: Flower
) -> None:
    announce(access, announcement("aa" * 32))
    flower.paths.clear()
    assert push(access, b"\0", name=name_of(b"\1")) == 400  # not what its name says
    assert push(access, b"something else") == 200  # answered, and not stored
    assert push(access, b"\0", node=OTHER) == 200
    assert flower.paths == []
    assert push(access, b"\0") == push(access, b"\0") == 200
    assert len(flower.paths) == 1


def test_the_bytes_of_a_reply_and_of_a_node_are_bounded(
    access: AccessFilter, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "MAX_NODE_BYTES", 2_000_100)
    contents = [bytes([n]) * 400_000 for n in range(8)]
    replies = []
    for number in range(4):
        metadata = Metadata(message_id=f"request {number}", dst_node_id=NODE, ttl=60.0)
        sent = PushAppMessagesRequest(messages_list=[Message(metadata=metadata)])
        post(access, "/v1/runtime/push-messages", sent.SerializeToString(), HERE)
        pushed = announcement(f"{number:064x}", parts=0)
        metadata_of(pushed).reply_to_message_id = f"request {number}"
        [tree] = pushed.message_object_trees
        mine = [content + bytes([number]) for content in contents[:4]]
        tree.children.extend(ObjectTree(object_id=name_of(content)) for content in mine)
        assert announce(access, pushed) == 200
        replies.append([push(access, content) for content in mine])
    # 1 MiB of a reply, and 2 MB of the node, of which the server fetches nothing
    assert replies == [[200, 200, 400, 400]] * 2 + [[200, 400, 400, 400], [400] * 4]
    fetched = ConfirmMessageReceivedRequest(message_object_id=f"{0:064x}")
    path = "/v1/runtime/confirm-message-received"
    assert post(access, path, fetched.SerializeToString(), HERE) == 200
    assert push(access, contents[1] + b"\3") == 200


@pytest.mark.parametrize("body", [b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_message_do_not_reach_flower(
    access: AccessFilter, flower: Flower, body: bytes
) -> None:
    for path in ("/v1/fleet/push-messages", "/v1/fleet/push-object"):
        assert post(access, path, body) == 400
    assert flower.paths == []


def test_a_strangers_requests_leave_a_line_each_host_and_kind(
    access: AccessFilter, flower: Flower, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/v1/fleet/pull-messages"
    for number in range(100):
        other = b"x" * 50_000 + str(number).encode()
        assert post(access, path, headers=((b"content-type", b"text/plain"),)) == 415
        assert post(access, path, headers=(MEDIA_TYPE, (b"x", other))) == 431
        assert post(access, f"/v1/fleet/{number}") == 404
        assert post(access, path, method="GET") == 404
        assert post(access, path, headers=(MEDIA_TYPE, (b"content-length", b"9" * 9))) == 413
    assert flower.paths == []
    assert len(caplog.records) == 4
    assert sum(len(record.getMessage()) for record in caplog.records) < 500


def signed_headers(key: SigningKey, late: float = 0.0, extra: str = "") -> Any:
    timestamp = (datetime.now(UTC) - timedelta(seconds=late)).isoformat()
    signature = key.sign(timestamp.encode())
    return (
        MEDIA_TYPE,
        (b"flwr-public-key", b64encode(key.public)),
        (b"flwr-timestamp", (timestamp + extra).encode()),
        (b"flwr-signature", b64encode(signature)),
    )


def test_only_registered_keys_with_a_present_signature_reach_flower(
    flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    known = SigningKey(keys.create("known"))
    stranger = SigningKey(ClientKeys(tmp_path / "strangers").create("stranger"))
    access = AccessFilter(flower, MAX_BYTES, keys)

    def status(headers: Any) -> int:
        return post(access, "/v1/fleet/pull-messages", headers=headers)

    assert status(signed_headers(known)) == 200
    assert status(signed_headers(stranger)) == 401
    assert status((MEDIA_TYPE,)) == 401
    assert status((MEDIA_TYPE, (b"flwr-public-key", b"!"))) == 401
    assert status(signed_headers(known)[:2]) == 401
    assert status(signed_headers(known, late=400.0)) == 401
    assert status(signed_headers(known, late=-10.0)) == 401
    assert status(signed_headers(known, extra="0")) == 401
    keys.revoke("known")
    assert status(signed_headers(known)) == 401
    assert len(flower.paths) == 1


def test_a_sound_request_keeps_its_connection_and_no_other_does(
    flower: Flower, tmp_path: Path
) -> None:
    keys, kept = ClientKeys(tmp_path / "keys"), list[Any]()
    known = SigningKey(keys.create("known"))
    access = AccessFilter(flower, MAX_BYTES, keys, keep=kept.append)
    path = "/v1/fleet/pull-messages"
    for headers in (signed_headers(known, late=400.0), (MEDIA_TYPE,), ()):
        assert post(access, path, headers=headers) in (401, 415)
    assert post(access, "/v1/control/start-run", client=HERE) == 403
    assert kept == []
    assert post(access, path, headers=signed_headers(known)) == 200
    assert kept == [FAR_AWAY]


def rejection_of(access: AccessFilter, headers: Any, status: int = 401) -> RejectionCode | None:
    """Send a request that is rejected; return the reason that the sender receives."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "client": FAR_AWAY, "headers": list(headers)}
    asyncio.run(access(scope | {"path": "/v1/fleet/activate-node"}, None, send))
    assert sent[0]["status"] == status
    return rejection_in({k: v.decode() for k, v in sent[0]["headers"]}.get(HEADER.encode()))


def test_who_holds_a_key_is_told_why_it_is_rejected(
    flower: Flower,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    known = SigningKey(keys.create("known"))
    stranger = SigningKey(ClientKeys(tmp_path / "strangers").create("stranger"))
    access = AccessFilter(flower, MAX_BYTES, keys)
    assert rejection_of(access, signed_headers(stranger)) is RejectionCode.UNREGISTERED
    assert rejection_of(access, (MEDIA_TYPE,)) is RejectionCode.UNREGISTERED
    assert rejection_of(access, signed_headers(known, late=400.0)) is RejectionCode.CLOCK
    assert rejection_of(access, signed_headers(known, extra="0")) is RejectionCode.SIGNATURE
    keys.revoke("known")
    assert rejection_of(access, signed_headers(known, late=400.0)) is RejectionCode.REVOKED
    # Nobody but its holder learns that a key was revoked.
    assert rejection_of(access, signed_headers(known, extra="0")) is RejectionCode.SIGNATURE
    lines = [record.getMessage() for record in caplog.records]
    assert any("was rejected: the key known was revoked on 20" in line for line in lines)
    assert any("the clock of known differs" in line for line in lines)


def test_nodes_are_told_that_the_run_is_finished(
    flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    known = SigningKey(keys.create("known"))
    stranger = SigningKey(ClientKeys(tmp_path / "strangers").create("stranger"))
    result, told = tmp_path / "result.json", tmp_path / TOLD_FILE
    access = AccessFilter(flower, MAX_BYTES, keys, result=result)
    assert post(access, "/v1/fleet/pull-messages", headers=signed_headers(known)) == 200
    assert not told.exists()
    result.touch()
    assert rejection_of(access, signed_headers(known), 410) is RejectionCode.FINISHED
    assert rejection_of(access, signed_headers(known), 410) is RejectionCode.FINISHED
    assert rejection_of(access, signed_headers(stranger)) is RejectionCode.UNREGISTERED
    (key,) = keys.read_all()
    assert told.read_text().split() == [key.fingerprint]
    again = AccessFilter(flower, MAX_BYTES, keys, result=result)
    assert rejection_of(again, signed_headers(known), 410) is RejectionCode.FINISHED
    assert told.read_text().split() == [key.fingerprint]
    monkeypatch.setattr(told_clients, "_MOST_TOLD", 2)
    without_keys = AccessFilter(flower, MAX_BYTES, result=result)
    for name in ("stranger", "another", "third"):
        newcomer = tmp_path / "strangers" / f"{name}.key"
        who = SigningKey(
            newcomer if newcomer.exists() else ClientKeys(tmp_path / "strangers").create(name)
        )
        assert rejection_of(without_keys, signed_headers(who), 410) is RejectionCode.FINISHED
    assert len(told.read_text().split()) == 2


def test_a_node_is_told_also_where_that_cannot_be_noted(
    flower: Flower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    known, result = SigningKey(keys.create("known")), tmp_path / "result.json"
    result.touch()
    (tmp_path / TOLD_FILE).mkdir()
    access = AccessFilter(flower, MAX_BYTES, keys, result=result)
    assert rejection_of(access, signed_headers(known), 410) is RejectionCode.FINISHED
    assert "cannot be read" in caplog.text
    assert "cannot be written" in caplog.text


async def _hold(
    access: AccessFilter, count: int, part: bytes, ends: bool, headers: Any = (MEDIA_TYPE,)
) -> list[int]:
    """Send several requests with endless bodies at the same time; return the statuses."""
    statuses: list[int] = []

    async def one() -> None:
        first = True

        async def receive() -> Any:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": part, "more_body": True}
            if ends:
                return {"type": "http.disconnect"}
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "method": "POST", "client": FAR_AWAY, "headers": list(headers)}
        await access(scope | {"path": "/v1/fleet/push-object"}, receive, send)

    await asyncio.gather(*(one() for _ in range(count)))
    return statuses


def test_endless_bodies_hold_little_memory_and_for_a_short_time(
    access: AccessFilter, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_filter, "BODY_SECONDS", 0.2)
    statuses = asyncio.run(_hold(access, 60, bytes(MAX_BYTES), ends=False))
    held = fleet_filter.MAX_BYTES_IN_FLIGHT // MAX_BYTES
    assert (statuses.count(408), statuses.count(503)) == (held, 60 - held)
    assert asyncio.run(_hold(access, 5, bytes(100), ends=True)) == []
    assert flower.paths == []
    assert announce(access, announcement("aa" * 32)) == 200  # nothing is held any more


def test_one_key_holds_a_share_of_the_memory_of_bodies(
    flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_filter, "BODY_SECONDS", 0.2)
    keys = ClientKeys(tmp_path / "keys")
    greedy, other = (SigningKey(keys.create(name)) for name in ("greedy", "other"))
    access = AccessFilter(flower, MAX_BYTES, keys)
    share = fleet_filter.MAX_BYTES_IN_FLIGHT // fleet_filter.SENDERS_AT_ONCE

    async def hold() -> tuple[list[int], int]:
        held = asyncio.create_task(
            _hold(access, 12, bytes(MAX_BYTES), False, signed_headers(greedy))
        )
        while len(access._fleet._bytes) == 0:
            await asyncio.sleep(0)
        path = "/v1/fleet/pull-messages"
        answered = await _post(access, path, b"x", FAR_AWAY, signed_headers(other), "POST")
        return await held, answered

    statuses, answered = asyncio.run(hold())
    assert answered == 200
    assert statuses.count(408) == share // MAX_BYTES
    assert statuses.count(503) == 12 - share // MAX_BYTES
    assert access._fleet._bytes == {}


def test_17204_requests_write_few_lines_and_silence_no_other_refusal(
    access: AccessFilter, flower: Flower, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask_often() -> None:
        for number in range(17_204):
            stranger = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1
            path = f"/v1/fleet/{number}" if number % 2 else f"/v1/control/{number}"
            await _post(access, path, b"", stranger, (MEDIA_TYPE,), "POST")

    asyncio.run(ask_often())
    assert len(caplog.records) == 2 * log_budget.LINES_AT_ONCE
    assert post(access, "/v1/fleet/pull-messages", headers=((b"content-type", b"a"),)) == 415
    assert "10.0.0.7 sent a body that is not one of Flower's messages" in caplog.text
    access.lines.close()
    left_out = 17_204 // 2 - log_budget.LINES_AT_ONCE
    assert caplog.text.count(f"{left_out} lines were left out") == 2
    assert flower.paths == []
