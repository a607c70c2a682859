"""Reading of sources that grow while a client runs. Earlier examples keep their splits.

`load_examples` splits its rows into exact shares, so an added row can change the split of other
rows. In this module, a row's content decides its split, and shares are exact only on average.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from samara.shared.tasks.data import read_splits
from samara.shared.tasks.kinds import GenerationTask, Task
from samara.shared.tasks.rows import Example, Row
from samara.shared.tasks.text_split import CUT_PERCENT, SplitRule, split_by_hash, split_of_text

Identity = tuple[str, str, tuple[str, ...]]
"""User, text and candidates of an example, which identify it regardless of its label."""


def identity_of(example: Example, task: Task) -> Identity:
    """Return the identity of an example, which does not depend on its label."""
    asks = isinstance(task, GenerationTask) and not task.is_plain_text
    answers = () if asks else example.answers
    return example.user, example.text, answers


def split_of(
    row: Row,
    seed: int,
    rule: SplitRule = "random",
    missing: Collection[str] = tuple(CUT_PERCENT),
) -> str:
    """Return a row's split, which depends on its content and the seed: 20 % test, 10 % validation.

    The percentages hold on average.

    Args:
        row: the row; its label has no effect.
        seed: ``data.seed``.
        rule: ``data.split``; with ``text`` the row's user has no effect either.
        missing: splits other than training that the source lacks.
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
    """Return a row whose example has the split given by `split_of`."""
    return row._replace(example=replace(row.example, split=split_of(row, seed, rule, missing)))


def read_growing(
    path: str, task: Task, seed: int, rule: SplitRule = "random"
) -> tuple[list[Row], list[str]]:
    """Read a growing file or folder.

    Args:
        path: a ``.jsonl`` file, or a folder of such files or of texts, as for `load_examples`.
        task: task that names the fields and the right answers.
        seed: ``data.seed``.
        rule: ``data.split``, as for `split_of`.

    Returns:
        The valid rows with splits and times, and a message for each invalid row with its position.
            Test and validation rows of the source's own splits come first, so that the caller can
            exclude their texts from training.

    Raises:
        DataError: if there is no such source, or none of it can be read.
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
    """Return the indices of the newest examples, ascending, for a retention setting.

    Args:
        times: times of examples; among equal times, later examples are newer.
        count: largest number of examples; 0 for no limit.
        since: earliest time of a kept example, in seconds since 1970.
    """
    kept = [index for index, time in enumerate(times) if time >= since]
    if count:
        kept = sorted(sorted(kept, key=lambda index: (times[index], index))[-count:])
    return kept
