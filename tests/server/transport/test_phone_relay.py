"""Messages to phones and boards outlive the gateway through which they were sent."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict

from samara.devices.live.keys import create_key
from samara.server.transport.messages import make_message
from samara.server.transport.phone_answers import PhonePlace
from samara.server.transport.phone_relay import PhoneRelay
from samara.shared.flower_compat import ErrorCode, TaskIdentity, set_message_id
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.signing import SigningKey, answer_bytes
from samara.shared.protocol.wire import (
    CLIENTS,
    FRAMES,
    IN_PARTS,
    PENDING,
    PUBLIC_KEYS,
    RECORD,
    SIGNATURES,
)

NORTH, SOUTH = 1001, 1002
"""Nodes of two gateways."""
SECONDS = 60.0


class Sent:
    """A grid that records the messages sent through it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"whole-{len(self.messages)}")
            set_message_id(message, ids[-1])
            self.messages.append(message)
        return ids


class Relay:
    """Two phones at a gateway, each with a message on its way."""

    def __init__(self, folder: Path) -> None:
        self.grid, self.warnings = Sent(), list[str]()
        self.relay = PhoneRelay(self.grid, None, lambda node, text: self.warnings.append(text))  # type: ignore[arg-type]
        self.keys = []
        for name in ("one", "two"):
            create_key(folder / f"{name}.key")
            self.keys.append(SigningKey(folder / f"{name}.key"))
        self.places: dict[int, PhonePlace] = {}
        for key in self.keys:
            self.attach(key, NORTH)
        for number, node in enumerate(list(self.places)):
            message = make_message(node, MessageType.TRAIN, "1", b"do it", CatchUp(), SECONDS)
            set_message_id(message, f"message-{number}")
            self.relay.add(message)
        self.relay.advance(self.places)

    def attach(self, key: SigningKey, gateway: int) -> None:
        place = PhonePlace(gateway, key.public, b"hello", time.monotonic())
        self.places[place.node] = place

    def numbers(self, keys: Sequence[SigningKey]) -> list[int]:
        return [client_index_of_key(key.public) for key in keys]

    def asked(self) -> list[tuple[int, list[int]]]:
        """The messages to gateways, each with the gateway's node and the phones."""
        return [
            (m.metadata.dst_node_id, list(m.content.config_records[RECORD][CLIENTS]))  # type: ignore[arg-type]
            for m in self.grid.messages
        ]

    def reply(
        self, whole: int, answering: Sequence[SigningKey], pending: Sequence[SigningKey] = ()
    ) -> list[Message]:
        frames = [Refusal(bytes(8), n, 0, 0).encode() for n in self.numbers(answering)]
        parts: dict[str, Any] = {
            FRAMES: frames,
            PUBLIC_KEYS: [key.public for key in answering],
            SIGNATURES: [
                key.sign(answer_bytes(b"do it", frame))
                for key, frame in zip(answering, frames, strict=True)
            ],
            PENDING: self.numbers(pending),
        }
        content = RecordDict({RECORD: ConfigRecord(parts)})
        return self.split(Message(content, reply_to=self.grid.messages[whole]))

    def split(self, reply: Message) -> list[Message]:
        return [one for one, _ in self.relay.split(reply)]


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Relay:
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1, raising=False)
        setattr(TaskIdentity, name, 1)
    return Relay(tmp_path)


def test_who_may_yet_answer_is_asked_for_again_and_the_others_replies_are_there(
    relay: Relay,
) -> None:
    first, second = relay.keys
    assert relay.asked() == [(NORTH, relay.numbers(relay.keys))]
    assert relay.grid.messages[0].content.config_records[RECORD][IN_PARTS]
    (reply,) = relay.reply(0, [first], pending=[second])
    assert not reply.has_error()
    assert len(relay.relay.message_ids) == 1
    relay.relay.advance(relay.places)
    assert relay.asked()[1:] == [(NORTH, relay.numbers([second]))]
    (reply,) = relay.reply(1, [second])
    assert not reply.has_error()
    assert not relay.relay.message_ids


def test_a_gateway_that_says_all_may_yet_answer_and_brings_nothing_is_not_asked_again(
    relay: Relay,
) -> None:
    replies = relay.reply(0, [], pending=relay.keys)
    assert [reply.error.reason for reply in replies] == ["the phone did not answer"] * 2
    relay.relay.advance(relay.places)
    assert len(relay.grid.messages) == 1


def test_a_phone_that_comes_back_at_another_gateway_is_asked_there(relay: Relay) -> None:
    first, second = relay.keys
    relay.attach(second, SOUTH)
    relay.relay.advance(relay.places)
    assert relay.asked()[1:] == [(SOUTH, relay.numbers([second]))]
    (reply,) = relay.reply(0, [first, second])  # what the first gateway says of it is too late
    assert not reply.has_error()
    (reply,) = relay.reply(1, [second])
    assert not reply.has_error()
    assert not relay.relay.message_ids


@pytest.mark.parametrize("noticed_by", ["Flower", "another process"])
def test_messages_that_are_lost_with_a_gateway_are_sent_when_their_phones_are_back(
    relay: Relay, noticed_by: str
) -> None:
    if noticed_by == "Flower":
        lost = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
        assert relay.split(Message(lost, reply_to=relay.grid.messages[0])) == []
    else:
        relay.relay.lose(NORTH)
    relay.relay.advance(relay.places)  # as they were attached before
    assert len(relay.grid.messages) == 1
    relay.attach(relay.keys[0], NORTH)
    relay.relay.advance(relay.places)
    assert relay.asked()[1:] == [(NORTH, relay.numbers(relay.keys[:1]))]
    (reply,) = relay.reply(1, relay.keys[:1])
    assert not reply.has_error()
    assert len(relay.relay.message_ids) == 1


def test_a_gateways_own_failure_is_an_error_of_its_phones(relay: Relay) -> None:
    failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "a bug")
    replies = relay.split(Message(failed, reply_to=relay.grid.messages[0]))
    assert [reply.error.reason for reply in replies] == ["its gateway failed"] * 2
    assert relay.warnings == ["it failed: a bug"]
    assert not relay.relay.message_ids
