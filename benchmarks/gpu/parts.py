"""The parts of the GPU measurements and their cells, the most important part first.

A cell is measured completely or not at all. An interrupted part continues with the next cell.
Libraries are imported inside the cells, so that a missing library only affects the cells that need
it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from samara.shared.errors import ConfigError

ROOT = Path(__file__).parents[2]
DEVICE = "cuda"
SEEDS = 64
BACKENDS = ("triton", "torch")

Row = dict[str, Any]
Cell = tuple[str, Callable[[], Iterable[Row]]]


@dataclass(frozen=True)
class Given:
    """The arguments of the command.

    Attributes:
        out: folder of the results.
        rehearse: whether sizes are tiny and the GPU is emulated.
        model: folder of the model for parts that train a model; may be empty.
        data: data by task.
    """

    out: Path
    rehearse: bool = False
    model: str = ""
    data: dict[str, str] = field(default_factory=dict)

    @property
    def turns(self) -> range:
        """Repetitions of a measurement, whose result is their median."""
        return range(1 if self.rehearse else 3)


@dataclass(frozen=True)
class Part:
    """A part of the measurements, which runs in a separate process.

    Attributes:
        name: name of the part on the command line.
        minutes: time limit of the part.
        tells: short statement of the question that the part answers.
        cells: function that yields the name and the work of each cell.
    """

    name: str
    minutes: float
    tells: str
    cells: Callable[[Given], Iterator[Cell]]


def digests(given: Given) -> Iterator[Cell]:
    """Yield cells that compare replay and directions on the GPU with the CPU's results."""
    import numpy as np

    from samara.shared.protocol.directions import Distribution
    from samara.shared.protocol.replay import default_backend, digest

    def compare(name: str, size: int, distribution: Distribution) -> Iterator[Row]:
        rng = np.random.default_rng(size)
        seeds = rng.integers(2**63, size=2 if given.rehearse else SEEDS, dtype=np.uint64)
        coefficients = rng.integers(-(2**31) + 1, 2**31, size=len(seeds))

        def digest_by(backend: Any) -> tuple[str, Any]:
            state = np.zeros(size, np.int64)
            backend.fold(state, seeds, coefficients, distribution)
            return digest(b"", state).hex()[:16], backend.directions(seeds[:1], size, distribution)

        wanted, direction = digest_by(default_backend())
        found, drawn = digest_by(_gpu_backend(name))
        yield {
            "backend": name,
            "distribution": distribution,
            "d": size,
            "digest": found,
            "as the CPU": found == wanted and bool((drawn == direction).all()),
        }

    kinds: tuple[Distribution, ...] = ("gaussian", "rademacher")
    for size in (3_001,) if given.rehearse else (6_144, 811_008, 2**24 + 3):
        for kind in kinds:
            for name in BACKENDS:
                yield f"{name}, {kind}, d = {size}", partial(compare, name, size, kind)


def replay(given: Given) -> Iterator[Cell]:
    """Yield cells about the rates of replay, directions and copies, in elements/s and bytes/s."""
    import numpy as np
    import torch

    from benchmarks.speed.shapes import timed

    device = torch.device(DEVICE)
    count = 2**16 if given.rehearse else 2**30

    def rate(amount: float, work: Callable[[], object]) -> float:
        work()
        return amount / median(timed(work, device) for _ in given.turns) / 1e9

    def copies() -> Iterator[Row]:
        host = torch.zeros(count, dtype=torch.uint8, pin_memory=True)
        here, there = (torch.zeros(count, dtype=torch.uint8, device=device) for _ in range(2))
        for name, target, source, moved in (
            ("on the device, read and written", there, here, 2 * count),
            ("host to device, page-locked", here, host, count),
            ("device to host, page-locked", host, here, count),
        ):
            copy = partial(target.copy_, source, non_blocking=True)
            yield {"copy": name, "GB/s": rate(moved, copy)}

    def replayed(name: str, size: int) -> Iterator[Row]:
        seed_count = 2 if given.rehearse else SEEDS
        seeds = np.arange(seed_count, dtype=np.uint64)
        coefficients = np.full(seed_count, 12_345, np.int64)
        state, backend = np.zeros(size, np.int64), _gpu_backend(name)
        row = {"backend": name, "d": size, "seeds": seed_count}
        fold = partial(backend.fold, state, seeds, coefficients, "gaussian")
        draw = partial(backend.draw_on_device, seeds[:2], size, "gaussian")
        for work, directions, run in (
            ("fold, the sum to the host", seed_count, fold),
            ("draw two", 2, draw),
        ):
            yield row | {"work": work, "10⁹ elements/s": rate(size * directions, run)}

    yield "memory bandwidth", copies
    for size in (3_001,) if given.rehearse else (811_008, 2**24):
        for name in BACKENDS:
            yield f"{name}, d = {size}", partial(replayed, name, size)


