"""Splits that depend only on a text and a seed, and a count of texts that clients share.

With other rules, a user may be tested on a text that another user trains on. Here all clients
derive the split from the same hash of the text, so no client needs to know another client's rows.
"""

import hashlib
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from samara.shared.tasks.rows import Example

SplitRule = Literal["random", "time", "text"]
"""The rules by which training rows are moved to missing splits."""
CUT_PERCENT = {"test": 20, "validation": 10}
"""Percentage of training rows that replaces a missing split. A hash reaches it only on average."""


def normalized(text: str) -> str:
    """Normalize a text: Unicode NFKC, case folded, single spaces between words."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def split_of_text(
    fields: Sequence[str], seed: int, missing: Collection[str] = tuple(CUT_PERCENT)
) -> str:
    """Return the split of a row; it depends only on the row's text and a seed.

    Args:
        fields: values of the fields that the task's text reads, in order.
        seed: ``data.seed``.
        missing: splits other than training that the source lacks.
    """
    content = "\n".join(["split", str(seed), *map(normalized, fields)])
    return split_by_hash(hashlib.sha256(content.encode()).digest(), missing)


def split_by_hash(digest: bytes, missing: Collection[str]) -> str:
    """Return the split for a random digest: about 20 % test, 10 % validation, 70 % training.

    Args:
        digest: at least 8 bytes; the first 8 are a big-endian number.
        missing: possible results other than training. The shares of other splits go to training.
    """
    left = int.from_bytes(digest[:8], "big") * 100 >> 64
    for split, percent in CUT_PERCENT.items():
        if left < percent:
            return split if split in missing else "train"
        left -= percent
    return "train"


@dataclass(frozen=True)
class SharedTexts:
    """Counts of all test examples, and of test examples whose text another client trains on.

    Attributes:
        test: number of test examples of all clients.
        shared: number of test examples whose normalized text is also another client's training
            text.
    """

    test: int
    shared: int

    @classmethod
    def among(cls, shares: Sequence[Sequence[Example]]) -> "SharedTexts":
        """Count the clients' test examples, and the examples whose text another client trains on.

        Args:
            shares: examples of all splits, one sequence per client.
        """
        trained: dict[bytes, int] = {}
        for client, examples in enumerate(shares):
            for key in {_key(example) for example in examples if example.split == "train"}:
                trained[key] = _SEVERAL if key in trained else client
        test = [
            (client, _key(example))
            for client, examples in enumerate(shares)
            for example in examples
            if example.split == "test"
        ]
        return cls(len(test), sum(trained.get(key, client) != client for client, key in test))

    def describe(self, split: str) -> str:
        """Return a sentence about the shared texts, or an empty text if there are none.

        Args:
            split: ``data.split``.
        """
        if not self.shared:
            return ""
        sentence = (
            f"shared texts: {self.shared:,} of {self.test:,} test examples "
            f"({self.shared / self.test:.0%}) have a text that another client trains on, so every "
            "method seems better than it is"
        )
        if split == "text":
            return (
                f"{sentence}; data.split does not change these splits, because they come with the "
                "data"
            )
        return f'{sentence}; data.split = "text" keeps each text in one split of all clients'


_SEVERAL = -1
"""Value in place of a client's index for a text that several clients train on."""


def _key(example: Example) -> bytes:
    """Return a hash of an example's normalized text, without its label."""
    fields = example.source or (example.text,)
    return hashlib.sha256("\n".join(map(normalized, fields)).encode()).digest()
