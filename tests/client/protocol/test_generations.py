"""Generations of examples: a new example raises no earlier limit, and its own count starts at 0."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.client.limits.scalar_counts import ScalarBudget, ScalarCounts
from samara.client.protocol.generations import GENERATIONS_FILE, MOST_GENERATIONS, Generations
from samara.shared.errors import ScalarLimitError, TrainerError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.rows import Example, hash_examples

LAYOUT = bytes(32)
SIZE = 10


class Client:
    """The counts of a client about examples that come and go."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.examples: list[Example] = []
        self._folder, self._limit, self._asked = folder, limit, 0

    def has(self, *names: str) -> None:
        self.examples = [Example(name, 0, "", "train") for name in names]

    @property
    def generations(self) -> tuple[str, ...]:
        return Generations(self._folder).of_examples(
            Split.TRAIN, self.examples, hash_examples(self.examples)
        )

    def answer(self, scalars: int) -> None:
        self._asked += 1
        token, sent = self._asked.to_bytes(8), {Split.TRAIN: scalars}
        budget = ScalarBudget(
            ScalarCounts(self._folder), lambda split: self.generations, SIZE, self._limit
        )
        budget.check(token, LAYOUT, sent)
        budget.add(token, LAYOUT, sent)

    def left(self) -> int:
        """The largest number of scalars that may still be sent."""
        budget = ScalarBudget(
            ScalarCounts(self._folder), lambda split: self.generations, SIZE, self._limit
        )
        left = 0
        for asked in range(1, 100):
            try:
                budget.check(b"next", LAYOUT, {Split.TRAIN: asked})
            except ScalarLimitError:
                break
            left = asked
        return left


def test_one_example_more_does_not_lift_the_limit(tmp_path: Path) -> None:
    client = Client(tmp_path, 1.0)
    client.has("a", "b")
    assert client.generations == (hash_examples(client.examples),)  # as examples that do not grow
    client.answer(7)
    client.has("a", "b", "c")
    assert client.left() == 3
    client.answer(3)
    client.has("a", "c", "d")
    with pytest.raises(ScalarLimitError):
        client.answer(1)


def test_the_limit_is_that_of_the_examples_told_about_most(tmp_path: Path) -> None:
    client = Client(tmp_path, 1.0)
    client.has("a")
    client.answer(8)
    client.has("a", "b")
    client.answer(2)
    client.has("b")
    assert client.left() == 8
    client.has("b", "c")
    client.answer(5)
    client.has("c")
    assert client.left() == 5
    client.has("a", "c")  # an example that comes back has not been forgotten
    assert client.left() == 0


def test_many_generations_become_no_more(tmp_path: Path) -> None:
    client, names = Client(tmp_path, 1e6), []
    for number in range(3 * MOST_GENERATIONS):
        names.append(str(number))
        client.has(*names)
        client.answer(1)
        assert len(client.generations) == min(number + 1, MOST_GENERATIONS)
    counts = ScalarCounts(tmp_path).read()
    sent = [counts[generation][LAYOUT.hex()].sent for generation in client.generations]
    assert sent == list(range(3 * MOST_GENERATIONS, 2 * MOST_GENERATIONS, -1))


def test_a_damaged_file_is_not_replaced(tmp_path: Path) -> None:
    client = Client(tmp_path, 1.0)
    client.has("a")
    client.answer(1)
    for content in ("[", "[]", '{"train": 3}', '{"train": {"a": null}}'):
        (tmp_path / GENERATIONS_FILE).write_text(content)
        with pytest.raises(TrainerError, match="cannot be read"):
            client.answer(1)
        assert (tmp_path / GENERATIONS_FILE).read_text() == content


@given(st.lists(st.tuples(st.sets(st.integers(0, 9)), st.integers(1, 20)), max_size=30))
def test_no_example_is_told_about_more_than_the_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[set[int], int]]
) -> None:
    client, told = Client(tmp_path_factory.mktemp("c"), 4.0), dict.fromkeys(range(10), 0)
    for present, scalars in steps:
        client.has(*map(str, sorted(present)))
        try:
            client.answer(scalars)
        except ScalarLimitError:
            continue
        for one in present:
            told[one] += scalars
    assert max(told.values()) <= 4 * SIZE
