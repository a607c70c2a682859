"""The split of a text, which the text and a seed decide alone, and the texts that clients share.

Users whose rows have texts in common would otherwise be tested on texts that others train on. No
client needs to know another's rows: a hash decides, so that all agree.
"""

import hashlib
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from samara.shared.tasks.rows import Example

CUT_PERCENT = {"test": 20, "validation": 10}
"""The shares of the splits that are cut from training rows; exact in the mean only by a hash."""


def normalized(text: str) -> str:
    """Return a text in Unicode's form NFKC, case folded, with single spaces between its words."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def split_of_text(
    fields: Sequence[str], seed: int, missing: Collection[str] = tuple(CUT_PERCENT)
) -> str:
    """Return the split that a row's text and a seed decide, whoever has the row.

    Args:
        fields: values of the fields that the task's text reads, in order.
        seed: ``data.seed``.
        missing: splits besides training that are cut from these rows.
    """
    content = "\n".join(["split", str(seed), *map(normalized, fields)])
    return split_by_hash(hashlib.sha256(content.encode()).digest(), missing)


def split_by_hash(digest: bytes, missing: Collection[str]) -> str:
    """Return the split of a random digest: of 100 about 20 are test, 10 validation, 70 training.

    Args:
        digest: at least 8 bytes, of which the first 8 are a number, big-endian.
        missing: splits besides training that there may be; the others are training.
    """
    left = int.from_bytes(digest[:8], "big") * 100 >> 64
    for split, percent in CUT_PERCENT.items():
        if left < percent:
            return split if split in missing else "train"
        left -= percent
    return "train"


@dataclass(frozen=True)
class SharedTexts:
    """The test examples of some clients, and how many of them have a text that others train on.

    Attributes:
        test: number of test examples of all clients.
        shared: number of those with the normalized text of another client's training example.
    """

    test: int
    shared: int

    @classmethod
    def among(cls, shares: Sequence[Sequence[Example]]) -> "SharedTexts":
        """Count the shared texts of several clients.

        Args:
            shares: examples of all splits, by client.
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
        """Return a sentence about the shared texts; empty where there are none.

        Args:
            split: ``data.split``.
        """
        if not self.shared:
            return ""
        sentence = (
            f"shared texts: {self.shared:,} of {self.test:,} test examples "
            f"({self.shared / self.test:.0%}) have a text that another client trains on, which "
            "flatters every method"
        )
        if split == "text":
            return f"{sentence}; these splits are the data's own, which data.split does not change"
        return f'{sentence}; data.split = "text" keeps each text in one split of all clients'


_SEVERAL = -1
"""The number that stands for more than one client."""


def _key(example: Example) -> bytes:
    """Return a hash of an example's normalized text, without its label."""
    fields = example.source or (example.text,)
    return hashlib.sha256("\n".join(map(normalized, fields)).encode()).digest()
