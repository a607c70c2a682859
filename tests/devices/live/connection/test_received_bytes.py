"""A SuperNode reads no more of a server's answer than a message of its kind can have."""

import json
import tracemalloc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from helpers import layout_of
from hypothesis import given
from hypothesis import strategies as st

from samara.devices.live.connection.received_bytes import (
    MOST_ANSWER_BYTES,
    MOST_BUNDLE_BYTES,
    MOST_PARTS,
    ReceivedBytes,
    largest_state,
    limit_received,
)
from samara.shared.errors import DeviceError
from samara.shared.flower_compat import note_messages
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.message_sizes import most_message_bytes

SERVER, PART, BUNDLE = "http://127.0.0.1:9", "/v1/fleet/pull-object", "/v1/fleet/get-fab"
PIECE = 2**16
ELEMENTS = 512


class Endless(httpx.SyncByteStream):
    """An answer of a given number of bytes, sent in pieces.

    Attributes:
        sent: bytes that were read.
    """

    def __init__(self, size: int) -> None:
        self.size, self.sent = size, 0

    def __iter__(self) -> Iterator[bytes]:
        while self.sent < self.size:
            piece = bytes(min(PIECE, self.size - self.sent))
            self.sent += len(piece)
            yield piece


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> tuple[ReceivedBytes, dict[str, Any]]:
    """The limits of a process, and the next answer of its server, which a test can change."""
    answer: dict[str, Any] = {"headers": {}}

    def handle(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"] == "identity"
        return httpx.Response(200, headers=answer["headers"], stream=answer["stream"])

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    limits = ReceivedBytes(lambda kind: most_message_bytes(kind, ELEMENTS))
    limit_received(limits)
    return limits, answer


def ask(path: str, stream: Endless, answer: dict[str, Any]) -> int:
    answer["stream"] = stream
    with httpx.Client() as client:
        return len(client.post(SERVER + path).content)


@pytest.mark.parametrize(
    ("message_type", "kind"),
    [
        ("query", TaskKind.HELLO),
        ("query.refused", TaskKind.REFUSED),
        ("query.blob", TaskKind.BLOB),
        ("query.masking", TaskKind.MASK),
        ("train", TaskKind.TRAIN),
        ("evaluate", TaskKind.EVALUATE),
        ("evaluate.personal", TaskKind.EVALUATE),
    ],
)
def test_a_message_has_the_bytes_of_its_kind_and_no_more_is_read(
    message_type: str, kind: int, received: tuple[ReceivedBytes, dict[str, Any]]
) -> None:
    """An answer of 48 MiB is refused. All parts of a message share one limit."""
    limits, answer = received
    most = most_message_bytes(kind, ELEMENTS)  # type: ignore[arg-type]
    limits.begin(message_type, 3)
    assert ask(PART, Endless(1000), answer) == 1000
    large = Endless(48 * 2**20)
    tracemalloc.start()
    with pytest.raises(DeviceError, match="pull-object exceeds its size limit"):
        ask(PART, large, answer)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert large.sent <= most + PIECE
    assert peak < 3 * most + 2**20
    limits.begin(message_type, 3)
    assert ask(PART, Endless(most), answer) == most


@pytest.mark.parametrize(("message_type", "parts"), [("steal", 3), ("train", MOST_PARTS + 1)])
def test_of_a_message_of_no_kind_or_of_many_parts_nothing_is_read(
    message_type: str, parts: int, received: tuple[ReceivedBytes, dict[str, Any]]
) -> None:
    limits, answer = received
    limits.begin(message_type, parts)
    with pytest.raises(DeviceError):
        ask(PART, Endless(1), answer)


def test_other_answers_have_a_mebibyte_and_all_bundles_sixteen(
    received: tuple[ReceivedBytes, dict[str, Any]],
) -> None:
    _, answer = received
    for _ in range(3):
        assert ask("/v1/fleet/get-run", Endless(MOST_ANSWER_BYTES), answer)
        with pytest.raises(DeviceError, match="get-run exceeds its size limit"):
            ask("/v1/fleet/get-run", Endless(MOST_ANSWER_BYTES + 1), answer)
    half = MOST_BUNDLE_BYTES // 2
    assert ask(BUNDLE, Endless(half), answer) == ask(BUNDLE, Endless(half), answer) == half
    with pytest.raises(DeviceError, match="get-fab exceeds its size limit"):
        ask(BUNDLE, Endless(1), answer)


def test_a_compressed_answer_is_not_read(
    received: tuple[ReceivedBytes, dict[str, Any]],
) -> None:
    limits, answer = received
    limits.begin("train", 3)
    answer["headers"] = {"content-encoding": "gzip"}
    small = Endless(100)
    with pytest.raises(DeviceError, match="is compressed"):
        ask(PART, small, answer)
    assert not small.sent


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=30))
def test_what_is_held_is_never_more_than_a_message_may_have(
    tries: list[tuple[bool, int]],
) -> None:
    """Parts that break off are requested again, and do not count."""
    limits = ReceivedBytes(lambda kind: most_message_bytes(kind, 0))
    limits.begin("query", 3)
    most, held = most_message_bytes(TaskKind.HELLO, 0), 0  # type: ignore[arg-type]
    assert most == PIECE
    for is_cut, quarters in tries:
        size = quarters * PIECE // 4
        stream = limits.limit(PART, Endless(size))
        try:
            if not is_cut:
                held += sum(map(len, stream))
            else:
                next(iter(stream), None)
        except DeviceError:
            assert held + size > most
        stream.close()
        assert held <= most


def test_the_type_of_a_message_is_known_before_its_parts_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    internal: Any = import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(internal, "_pull_and_store_message", internal._pull_and_store_message)
    noted: list[tuple[str, int]] = []
    note_messages(lambda kind, parts: noted.append((kind, parts)))

    def pull(run_id: int, part: str) -> bytes:
        assert noted == [("train", 3)]
        raise DeviceError("too long")

    leaf = SimpleNamespace(children=[])
    tree = SimpleNamespace(children=[leaf, leaf])
    metadata = SimpleNamespace(run_id=7, group_id="9", message_type="train", message_id="m")
    state, store = Mock(), Mock()
    state.create_task.return_value, store.preregister.return_value = 5, ["m"]
    done = internal._pull_and_store_message(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (SimpleNamespace(metadata=metadata), tree),
        get_run=Mock(),
        get_fab=Mock(),
        trusted_entities=None,
        pull_object=pull,
        confirm_message_received=Mock(),
    )
    assert done is None
    assert state.finish_task.call_args.args[:1] == (5,)


def test_the_largest_state_is_that_of_any_run(tmp_path: Path) -> None:
    assert largest_state(tmp_path) == 0
    for number, size in enumerate((10, 30, 20)):
        folder = tmp_path / "runs" / f"{number:016x}"
        folder.mkdir(parents=True)
        layout = layout_of(size)
        (folder / "run.json").write_text(json.dumps({"layout": layout.to_json()}))
    (tmp_path / "runs" / ("f" * 16)).mkdir()
    (tmp_path / "runs" / ("f" * 16) / "run.json").write_text('{"layout": "half')
    assert largest_state(tmp_path) == 30
