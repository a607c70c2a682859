"""Models loaded in several threads of a process."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, BrokenBarrierError
from typing import Any

import accelerate
import pytest
from transformers import initialization

from samara.shared.model.loading import load_base_model, load_structure
from samara.shared.model.model_folder import EMBEDDED_MODEL


def test_one_thread_at_a_time_creates_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Callable[[str], Any]] = [load_base_model, load_base_model, load_structure]
    meeting = Barrier(2)
    met = []

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def replaced(*args: Any, **options: Any) -> Iterator[None]:
            with original(*args, **options):
                try:
                    meeting.wait(0.2)
                    met.append(original)
                except BrokenBarrierError:
                    meeting.reset()
                yield

        return replaced

    for module, name in ((initialization, "no_tie_weights"), (accelerate, "init_empty_weights")):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    with ThreadPoolExecutor(len(loads)) as pool:
        models = list(pool.map(lambda load: load(EMBEDDED_MODEL), loads))
    assert not met
    assert {model.model_id for model in models} == {models[0].model_id}
