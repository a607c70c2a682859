"""Answers of phones and boards behind gateways, checked and attributed by their signatures."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict

from samara.server.live.keys import ClientKeys
from samara.shared.errors import SamaraError
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import answer_bytes, is_signed_by
from samara.shared.protocol.wire import FRAMES, PUBLIC_KEYS, RECORD, SIGNATURES

MAX_PHONES = 10_000
"""Maximum number of phones of one gateway."""


@dataclass(frozen=True)
class PhonePlace:
    """The attachment of a phone or board to a gateway.

    Attributes:
        gateway: Flower's id of the gateway's node.
        public_key: public key of the phone or board, PEM.
        hello: hello frame, or a refusal that names a missing blob. Empty after a blob part was
            sent, until the gateway's next hello reply.
        introduced: time of the hello, monotonic seconds.
    """

    gateway: int
    public_key: bytes
    hello: bytes
    introduced: float

    @property
    def node(self) -> int:
        """Node id of the phone or board."""
        return node_of_key(self.public_key)

    @property
    def number(self) -> int:
        """The number by which the gateway knows the phone or board.

        The number is a hash of the key, because a gateway knows nothing about key rotations.
        """
        return client_index_of_key(self.public_key)


@dataclass(frozen=True)
class PhoneAnswers:
    """The phones' answers in a gateway's reply.

    Attributes:
        signed: frames of phones that may take part, by public key (PEM).
        refused: reason for each phone that has signed but may not take part, by its number.
        dropped: number of unusable answers, by reason, including answers of refused phones.
    """

    signed: dict[bytes, bytes] = field(default_factory=dict)
    refused: dict[int, SamaraError] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    def describe_dropped(self) -> str:
        """Return one line about the dropped answers; empty without dropped answers."""
        return "; ".join(f"{reason} ({count} times)" for reason, count in self.dropped.items())


def read_answers(reply: Message, instruction: bytes, keys: ClientKeys | None) -> PhoneAnswers:
    """Return the phones' answers in a gateway's reply.

    Args:
        reply: the gateway's reply, which is untrusted.
        instruction: instruction that the phones answer. A phone's signature covers the instruction
            and the phone's frame.
        keys: client keys of the run, which decide who may take part; None admits all phones.
    """
    answers = PhoneAnswers()
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    parts = [record.get(name) for name in (PUBLIC_KEYS, FRAMES, SIGNATURES)]
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) < len(parts) or len({len(part) for part in lists} | {0}) > 2:
        answers.dropped["its lists have different lengths"] += 1
        return answers
    for public_key, frame, signature in list(zip(*lists, strict=True))[:MAX_PHONES]:
        if not all(isinstance(part, bytes) for part in (public_key, frame, signature)):
            answers.dropped["a phone's answer is not bytes"] += 1
        elif public_key in answers.signed:
            answers.dropped["a phone answers twice"] += 1
        elif not is_signed_by(public_key, signature, answer_bytes(instruction, frame)):
            answers.dropped["a phone's signature is not valid"] += 1
        elif keys and (error := keys.refusal(public_key)):
            answers.refused[client_index_of_key(public_key)] = error
            answers.dropped["a phone's key is not registered, or was revoked"] += 1
        else:
            answers.signed[public_key] = frame
    return answers


def read_numbers(reply: Message, name: str) -> list[int]:
    """Return the numbers of phones that a gateway's reply lists under a name; empty without any."""
    numbers = reply.content.config_records.get(RECORD, ConfigRecord()).get(name)
    if not isinstance(numbers, list):
        return []
    return [number for number in numbers[:MAX_PHONES] if isinstance(number, int)]


def node_of_key(public_key: bytes) -> int:
    """Return the node id of the phone with this key; the id does not depend on the gateway."""
    return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "little") >> 1


def make_reply(frame: bytes, message: Message) -> Message:
    """Return a reply with a phone's frame, as if the phone were a Flower node."""
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)
