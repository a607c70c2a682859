"""The execution of a run on this machine: decided once, recorded, and kept on resume.

Grouping, micro-batch and thread count change the last bits of a projected gradient. If a resumed
run had other values, its results would differ from those of an uninterrupted run. So the values
that the settings leave open are decided before the first step and written to the run's folder.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from samara.client.forward.grouping import (
    GROUPINGS,
    Grouping,
    Schedule,
    candidate_micro_batches,
    choose_fastest,
    distinct_groupings,
    find_largest_micro_batch,
    perturbations_per_pass,
)
from samara.client.forward.peak_memory import measure_peak_memory
from samara.client.forward.readout import ReadoutForward
from samara.client.forward.resident import ResidentForward
from samara.shared.errors import ConfigError
from samara.shared.model.perturbations import Perturbations, WeightMap
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.directions import directions
from samara.shared.protocol.layout import Layout
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import write_once
from samara.shared.storage.kept_file import KeptFile

USUAL_PASS_BYTES = 32 * 2**20
"""Default memory limit of a pass on a CPU, in bytes. It is about the size of a CPU's caches."""


@dataclass(frozen=True)
class Execution:
    """The way in which a machine executes the steps of a run.

    Attributes:
        schedule: grouping and micro-batch of a step.
        threads: number of torch's threads on the CPU.
    """

    schedule: Schedule
    threads: int


class _ExecutionFile(KeptFile[Execution | None]):
    """The file with a run's execution on this machine; the first of several processes writes it.

    Args:
        folder: folder of the run.
        run_id: run id, 8 bytes.
    """

    damaged = "{file}: damaged: {problem}; begin the run in another folder"
    error = ConfigError
    style: ClassVar = {"indent": 2}

    def __init__(self, folder: Path, run_id: bytes) -> None:
        self.path = folder / f"schedule-{run_id.hex()}.json"

    def _encode(self, content: Execution | None) -> bytes:
        return super()._encode(content) + b"\n"

    def _put(self, path: Path, data: bytes) -> None:
        write_once(path, data)

    def _to_json(self, content: Execution | None) -> Any:
        return content and asdict(content.schedule) | {"threads": content.threads}

    def _parse(self, value: Any) -> Execution:
        schedule = Schedule(value["grouping"], int(value["micro_batch"]))
        threads = int(value["threads"])
        if schedule.grouping not in GROUPINGS or schedule.micro_batch < 0 or threads < 1:
            raise ValueError(str(value))
        return Execution(schedule, threads)


def read_or_decide_execution(
    folder: Path, run_id: bytes, decide: Callable[[], Execution]
) -> Execution:
    """Return the recorded execution of a run, or decide and record it.

    Args:
        folder: folder of the run.
        run_id: run id, 8 bytes.
        decide: function that decides the execution of a new run.

    Raises:
        ConfigError: if the record is damaged or cannot be written.
    """
    file = _ExecutionFile(folder, run_id)
    if recorded := file.read():
        return recorded
    decided = decide()
    file.write(decided)
    return file.read() or decided  # another process may have written first


class StepBenchmark:
    """A measurement of the time and memory of steps that do not change the state.

    Args:
        forward: forward engine.
        layout: layout of the adapter.
        weight_map: map from directions to the weights of the adapter.
        config: settings that give the number of queries, epsilon and the torch device.
        typical: one batch of examples of typical length.
        longest: one batch of the examples that take the most memory.
    """

    def __init__(
        self,
        forward: ResidentForward,
        layout: Layout,
        weight_map: WeightMap,
        config: RunConfig,
        typical: Sequence[Prompt],
        longest: Sequence[Prompt],
    ) -> None:
        self._forward, self._typical, self._longest = forward, typical, longest
        self._torch_device = torch.device(config.model.torch_device)
        z = directions(np.arange(config.queries, dtype=np.uint64), layout.size, layout.distribution)
        center = torch.zeros(layout.element_count, device=self._torch_device)
        self._perturbations = Perturbations(
            layout, center, weight_map.directions(z), config.epsilon
        )

    def seconds(self, schedule: Schedule) -> float:
        """Return the seconds of one step."""
        start = time.perf_counter()
        self._forward.scores(self._perturbations, self._typical, schedule)
        return time.perf_counter() - start

    def peak_bytes(self, schedule: Schedule) -> int:
        """Return the peak bytes of a pass over the longest examples, without the weights."""
        with measure_peak_memory(self._torch_device) as peak:
            longest = self._longest[: schedule.micro_batch]
            self._forward.scores(self._perturbations, longest, schedule)
        return peak.bytes


