"""The hello: the frame with which a client introduces itself."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from samara.shared.protocol.wire import Kind, Reader, check_client_index, encode_text, pack, unpack

SPLIT_EXAMPLES = "split_examples"
"""Key in `Hello.facts` under which each split's number of examples is stated."""
SPLIT_TOKENS, SPLIT_BYTES = "split_tokens", "split_bytes"
"""Keys in `Hello.facts` under which the tokens and the UTF-8 bytes of each split's answers are
counted."""


@dataclass(frozen=True)
class Hello:
    """A client's introduction to the server.

    Attributes:
        client: client index.
        examples: number of the client's training examples.
        round: last round in the client's state.
        model_id: model id, 32 bytes.
        layout: canonical JSON of the client's layout.
        facts: JSON object. `clients` is the number of clients among which a data set was divided,
            or 0 if all data are the client's own. `split_examples`, or for generation
            `split_tokens`, limits the counts in the client's evaluations. `split_bytes` is the
            length of the same answers in UTF-8 bytes. Other facts, such as versions and threads,
            are only recorded.
    """

    client: int
    examples: int
    round: int
    model_id: bytes
    layout: str
    facts: str

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<III32s")

    def encode(self) -> bytes:
        """Encode the hello as a frame."""
        fields = self._FIELDS.pack(self.client, self.examples, self.round, self.model_id)
        return pack(Kind.HELLO, fields + encode_text(self.layout) + encode_text(self.facts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a hello from a frame.

        Raises:
            FrameError: if the frame is not a valid hello.
        """
        reader = Reader(unpack(frame, Kind.HELLO))
        client, examples, last_round, model_id = reader.fields(cls._FIELDS)
        hello = cls(client, examples, last_round, model_id, reader.text(), reader.text())
        reader.end()
        check_client_index(client)
        return hello


def stated_count(facts: Mapping[str, Any], key: str, split: str, default: int) -> int:
    """Return a split's count from a client's facts, or a default if the facts lack the count.

    Args:
        facts: facts of a hello, from the network.
        key: key of the counts by split.
        split: name of the split; case does not matter.
        default: result if the facts lack the count, as those of earlier versions do.
    """
    counts = facts.get(key)
    count = counts.get(split.lower()) if isinstance(counts, dict) else None
    return count if type(count) is int else default
