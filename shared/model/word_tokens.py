"""Tokens of label words and answers in the context of the preceding text."""

from collections.abc import Callable

from samara.shared.errors import TaskError
from samara.shared.model.loading import BaseModel
from samara.shared.tasks.kinds import ClassificationTask

Ids = tuple[int, ...]


def continuation_tokens(base: BaseModel, before: str, text: str) -> Ids:
    """Return the tokens that a text, including its leading spaces, adds to the text before it."""
    stem = base.token_ids(before.rstrip(" "))
    whole = base.token_ids(before + text)
    joined = whole[: len(stem)] == stem
    return whole[len(stem) :] if joined else base.token_ids(text)


def word_tokens(task: ClassificationTask, tokens_of: Callable[[str], Ids]) -> list[Ids]:
    """Return the tokens that each label word adds to the question.

    Args:
        task: task with the label words.
        tokens_of: function that returns the tokens of a word.

    Raises:
        TaskError: if a label word has no tokens, or two label words have the same tokens.
    """
    words = [tokens_of(word) for word in task.words]
    if len(set(words)) < len(words) or not all(words):
        raise TaskError(
            f"task {task.name}: the label words {', '.join(task.words)} do not have different "
            "tokens; choose other words"
        )
    return words
