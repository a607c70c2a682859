"""A runtime that is created while a question is open."""

import threading
from contextvars import copy_context
from typing import Any

from samara.client.forward.turns import Turns, take_turns
from samara.client.training.model_runtime import load_run
from samara.shared.settings.config import RunConfig


def test_a_runtime_that_waits_for_its_turn_leaves_the_tokenizer_to_the_question(
    settings: dict[str, Any],
) -> None:
    runtime = load_run(RunConfig.of(settings, "test")).runtime
    is_waiting = threading.Event()
    turns = Turns(is_waiting.set)

    def train() -> None:
        take_turns(turns.training_pass)
        runtime.under(runtime.config)

    thread = threading.Thread(target=copy_context().run, args=(train,))
    with turns.question():
        thread.start()
        is_waiting.wait()
        assert runtime.tokenize.lock.acquire(blocking=False)
        runtime.tokenize.lock.release()
    thread.join()
