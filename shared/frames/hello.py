"""The hello: the frame with which a client introduces itself."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from samara.shared.wire import Kind, Reader, check_client_index, encode_text, pack, unpack

SPLIT_EXAMPLES = "split_examples"
"""The key of the facts that holds the number of examples of each split, by its name."""
SPLIT_TOKENS, SPLIT_BYTES = "split_tokens", "split_bytes"
"""The keys of the facts that hold the tokens of each split's answers, and their bytes in UTF-8."""


@dataclass(frozen=True)
class Hello:
    """A client's introduction to the server.

    Attributes:
        client: client index.
        examples: number of its training examples.
        round: last round in its state.
        model_id: model id, 32 bytes.
        layout: canonical JSON of its layout.
        facts: JSON object. `clients` is the number of clients that its data set is divided among,
            0 if the data are all its own; `split_examples`, or in a
            generation `split_tokens`, bounds what its evaluations may count; `split_bytes` is the
            length of the same texts; the rest, such as versions and threads, is only recorded.
    """

    client: int
    examples: int
    round: int
    model_id: bytes
    layout: str
    facts: str

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<III32s")

    def encode(self) -> bytes:
        """Return the introduction as a frame."""
        fields = self._FIELDS.pack(self.client, self.examples, self.round, self.model_id)
        return pack(Kind.HELLO, fields + encode_text(self.layout) + encode_text(self.facts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Read an introduction.

        Raises:
            FrameError: if the frame is not a sound hello.
        """
        reader = Reader(unpack(frame, Kind.HELLO))
        client, examples, last_round, model_id = reader.fields(cls._FIELDS)
        hello = cls(client, examples, last_round, model_id, reader.text(), reader.text())
        reader.end()
        check_client_index(client)
        return hello


def stated_count(facts: Mapping[str, Any], key: str, split: str, default: int) -> int:
    """Return a count of a split in a client's facts, which may lack it.

    Args:
        facts: facts of a hello, from the network.
        key: key of the counts by split.
        split: name of the split; case does not matter.
        default: the count if the client does not state it, as those of earlier versions.
    """
    counts = facts.get(key)
    count = counts.get(split.lower()) if isinstance(counts, dict) else None
    return count if type(count) is int else default
