"""Demonstrations: examples with their answers, for in-context learning."""

from samara.shared.tasks.kinds import ClassificationTask, GenerationTask, Task
from samara.shared.tasks.rows import Example

SEPARATOR = "\n\n"
"""Text between a demonstration and the following text."""


def demonstration(task: Task, example: Example) -> str:
    """Return the text of an example, followed by its right answer and the separator."""
    if isinstance(task, ClassificationTask):
        before, after = task.question_before_word, task.question_after_word
        if task.word_is_inside:
            before = ""
            after = "".join(example.answers)
        solved = example.text + before + task.words[example.label] + after
    else:
        answer = example.answers[example.label]
        solved = example.text + answer + (task.stop if isinstance(task, GenerationTask) else "")
    return solved + SEPARATOR
