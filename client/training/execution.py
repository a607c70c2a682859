"""How this machine executes a run: decided once, recorded, and kept when the run is continued.

Grouping, micro-batch and thread count change the last bits of a projected gradient. A run that
changed them half-way would not be the run that it would have been undisturbed, so whatever is left
to this machine is decided before its first step and written to the run's folder.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from client.forward.grouping import (
    GROUPINGS,
    Grouping,
    Schedule,
    candidate_micro_batches,
    choose_fastest,
    distinct_groupings,
    find_largest_micro_batch,
    perturbations_per_pass,
)
from client.forward.peak_memory import measure_peak_memory
from client.forward.resident import ResidentForward
from shared.config import RunConfig
from shared.directions import directions
from shared.errors import ConfigError
from shared.files import write_durably
from shared.layout import Layout
from shared.model.lora_fa import Perturbations
from shared.model.scorers import Prompt


@dataclass(frozen=True)
class Execution:
    """What is kept.

    Attributes:
        schedule: of a step.
        threads: of torch on the CPU.
    """

    schedule: Schedule
    threads: int


def kept(folder: Path, run_id: bytes, decide: Callable[[], Execution]) -> Execution:
    """The execution that a run began with, or the one that is decided now.

    Args:
        folder: of the run.
        run_id: 8 bytes.
        decide: called if the run is new on this machine.

    Raises:
        ConfigError: if the file is damaged or cannot be written.
    """
    file = folder / f"schedule-{run_id.hex()}.json"
    if not file.exists():
        execution = decide()
        content = {
            "grouping": execution.schedule.grouping,
            "micro_batch": execution.schedule.micro_batch,
            "threads": execution.threads,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write_once(file, (json.dumps(content, indent=2) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    return _read(file)


def _write_once(file: Path, data: bytes) -> None:
    """Write a file whole, unless another process of this run was first."""
    own = file.with_name(f"{file.name}.{os.getpid()}")
    write_durably(own, data)
    try:
        os.link(own, file)
    except FileExistsError:
        pass
    finally:
        own.unlink()


def _read(file: Path) -> Execution:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        schedule = Schedule(content["grouping"], int(content["micro_batch"]))
        execution = Execution(schedule, int(content["threads"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: damaged: {error!r}; begin the run in another folder") from error
    if schedule.grouping not in GROUPINGS or schedule.micro_batch < 0 or execution.threads < 1:
        raise ConfigError(f"{file}: damaged: {content}; begin the run in another folder")
    return execution


class Rehearsal:
    """Steps on this machine's own shapes, for their time and memory alone.

    Args:
        forward: the engine.
        layout: of the adapter.
        config: gives queries, epsilon and device.
        usual: B examples as a step would have.
        longest: B examples that take the most memory.
    """

    def __init__(
        self,
        forward: ResidentForward,
        layout: Layout,
        config: RunConfig,
        usual: Sequence[Prompt],
        longest: Sequence[Prompt],
    ) -> None:
        self._forward, self._usual, self._longest = forward, usual, longest
        self._device = torch.device(config.model.torch_device)
        z = directions(np.arange(config.queries, dtype=np.uint64), layout.size, layout.distribution)
        center = np.zeros(layout.size, np.float32)
        self._perturbations = Perturbations.from_arrays(
            layout, center, z, config.epsilon, self._device
        )

    def seconds(self, schedule: Schedule) -> float:
        """Of one step."""
        begun = time.perf_counter()
        self._forward.scores(self._perturbations, self._usual, schedule)
        return time.perf_counter() - begun

    def peak_bytes(self, schedule: Schedule) -> int:
        """Of one pass over the longest examples, beside the weights."""
        with measure_peak_memory(self._device) as peak:
            self._forward.scores(
                self._perturbations, self._longest[: schedule.micro_batch], schedule
            )
        return peak.bytes


def decided(config: RunConfig, rehearsal: Rehearsal) -> Schedule:
    """The schedule that the settings ask for, measured where they leave it to this machine.

    Raises:
        ConfigError: if not even a single example fits the memory budget.
    """
    budget = config.memory_budget
    groupings: tuple[Grouping, ...]
    if config.grouping == "auto":
        groupings = distinct_groupings(config.queries)
    elif budget:
        groupings = (config.grouping,)
    else:
        return Schedule(config.grouping, config.micro_batch)
    most = min(config.micro_batch or config.batch, config.batch)
    largest = dict.fromkeys(groupings, most)
    peaks = []
    if budget:
        for grouping in groupings:

            def peak(micro_batch: int, grouping: Grouping = grouping) -> int:
                peaks.append(rehearsal.peak_bytes(Schedule(grouping, micro_batch)))
                return peaks[-1]

            largest[grouping] = find_largest_micro_batch(peak, budget, most)
    candidates = [
        Schedule(grouping, size)
        for grouping, size in largest.items()
        for size in (candidate_micro_batches(size) if config.grouping == "auto" else [size])
        if size
    ]
    if not candidates:
        raise ConfigError(
            f"memory-budget = {budget:,}: a pass of one example needs {min(peaks):,} bytes beside "
            "the weights; raise it, lower model.max-length, or set grouping = auto"
        )
    if len(candidates) == 1:
        return candidates[0]
    rehearsal.seconds(candidates[0])
    return choose_fastest(candidates, rehearsal.seconds)[0]


def evaluation_batch(schedule: Schedule, config: RunConfig, most: int) -> int:
    """Examples of a pass with one adapter that take no more memory than a pass of a step."""
    rows = perturbations_per_pass(schedule.grouping, config.queries)
    return min(most, rows * (schedule.micro_batch or config.batch))
