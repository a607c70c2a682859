from pathlib import Path
from typing import Any

import pytest

from samara.client.forward.grouping import Schedule
from samara.client.training.execution import (
    Execution,
    choose_schedule,
    evaluation_batch_size,
    read_or_decide_execution,
)
from samara.shared.errors import ConfigError
from samara.shared.settings.config import RunConfig

RUN = bytes(8)


class Stopwatch:
    """A made-up machine: a pass takes 1 s to begin, and each row takes 1 s and some bytes."""

    def __init__(self, queries: int, batch: int, row: int = 10, fixed: int = 0) -> None:
        self._queries, self._batch, self._row, self._fixed = queries, batch, row, fixed

    def seconds(self, schedule: Schedule) -> float:
        per_pass = {"sequential": 1, "inner": 2, "outer": self._queries, "both": 2 * self._queries}
        size = schedule.micro_batch or self._batch
        passes = 2 * self._queries / per_pass[schedule.grouping] * -(-self._batch // size)
        return passes + 2 * self._queries * self._batch

    def peak_bytes(self, schedule: Schedule) -> int:
        per_pass = {"sequential": 1, "inner": 2, "outer": self._queries, "both": 2 * self._queries}
        return self._fixed + self._row * schedule.micro_batch * per_pass[schedule.grouping]


def decide(
    machine: Stopwatch | None = None, is_streamed: bool = False, **settings: Any
) -> Schedule:
    config = RunConfig.of({"queries": 4, "batch": 8} | settings, "test")
    measured: Any = machine or Stopwatch(4, 8)
    return choose_schedule(config, measured, is_streamed)


def test_explicit_settings_are_taken_as_they_are() -> None:
    assert decide() == Schedule("both", 8)
    assert decide(**{"micro-batch": 0}) == Schedule("both", 0)
    assert decide(**{"grouping": "inner", "micro-batch": 2}) == Schedule("inner", 2)


def test_auto_takes_the_fastest_inside_the_budget() -> None:
    assert decide(grouping="auto") == Schedule("both", 8)
    assert decide(**{"grouping": "auto", "memory-budget": 79}) == Schedule("inner", 3)
    assert decide(**{"grouping": "auto", "memory-budget": 10}) == Schedule("sequential", 1)


def test_a_budget_cuts_the_micro_batch() -> None:
    assert decide(**{"grouping": "both", "memory-budget": 330}) == Schedule("both", 4)
    assert decide(**{"grouping": "inner", "memory-budget": 10**6}) == Schedule("inner", 0)
    many = {"batch": 32, "memory-budget": 10 * 8 * 20}
    assert decide(Stopwatch(4, 32), **many) == Schedule("both", 20)
    assert decide(**{"grouping": "auto", "micro-batch": 3, "memory-budget": 10**6}) == Schedule(
        "both", 3
    )


def test_a_budget_that_not_even_one_example_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory-budget = 79: .* needs 80 bytes.* auto"):
        decide(**{"grouping": "both", "memory-budget": 79})


def test_without_a_budget_passes_on_a_cpu_stay_small() -> None:
    """A pass takes at most 32 MiB, or at most twice the memory of a pass with one example."""
    mib = 2**20
    assert decide(Stopwatch(4, 8, mib // 2)) == Schedule("both", 8)
    assert decide(Stopwatch(4, 8, mib)) == Schedule("both", 4)
    assert decide(Stopwatch(4, 8, 3 * mib)) == Schedule("both", 2)
    assert decide(Stopwatch(4, 8, mib // 4, fixed=64 * mib)) == Schedule("both", 8)
    assert decide(Stopwatch(4, 8, 4 * mib), grouping="inner") == Schedule("inner", 4)
    assert decide(Stopwatch(4, 8, mib), **{"model.torch-device": "cuda"}) == Schedule("both", 8)
    assert decide(Stopwatch(4, 8, mib), is_streamed=True) == Schedule("both", 8)
    # a model that is kept, since it fits
    assert decide(Stopwatch(4, 8, mib), **{"model.stream": "auto"}) == Schedule("both", 4)
    assert decide(Stopwatch(4, 8, mib), **{"memory-budget": 2**40}) == Schedule("both", 0)


def test_evaluation_takes_no_more_rows_than_a_step() -> None:
    config = RunConfig(queries=4, batch=8)
    assert evaluation_batch_size(Schedule("both", 0), config, 16) == 16
    assert evaluation_batch_size(Schedule("sequential", 3), config, 16) == 3


def test_a_decision_is_read_again(tmp_path: Path) -> None:
    first = Execution(Schedule("inner", 4), 2)
    assert read_or_decide_execution(tmp_path / "run", RUN, lambda: first) == first

    def never() -> Execution:
        raise AssertionError("decided twice")

    assert read_or_decide_execution(tmp_path / "run", RUN, never) == first
    other = Execution(Schedule("outer", 1), 1)
    assert read_or_decide_execution(tmp_path / "run", b"another!", lambda: other) == other
    assert read_or_decide_execution(tmp_path / "run", RUN, never) == first


def test_the_first_of_two_processes_decides(tmp_path: Path) -> None:
    first, second = Execution(Schedule("inner", 4), 2), Execution(Schedule("outer", 1), 1)

    def slow() -> Execution:
        read_or_decide_execution(tmp_path, RUN, lambda: first)
        return second

    assert read_or_decide_execution(tmp_path, RUN, slow) == first
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"grouping": "all", "micro_batch": 0, "threads": 1}',
        '{"grouping": "both", "micro_batch": -1, "threads": 1}',
        '{"grouping": "both", "micro_batch": 0, "threads": 0}',
    ],
)
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    read_or_decide_execution(tmp_path, RUN, lambda: Execution(Schedule(), 1))
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"{file.name}: damaged"):
        read_or_decide_execution(tmp_path, RUN, lambda: Execution(Schedule(), 1))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: File exists"):
        read_or_decide_execution(tmp_path / "file" / "run", RUN, lambda: Execution(Schedule(), 1))