def gpu_tests(given: Given) -> Iterator[Cell]:
    """Yield a cell with the tests that need a GPU."""

    def run() -> Iterator[Row]:
        files = sorted((ROOT / "tests").rglob("test_*.py"))
        files = [file for file in files if "pytest.mark.gpu" in file.read_text(encoding="utf-8")]
        report = given.out / "tests.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", *map(str, files[:1] if given.rehearse else files)]
        ended = subprocess.run(command, cwd=ROOT, check=False)
        if not report.exists():
            raise ConfigError(f"pytest ended with {ended.returncode} before any test")
        yield from read_verdicts(report)

    yield "pytest -m gpu", run


def read_verdicts(report: Path) -> Iterator[Row]:
    """Read the outcome of every test from pytest's JUnit report.

    Args:
        report: XML file, in which a test may also have properties and output.
    """
    from xml.etree import ElementTree

    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = [
            (each.tag, each.get("message", ""))
            for each in case
            if each.tag in ("error", "failure", "skipped")
        ]
        verdict, message = found[0] if found else ("passed", "")
        yield {"test": case.get("name"), "is": verdict, "says": message.split("\n")[0][:200]}


def steps(
    shape: str,
    variants: tuple[tuple[str, str], ...],
    batches: tuple[int, ...] = (4,),
    lengths: tuple[int, ...] = (64, 256),
) -> Callable[[Given], Iterator[Cell]]:
    """Return a part's cells, which compare P-RGE steps in every grouping with MeZO's loop.

    Args:
        shape: shape of the model.
        variants: quantization and compute type of each cell.
        batches: numbers of examples.
        lengths: tokens of an example.
    """

    def measure(quantization: Any, dtype: str, rehearse: bool) -> Iterator[Row]:
        from benchmarks.speed.step import Bench, StepBench

        settings = StepBench(
            shape, quantization, dtype, DEVICE, 4, batches, lengths, "all", 16, 3, 0
        )
        if rehearse:
            tiny = {"batches": (1,), "lengths": (4,), "queries": 1, "rank": 2, "repetitions": 1}
            settings = replace(settings, shape="opt-tiny", **tiny)  # type: ignore[arg-type]
        bench = Bench(settings)
        names = {
            "grouping": "step",
            "B": "B",
            "sequence": "tokens",
            "seconds": "seconds",
            "ratio_to_mezo": "times as fast as MeZO on LoRA",
            "peak_bytes": "bytes over weights",
        }
        for batch in settings.batches:
            for length in settings.lengths:
                for row in bench.rows(batch, length, first_order=False):
                    yield {shown: row[key] for key, shown in names.items()}

    def cells(given: Given) -> Iterator[Cell]:
        for quantization, dtype in variants[:1] if given.rehearse else variants:
            name = dtype if quantization == "none" else f"{quantization}, {dtype}"
            yield name, partial(measure, quantization, dtype, given.rehearse)

    return cells


