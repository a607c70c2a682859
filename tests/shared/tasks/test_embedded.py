from collections import Counter

import pytest

from samara.shared.errors import TaskError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER, embedded_examples


def test_every_writer_has_all_splits_and_a_seed_decides_everything() -> None:
    task = load_task("messages")
    examples = embedded_examples(task, 3, 5)
    assert examples == embedded_examples(task, 3, 5) != embedded_examples(task, 3, 6)
    counts = Counter((example.user, example.split) for example in examples)
    assert len({user for user, _ in counts}) == 3
    assert all(count == MESSAGES_PER_WRITER[split] for (_, split), count in counts.items())  # type: ignore[index]
    texts = {split: {e.text for e in examples if e.split == split} for split in MESSAGES_PER_WRITER}
    assert not texts["train"] & texts["test"]


def test_generated_messages_have_labels_and_no_candidates() -> None:
    with pytest.raises(
        TaskError, match="'copa' is a choice, but generated messages are for a classification"
    ):
        embedded_examples(load_task("copa"), 3, 5)
