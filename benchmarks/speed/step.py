"""P-RGE steps in every grouping against MeZO in place and first-order steps on the same rows.

    python -m benchmarks step --json FILE

All steps are complete: directions, forward passes, loss, update. Repetitions are interleaved, so
that other load on the machine affects all steps equally. Seconds are medians, and a ratio is the
median of the ratios within a repetition. MeZO-LoRA perturbs A and B of plain LoRA in place. Like
its authors' code, it runs the whole network, with logits at every position. MeZO on all parameters
does the same, with as many directions. The first-order steps are SGD and Adam on all parameters,
and Adam on LoRA-FA's B. They do one forward and one backward pass of the batch over the whole
network, without activation checkpointing.
"""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.interleaved import interleaved, median_ratio
from benchmarks.speed.in_place_mezo import lora_parameters, whole_network_loss
from benchmarks.speed.shapes import TASK, random_base, timed
from benchmarks.speed.whole_model_step import OPTIMIZERS, first_order_step, mezo_step
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule, distinct_groupings
from samara.client.forward.peak_memory import keep_freed_memory, measure_peak_memory
from samara.client.forward.resident import ResidentForward
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.client.training.execution import StepBenchmark, choose_schedule
from samara.shared.errors import ConfigError
from samara.shared.model.dual_forwarding import DualForwarding
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter, inject
from samara.shared.model.perturbations import Perturbations, WeightMap
from samara.shared.model.quantized import Quantization
from samara.shared.model.replay_torch import backend_for, draw_directions
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.protocol.directions import DIRECTION_BITS
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import AdapterSettings
from samara.shared.storage.files import write_durably
from samara.shared.tasks.label_scores import cross_entropy

EPSILON, LEARNING_RATE = 0.01, 1e-6
CACHE_BYTES = 2**30

Row = dict[str, Any]


@dataclass(frozen=True)
class StepBench:
    """Settings of the measurement, as given by the options of the command."""

    shape: str
    quantization: Quantization
    dtype: str
    device: str
    queries: int
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    layers: str
    rank: int
    repetitions: int
    threads: int


class Bench:
    """A model with adapters, and the steps that are timed on it."""

    def __init__(self, settings: StepBench) -> None:
        keep_freed_memory()
        self.settings, self.device = settings, torch.device(settings.device)
        self.base: BaseModel = random_base(
            settings.shape, settings.quantization, getattr(torch, settings.dtype), self.device
        )
        self.scorer = CausalScorer(self.base, TASK, max(settings.lengths), compares=True)
        adapters = AdapterSettings(layers=settings.layers, rank=settings.rank)
        self.adapter: Adapter = inject(self.base, adapters, self.scorer.labels)
        first = self.adapter.first_block
        body = PerturbedBody(self.base, first, make_trunk_cache(self.base, first, CACHE_BYTES))
        self.forward = ResidentForward(self.adapter, self.scorer, body)
        self.layout = self.adapter.layout
        self._backend = backend_for(self.device)
        self._seed = 0

    def prompts(self, batch: int, length: int) -> list[Prompt]:
        """Return prompts of random tokens, each read at its last token."""
        vocabulary = self.base.network.config.vocab_size
        ids = np.random.default_rng(batch * length).integers(12, vocabulary, (batch, length))
        return [Prompt((tuple(row),), ((length - 1,),)) for row in ids.tolist()]

    def p_rge(self, prompts: list[Prompt], schedule: Schedule) -> Callable[[], None]:
        """Return a P-RGE step, which computes from a master copy of the adapter."""
        labels = np.arange(len(prompts)) % 2
        center = torch.zeros(self.layout.size, device=self.device)

        def step() -> None:
            z = self._directions()
            perturbations = Perturbations(self.layout, center, z, EPSILON)
            gradients = _gradients(self.forward.scores(perturbations, prompts, schedule), labels)
            scale = LEARNING_RATE * 2.0**-DIRECTION_BITS / len(z)
            center.sub_(torch.from_numpy(gradients).to(self.device) * scale @ z.float())

        return step

    def algorithm_1(self, prompts: list[Prompt]) -> Callable[[], None]:
        """Return a step of P-RGE's Algorithm 1 in one pass; it stores all perturbed adapters."""
        labels = np.arange(len(prompts)) % 2
        center = np.zeros(self.layout.size, np.float32)
        first = self._directions().cpu().numpy()
        begun = DualForwarding.begin(self.layout, center, first, EPSILON)
        adapters = DualForwarding(self.layout, begun.b.to(self.device))

        def step() -> None:
            nonlocal adapters
            gradients = _gradients(self.forward.scores(adapters, prompts), labels)
            z = self._directions()
            adapters = adapters.advanced(gradients, LEARNING_RATE, EPSILON, z)

        return step

    def others(self, prompts: list[Prompt]) -> dict[str, Callable[[], object]]:
        """Return steps of MeZO in place, on LoRA and on all parameters, and first-order steps.

        Steps that would train quantized parameters are left out.
        """
        ids = torch.tensor([prompt.sequences[0] for prompt in prompts], device=self.device)
        mask = torch.ones_like(ids)
        words = torch.tensor([10, 11], device=self.device)
        labels = words[torch.arange(len(prompts), device=self.device) % 2]
        b = torch.zeros(self.layout.size, device=self.device)
        perturbations = Perturbations(self.layout, b)

        def loss() -> Tensor:
            return whole_network_loss(self.base, self.adapter, perturbations, ids, mask, labels)

        lora, q = lora_parameters(self.base, perturbations), self.settings.queries
        steps = {"mezo": mezo_step(lora, loss, q, EPSILON, LEARNING_RATE)}
        if self.settings.quantization == "none":
            whole = list(self.base.network.parameters())
            steps["mezo, all parameters"] = mezo_step(whole, loss, q, EPSILON, LEARNING_RATE)
            for optimizer in OPTIMIZERS:
                name = f"{optimizer}, all parameters"
                steps[name] = first_order_step(whole, loss, optimizer, LEARNING_RATE)
        steps["Adam, LoRA-FA"] = first_order_step([b], loss, "Adam", LEARNING_RATE)
        return steps

    def auto(self, prompts: list[Prompt]) -> Schedule:
        """Return the schedule that ``grouping = auto`` chooses."""
        settings = self.settings
        config = RunConfig.of(
            {
                "grouping": "auto",
                "memory-budget": 2**40,
                "queries": settings.queries,
                "batch": len(prompts),
                "model.torch-device": settings.device,
                "epsilon": EPSILON,
            },
            "bench",
        )
        weight_map = WeightMap(torch_device=self.device)
        return choose_schedule(
            config, StepBenchmark(self.forward, self.layout, weight_map, config, prompts, prompts)
        )

    def _directions(self) -> Tensor:
        """Return new directions, int16 [q, d], on the device."""
        self._seed += self.settings.queries
        seeds = np.arange(self._seed, self._seed + self.settings.queries, dtype=np.uint64)
        layout = self.layout
        return draw_directions(
            self._backend, seeds, layout.size, layout.distribution, 0, self.device
        )

    def rows(self, batch: int, length: int, first_order: bool = True) -> list[Row]:
        """Measure all kinds of steps on one shape of batch.

        Args:
            batch: number of examples.
            length: tokens of an example.
            first_order: whether to include first-order steps, whose gradients and moments need
                several times the memory of the weights.
        """
        prompts = self.prompts(batch, length)
        auto = self.auto(prompts)
        steps = self.others(prompts)
        if not first_order:
            steps = {n: step for n, step in steps.items() if not n.startswith(tuple(OPTIMIZERS))}
        for grouping in distinct_groupings(self.settings.queries):
            steps[grouping] = self.p_rge(prompts, Schedule(grouping))
        steps["both, algorithm 1"] = self.algorithm_1(prompts)
        steps["auto"] = self.p_rge(prompts, auto)
        peaks = {}
        for name, step in steps.items():
            if not name.startswith(tuple(OPTIMIZERS)):
                step()  # the first step allocates an optimizer's states
            with measure_peak_memory(self.device) as peak:
                step()
            peaks[name] = peak.bytes
        seconds = interleaved(
            steps, self.settings.repetitions, lambda step: timed(step, self.device)
        )
        return [
            {
                "shape": self.settings.shape,
                "quantization": self.settings.quantization,
                "dtype": self.settings.dtype,
                "layers": self.settings.layers,
                "q": self.settings.queries,
                "B": batch,
                "sequence": length,
                "grouping": name,
                "decided": asdict(auto) if name == "auto" else None,
                "seconds": median(times),
                "peak_bytes": peaks[name],
                "ratio_to_mezo": median_ratio(seconds["mezo"], times),
            }
            for name, times in seconds.items()
        ]