class _StreamedModel:
    """A model on the GPU, with random blocks in page-locked host memory."""

    def __init__(self, shape: str, dtype: Any) -> None:
        import torch

        from benchmarks.speed.shapes import RandomStore, random_base
        from samara.client.streaming.block_store import HostStore

        device = torch.device(DEVICE)
        self.base = random_base(shape, "none", dtype, device, without_blocks=True)
        self._resident = {name: p.clone() for name, p in self._parameters()}
        self._source = RandomStore(self.base, device)
        self.store = HostStore(self._source, pinned=True)

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        return ((n, p) for n, p in self.base.network.named_parameters() if not p.is_meta)

    def begin_anew(self) -> tuple[Any, Any]:
        """Reset all weights to their initial values, and return the model and the store."""
        for name, parameter in self._parameters():
            parameter.copy_(self._resident[name])
        for block in range(len(self.store.packed_blocks)):
            self._source.fetch(block, self.store.host_buffer(block, None))
        return self.base, self.store


@contextmanager
def _mezo_step(
    base: Any, store: Any, variant: str, batch: int, tokens: int
) -> Iterator[Callable[[], float]]:
    """Yield a MeZO step in place on a model; a model with a store is streamed."""
    import torch

    from benchmarks.speed.shapes import TASK
    from benchmarks.speed.streamed_ablations import VARIANTS, mezo_step
    from samara.client.forward.body import PerturbedBody
    from samara.client.forward.resident import ResidentForward
    from samara.client.forward.streamed import make_forward_engine
    from samara.client.spaces.full import FullSpace
    from samara.client.spaces.streamed import StreamedFullSpace
    from samara.shared.model.replay_torch import backend_for
    from samara.shared.model.scorers import CausalScorer

    backend, scorer = backend_for(torch.device(DEVICE)), CausalScorer(base, TASK, tokens)
    if store is None:
        whole = FullSpace(base, backend, keep_copy=False)
        forward = ResidentForward(whole.adapter, scorer, PerturbedBody(base, 0))
        yield mezo_step(whole, forward, batch, tokens)
        return
    space = StreamedFullSpace(base, store, backend, keep_copy=False, **VARIANTS[variant])
    engine = make_forward_engine(base, space.adapter, scorer, True, None, space)
    yield mezo_step(space, engine, batch, tokens)
    space.stream.detach()


def zo2(
    shape: str,
    dtype: str = "float32",
    sizes: tuple[tuple[int, int], ...] = ((1, 2_048),),
    variants: tuple[str, ...] = (
        "MeZO",
        "ZO2",
        "no scheduler overlap",
        "no reusable memory",
        "no efficient update",
    ),
) -> Callable[[Given], Iterator[Cell]]:
    """Return cells of MeZO steps in place on all parameters, resident and streamed from the host.

    Args:
        shape: shape of the model.
        dtype: type of the weights.
        sizes: batches and lengths.
        variants: resident, or names of `streamed_ablations.VARIANTS`.
    """

    def cells(given: Given) -> Iterator[Cell]:
        import torch

        from benchmarks.speed.shapes import random_base, timed
        from benchmarks.speed.streamed_ablations import RESIDENT

        device, own = torch.device(DEVICE), "opt-tiny" if given.rehearse else shape
        kind = getattr(torch, dtype)
        model = cache(lambda: _StreamedModel(own, kind))

        def measure(variant: str, batch: int, tokens: int) -> Iterator[Row]:
            if variant == RESIDENT:
                base, store = random_base(own, "none", kind, device), None
            else:
                base, store = model().begin_anew()
            torch.cuda.reset_peak_memory_stats(device)
            with _mezo_step(base, store, variant, batch, tokens) as step:
                gradients, seconds = [step()], list[float]()
                for _ in given.turns:
                    seconds.append(timed(lambda: gradients.append(step()), device))
            peak = torch.cuda.max_memory_allocated(device)
            yield {
                "step": variant,
                "B": batch,
                "tokens": tokens,
                "seconds": median(seconds),
                "tokens/s": batch * tokens / median(seconds),
                "peak MiB": peak / 2**20,
                "projected gradients": ", ".join(map(str, gradients)),
            }

        for batch, tokens in ((1, 4),) if given.rehearse else sizes:
            for variant in variants:
                work = partial(measure, variant, batch, tokens)
                yield f"{variant}, {batch} × {tokens}", work

    return cells


def streams(given: Given) -> Iterator[Cell]:
    """Yield a cell with the work of ZO2's three streams in one step, seen by torch's profiler."""

    def profile(variant: str) -> Iterator[Row]:
        import torch
        from torch._C._autograd import DeviceType

        shape, tokens = ("opt-tiny", 4) if given.rehearse else ("opt-6.7b", 2_048)
        activities = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        base, store = _StreamedModel(shape, torch.float32).begin_anew()
        with _mezo_step(base, store, variant, 1, tokens) as step:
            step()
            with torch.profiler.profile(activities=activities) as profiler:
                step()
                torch.cuda.synchronize()
        profiler.export_chrome_trace(str(given.out / f"{variant.replace(' ', '-')}.json.gz"))
        found = profiler.profiler.kineto_results.events()
        events = [event for event in found if event.device_type() == DeviceType.CUDA]
        whole = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in events]
        for stream in sorted({event.device_resource_id() for event in events}):
            own = [event for event in events if event.device_resource_id() == stream]
            yield {
                "step": variant,
                "stream": stream,
                "busy ms": sum(event.duration_ns() for event in own) / 1e6,
                "of ms": (max(end for _, end in whole) - min(begun for begun, _ in whole)) / 1e6,
                "most of it": max(own, key=lambda event: event.duration_ns()).name()[:60],
            }

    for variant in ("ZO2", "no scheduler overlap"):
        yield variant, partial(profile, variant)


