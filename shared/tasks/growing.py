"""Examples that are added while a client runs: each has a split that no other example moves.

`load_examples` cuts an exact share of the rows it sees, so that one row more can move others. Here
a row's own content decides, and shares are exact in the mean only.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from samara.shared.data_settings import SplitRule
from samara.shared.tasks.data import read_splits
from samara.shared.tasks.kinds import GenerationTask, Task
from samara.shared.tasks.rows import Example, Row
from samara.shared.tasks.text_split import CUT_PERCENT, split_by_hash, split_of_text

Identity = tuple[str, str, tuple[str, ...]]
"""User, text and candidates: examples that share them are the same one, whatever their label."""


def identity_of(example: Example, task: Task) -> Identity:
    """Return what stays the same if an example gets another label."""
    asks = isinstance(task, GenerationTask) and not task.is_plain_text
    answers = () if asks else example.answers
    return example.user, example.text, answers


def split_of(
    row: Row,
    seed: int,
    rule: SplitRule = "random",
    missing: Collection[str] = tuple(CUT_PERCENT),
) -> str:
    """Return the split that a row's content and a seed decide: of 100 about 20, 10 and 70 rows.

    Args:
        row: the row; its label plays no part.
        seed: ``data.seed``.
        rule: ``data.split``; by ``text`` the row's user plays no part either.
        missing: splits besides training that are cut from these rows.
    """
    if rule == "text":
        return split_of_text(row.example.source, seed, missing)
    return split_by_hash(row.random_key("split", seed)[0], missing)


def with_stable_split(
    row: Row,
    seed: int,
    rule: SplitRule = "random",
    missing: Collection[str] = tuple(CUT_PERCENT),
) -> Row:
    """Return a row whose example has the split of `split_of`."""
    return row._replace(example=replace(row.example, split=split_of(row, seed, rule, missing)))


def read_growing(
    path: str, task: Task, seed: int, rule: SplitRule = "random"
) -> tuple[list[Row], list[str]]:
    """Read a file or folder to which examples are added.

    Args:
        path: a ``.jsonl`` file, or a folder of such files or of texts, as for `load_examples`.
        task: task that names the fields and the right answers.
        seed: ``data.seed``.
        rule: ``data.split``, as for `split_of`.

    Returns:
        Sound rows with splits and times, and the problems with others, each with its place. Rows of
        a given test or validation split come first: a text of theirs is none for training.

    Raises:
        DataError: if there is no such source, or it cannot be used as a whole.
    """
    problems: list[str] = []
    splits = read_splits(path, task, problems, growing=True)
    missing = [split for split in CUT_PERCENT if split not in splits]
    given = [
        row._replace(example=replace(row.example, split=split))
        for split in CUT_PERCENT
        for row in splits.get(split, ())
    ]
    cut = [with_stable_split(row, seed, rule, missing) for row in splits["train"]]
    return [*given, *cut], problems


def newest(times: Sequence[float], count: int, since: float) -> list[int]:
    """Return the indices of the examples that a retention setting leaves, ascending.

    Args:
        times: times of examples, of which later ones are newer where times are equal.
        count: most examples; 0 for any number.
        since: earliest time.
    """
    kept = [index for index, time in enumerate(times) if time >= since]
    if count:
        kept = sorted(sorted(kept, key=lambda index: (times[index], index))[-count:])
    return kept