def run(settings: StepBench, file: Path | None = None) -> None:
    """Measure, print a table, and write all rows with facts about the machine as JSON.

    Results are printed and written after each size, and are kept if Ctrl-C ends the measurement.

    Args:
        settings: settings of the measurement.
        file: file of the rows; None writes none.

    Raises:
        ConfigError: if the file cannot be written.
    """
    from rich.console import Console
    from rich.table import Table

    if settings.threads:
        torch.set_num_threads(settings.threads)
    console = Console()
    console.print(f"making {settings.shape}")
    bench, rows = Bench(settings), list[Row]()
    sizes = [(batch, length) for batch in settings.batches for length in settings.lengths]
    _write(file, settings, bench, rows)  # reports a missing folder early
    try:
        for number, (batch, length) in enumerate(sizes, 1):
            console.print(f"size {number} of {len(sizes)}: {batch} examples of {length} tokens")
            rows += bench.rows(batch, length)
            _write(file, settings, bench, rows)
    except KeyboardInterrupt:
        console.print("stopped: the results of the earlier sizes are kept")
    table = Table(title=f"Steps of {settings.shape}, {settings.quantization}, {settings.layers}")
    for column in ("B", "tokens", "grouping", "ms", "MiB over weights", "against MeZO"):
        table.add_column(column, justify="right")
    for row in rows:
        name, chosen = row["grouping"], row["decided"]
        if chosen:
            name += f" ({chosen['grouping']}, {chosen['micro_batch']} examples)"
        table.add_row(
            str(row["B"]),
            str(row["sequence"]),
            name,
            f"{1e3 * row['seconds']:.1f}",
            f"{row['peak_bytes'] / 2**20:.1f}",
            f"{row['ratio_to_mezo']:.2f}×",
        )
    console.print(table, f"Rows are in {file}" if file else "")


def _write(file: Path | None, settings: StepBench, bench: Bench, rows: list[Row]) -> None:
    """Write the rows so far; without a file, do nothing."""
    if file is None:
        return
    content = {"settings": asdict(settings), "machine": _machine(bench.device), "rows": rows}
    try:
        write_durably(file, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(
            f"{file}: the rows cannot be written: {error.strerror}; give another --json"
        ) from error


def _gradients(
    scores: np.ndarray[Any, np.dtype[np.float32]], labels: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    plus, minus = np.split(cross_entropy(scores, labels), 2)
    return ((plus - minus) / (2 * EPSILON)).astype(np.float32)


def _machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": name or platform.machine(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }
