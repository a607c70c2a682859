"""Questions in turn: one thread takes a step of each open question after the other."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from threading import BoundedSemaphore
from typing import Any, Generic, TypeVar

from samara.client.forward.turns import Turns
from samara.client.protocol.question_limits import MOST_QUESTIONS
from samara.shared.errors import BusyError

Part = TypeVar("Part")


class QuestionRunner:
    """Answers questions step by step, while training waits; a step is at most one forward pass.

    Args:
        turns: turns of training and questions.
        worker: executor of the one thread that answers.
    """

    def __init__(self, turns: Turns, worker: ThreadPoolExecutor) -> None:
        self._turns, self._worker = turns, worker
        self._free = BoundedSemaphore(MOST_QUESTIONS)

    def run(self, steps: Iterator[Part], is_wanted: Callable[[], bool]) -> Iterator[Part]:
        """Yield what the steps of a question give; they do not wait for whoever reads it.

        Args:
            steps: the steps; each runs in the answering thread.
            is_wanted: function that tells whether somebody still waits for the answer.

        Raises:
            BusyError: if too many questions are open.
            Exception: what a step raises.
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
    """The error of a step, in place of its part."""

    error: Exception


_END = object()
"""The mark behind the last part."""


class _Question(Generic[Part]):
    """An open question, which submits its own next step."""

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
        """Take a step, and submit the next one."""
        end: object = _END
        try:
            if self._is_wanted():
                self.parts.put(next(self._steps))
                self._worker.submit(self.take_step)
                return
        except StopIteration:
            pass
        except Exception as error:  # raised by the thread that asks
            end = _Failed(error)
        self._opened.close()
        self.parts.put(end)