def offload(given: Given) -> Iterator[Cell]:
    """Yield cells with LSP-Offload and Zero-Offload over the link, and with Adam on the GPU."""
    import torch

    from benchmarks.speed import offload as emulated
    from benchmarks.speed.shapes import SHAPES, timed
    from benchmarks.speed.whole_model_step import first_order_step
    from samara.client.offload.accelerator import accelerator_for
    from samara.client.offload.service_order import Order

    device = torch.device(DEVICE)
    shape, batch, tokens = ("llama-tiny", 1, 4) if given.rehearse else ("tinyllama-1.1b", 4, 512)
    hidden = SHAPES[shape]["hidden_size"]

    def timed_steps(name: str, step: Callable[[], object]) -> Row:
        step()
        torch.cuda.reset_peak_memory_stats(device)
        seconds = median(timed(step, device) for _ in given.turns)
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        return {"optimizer": name, "seconds": seconds, "peak MiB": peak}

    def on_the_gpu() -> Iterator[Row]:
        network = emulated.new_network(shape, device)
        ids = torch.randint(2, 500, (batch, tokens)).to(device)
        weights = list(network.parameters())
        step = first_order_step(
            weights, lambda: network(input_ids=ids, labels=ids).loss, "Adam", 1e-5
        )
        yield timed_steps("Adam on the GPU", step)

    def on_the_host(name: str, order: Order, subspace: int | None) -> Iterator[Row]:
        network, accelerator = emulated.new_network(shape, device), accelerator_for(device)
        layers = emulated.scheduled_layers(network, subspace)
        run = emulated.training_step(network, accelerator, batch, tokens)
        most = None if subspace else 2
        with emulated.scheduled(layers, accelerator, order, most) as schedule:

            def step() -> None:
                run()
                schedule.finish()

            row = timed_steps(name, step)

            def several_steps() -> None:
                for _ in given.turns:
                    run()
                schedule.finish()

            several = timed(several_steps, device)
            yield row | {"seconds of several": several / len(given.turns)}

    yield "Adam on the GPU", on_the_gpu
    methods: list[tuple[str, Order, int | None]] = [
        ("Zero-Offload", "zero", None),
        ("LSP, s = hidden/8", "layer-wise", hidden // 8),
        ("Zero-Offload, layer-wise", "layer-wise", None),
        ("LSP, s = hidden/4", "layer-wise", hidden // 4),
    ]
    for name, order, subspace in methods[:2] if given.rehearse else methods:
        yield name, partial(on_the_host, name, order, subspace)


def training(task: str, most: int, seeds: int) -> Callable[[Given], Iterator[Cell]]:
    """Return cells of P-RGE runs with adapters inside the model, by `samara tune`.

    Args:
        task: name of the task.
        most: steps of a run.
        seeds: number of runs.
    """

    def cells(given: Given) -> Iterator[Cell]:
        if not given.model or not given.data.get(task):
            raise ConfigError(f"needs --model FOLDER and --data {task}=DATA")
        for seed in range(seeds):
            yield f"seed {seed}", partial(train, given, seed)

    def train(given: Given, seed: int) -> Iterator[Row]:
        from samara.client.tuning.run import read_result, tune
        from samara.client.tuning.settings import TuneSettings

        count = 2 if given.rehearse else most
        own: dict[str, Any] = {
            "optimizer": "prge",
            "model.path": given.model,
            "model.torch-device": DEVICE,
            "data.path": given.data[task],
            "task": "sst2" if given.rehearse else task,
            "steps": count,
            "validate-every": max(1, count // 5),
            "seed": seed,
            "out": str(given.out / f"{task}-{most}-seed-{seed}"),
        }
        if given.rehearse:
            sizes = {"train": 8, "validation": 4, "test": 4}
            own |= {f"data.{name}": size for name, size in sizes.items()}
            own |= {"batch": 2, "model.max-length": 40}
        result = read_result(tune(TuneSettings.of(own, "gpu")))
        losses = [point["loss"] for point in result["curve"]]
        yield {
            "task": task,
            "steps": count,
            "seed": seed,
            result["metric"]: result["test"][result["metric"]],
            "loss before": losses[0],
            "loss after": losses[-1],
            "seconds": result["seconds"],
            "digest": result["digest"][:16],
        }

    return cells


def _gpu_backend(name: str) -> Any:
    """Return a replay backend on the GPU: Triton's kernels, or torch's operators."""
    import torch

    from samara.shared.model.replay_torch import CudaBackend, TorchBackend

    return (CudaBackend if name == "triton" else TorchBackend)(torch.device(DEVICE))


HALF = (("none", "float16"), ("none", "bfloat16"))
PARTS = (
    Part("digests", 1, "whether replay on a GPU ends in the CPU's digests", digests),
    Part("tests", 3, "whether the tests that need a GPU pass", gpu_tests),
    Part("replay", 1, "replay's elements/s beside the bandwidth of memory and link", replay),
    Part(
        "steps-1.1b",
        2,
        "dual against sequential P-RGE and MeZO's loop",
        steps("tinyllama-1.1b", HALF),
    ),
    Part("steps-7b", 4, "the same where weight traffic dominates", steps("llama2-7b", HALF)),
    Part("zo2-1.3b", 1.5, "streamed against resident, ablations, peak memory", zo2("opt-1.3b")),
    Part("zo2-6.7b", 2.5, "the same on a larger model", zo2("opt-6.7b")),
    Part("zo2-13b", 4, "the same where resident float32 weights take 52 GB", zo2("opt-13b")),
    Part("sst2", 5, "accuracy and time of 5,000 P-RGE steps", training("sst2", 5_000, 1)),
    Part(
        "quantized",
        4,
        "P-RGE steps on NF4 and INT8 weights",
        steps("llama2-7b", (("nf4", "bfloat16"), ("int8", "bfloat16"))),
    ),
    Part(
        "sizes",
        6,
        "the batch and length from which sharing a pass gains nothing",
        steps("llama2-7b", HALF[1:], (1, 4, 16), (32, 128, 512)),
    ),
    Part(
        "zo2-sizes",
        4,
        "ZO2 by batch and length",
        zo2("opt-1.3b", "float32", ((1, 1_024), (2, 2_048), (4, 2_048)), ("MeZO", "ZO2")),
    ),
    Part("offload", 4, "LSP-Offload against Zero-Offload over PCIe", offload),
    Part("rte", 90, "accuracy after 20,000 steps, three seeds", training("rte", 20_000, 3)),
    Part("trec", 90, "accuracy after 20,000 steps, three seeds", training("trec", 20_000, 3)),
    Part(
        "zo2-30b",
        6,
        "bfloat16 weights of 60 GB, resident and streamed",
        zo2("opt-30b", "bfloat16", variants=("ZO2", "MeZO")),
    ),
    Part("streams", 3, "what ZO2's three streams do in a step", streams),
)