def choose_schedule(
    config: RunConfig, benchmark: StepBenchmark, is_streamed: bool = False
) -> Schedule:
    """Return the schedule that the settings name; measurements choose the values left open.

    Args:
        config: settings of the run.
        benchmark: measurement of a step under a schedule.
        is_streamed: whether the model's blocks are streamed.

    Raises:
        ConfigError: if a forward pass of one example exceeds the memory budget.
    """
    groupings: tuple[Grouping, ...] = (
        distinct_groupings(config.queries) if config.grouping == "auto" else (config.grouping,)
    )
    limit = min(config.examples_in_pass or config.batch, config.batch)
    largest, peaks = {}, list[int]()
    for grouping in groupings:

        def peak(micro_batch: int, grouping: Grouping = grouping) -> int:
            peaks.append(benchmark.peak_bytes(Schedule(grouping, micro_batch)))
            return peaks[-1]

        largest[grouping] = largest_micro_batch(config, peak, limit, is_streamed)
    if config.grouping != "auto" and largest[config.grouping] == limit:
        return Schedule(config.grouping, config.examples_in_pass)
    candidates = [
        Schedule(grouping, size)
        for grouping, size in largest.items()
        for size in (candidate_micro_batches(size) if config.grouping == "auto" else [size])
        if size
    ]
    if not candidates:
        raise _budget_error(config, min(peaks))
    if len(candidates) == 1:
        return candidates[0]
    benchmark.seconds(candidates[0])
    return choose_fastest(candidates, benchmark.seconds)[0]


def choose_first_pass(
    config: RunConfig,
    forward: ReadoutForward,
    longest: Sequence[Prompt],
    usual: int,
    is_streamed: bool,
) -> Schedule:
    """Return the schedule of the single pass that a readout needs for each example.

    The pass has no perturbations to group, and is not timed. The memory budget limits the
    micro-batch.

    Args:
        config: settings of the run.
        forward: forward engine.
        longest: examples that take the most memory.
        usual: micro-batch to use if the settings leave it open.
        is_streamed: whether the model's blocks are streamed.

    Raises:
        ConfigError: if a forward pass of one example exceeds the memory budget.
    """
    size, peaks = config.examples_in_pass or usual, list[int]()

    def peak(micro_batch: int) -> int:
        with measure_peak_memory(torch.device(config.model.torch_device)) as measured:
            forward.run_pass(longest[:micro_batch])
        peaks.append(measured.bytes)
        return measured.bytes

    size = largest_micro_batch(config, peak, size, is_streamed)
    if not size:
        raise _budget_error(config, min(peaks))
    return Schedule("both", size)


def largest_micro_batch(
    config: RunConfig, peak_bytes: Callable[[int], int], most: int, is_streamed: bool
) -> int:
    """Return the largest micro-batch within the memory budget; 0 if no example fits.

    Without a budget, passes on a CPU take at most `USUAL_PASS_BYTES`, or twice the memory of one
    example if that is more. The fixed memory of a pass, such as a dequantized weight matrix, then
    does not reduce passes to single examples. With streamed blocks the batch is not split, because
    every additional pass would read the whole model again.

    Args:
        config: settings of the run.
        peak_bytes: function that measures or predicts the memory in bytes of a pass with a given
            number of examples.
        most: largest micro-batch.
        is_streamed: whether the model's blocks are streamed.
    """
    if config.memory_budget:
        return find_largest_micro_batch(peak_bytes, config.memory_budget, most)
    if config.model.torch_device != "cpu" or is_streamed or most == 1:
        return most
    known = cache(peak_bytes)
    return find_largest_micro_batch(known, max(USUAL_PASS_BYTES, 2 * known(1)), most)


def _budget_error(config: RunConfig, needed: int) -> ConfigError:
    return ConfigError(
        f"memory-budget = {config.memory_budget:,}: a pass of one example needs {needed:,} bytes "
        "beside the weights; raise memory-budget, lower model.max-length, or set grouping = auto"
    )


def evaluation_batch_size(schedule: Schedule, config: RunConfig, limit: int) -> int:
    """Return the number of examples in an evaluation's pass, within the memory of a step.

    Args:
        schedule: schedule of a step.
        config: settings of the run.
        limit: largest size.
    """
    perturbations = perturbations_per_pass(schedule.grouping, config.queries)
    return min(limit, perturbations * (schedule.micro_batch or config.batch))
