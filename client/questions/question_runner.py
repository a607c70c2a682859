"""A runner of questions, whose thread takes one step of each open question in turn."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from threading import BoundedSemaphore
from typing import Any, Generic, TypeVar

from samara.client.forward.turns import Turns
from samara.client.questions.question_limits import MOST_QUESTIONS
from samara.shared.errors import BusyError

Part = TypeVar("Part")


class QuestionRunner:
    """A runner that answers questions in steps of at most one forward pass, while training waits.

    Args:
        turns: turns of training and questions.
        worker: executor with the single answering thread.
    """

    def __init__(self, turns: Turns, worker: ThreadPoolExecutor) -> None:
        self._turns, self._worker = turns, worker
        self._free = BoundedSemaphore(MOST_QUESTIONS)

    def run(self, steps: Iterator[Part], is_wanted: Callable[[], bool]) -> Iterator[Part]:
        """Yield the results of a question's steps; steps do not wait until results are read.

        Args:
            steps: steps of the question, which run in the answering thread.
            is_wanted: function that returns whether anyone still waits for the answer.

        Raises:
            BusyError: if too many questions are open.
            Exception: any error raised by a step.
        """
        with ExitStack() as opened:
            if not self._free.acquire(blocking=False):
                raise BusyError(
                    f"{MOST_QUESTIONS} questions are being answered; ask again in a moment"
                )
            opened.callback(self._free.release)
            opened.enter_context(self._turns.question())
            question = _Question(steps, is_wanted, opened.pop_all(), self._worker)
        self._worker.submit(question.take_step)
        while (part := question.parts.get()) is not _END:
            if isinstance(part, _Failed):
                raise part.error
            yield part


@dataclass(frozen=True)
class _Failed:
    """The result of a step that raised an error."""

    error: Exception


_END = object()
"""Marker for the end of the results."""


class _Question(Generic[Part]):
    """An open question, whose steps run one by one in the answering thread."""

    def __init__(
        self,
        steps: Iterator[Part],
        is_wanted: Callable[[], bool],
        opened: ExitStack,
        worker: ThreadPoolExecutor,
    ) -> None:
        self.parts: SimpleQueue[Any] = SimpleQueue()
        self._steps, self._is_wanted = steps, is_wanted
        self._opened, self._worker = opened, worker

    def take_step(self) -> None:
        """Take one step, and submit the next step to the answering thread."""
        end: object = _END
        try:
            if self._is_wanted():
                self.parts.put(next(self._steps))
                self._worker.submit(self.take_step)
                return
        except StopIteration:
            pass
        except Exception as error:  # raised again by the asking thread
            end = _Failed(error)
        self._opened.close()
        self.parts.put(end)
