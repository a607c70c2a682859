"""Throughput of first-order training over an emulated link, and who was busy when.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.offload --shape llama-34m --json FILE --plot FOLDER

One core plays the accelerator, another one the host; both and the link are slowed down until a
step of Zero-Offload has the ratios of the LSP-Offload paper's table 1: transfers of 0.93 s each way
and a host update of 1.92 s for 0.84 s of forward and backward pass. All methods are then measured
with the same settings. Beside the seconds of the real threads come those of the same work on a
virtual clock, where the machine's other load does not count.
"""

import argparse
import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.speed.offload_plot import draw
from benchmarks.speed.shapes import SHAPES, random_base
from samara.client.offload.accelerator import Accelerator, EmulatedAccelerator
from samara.client.offload.emulated_link import EmulatedTransfer
from samara.client.offload.iteration_time import StageSeconds
from samara.client.offload.layer_update import (
    GradientHooks,
    ImmediateSchedule,
    LayerUpdate,
    UpdateSchedule,
)
from samara.client.offload.overlapped_schedule import OverlappedSchedule, ScheduledLayer
from samara.client.offload.projectors import ProjectorPair
from samara.client.offload.service_order import Order
from samara.client.offload.simulated_schedule import LayerSeconds, simulate_schedule
from samara.client.offload.timeline import ACCELERATOR, HOST, LANES, Timeline
from samara.devices.hardware.model_shape import llama_shape
from samara.devices.hardware.offload_estimate import (
    FirstOrderMethod,
    FirstOrderWorkload,
    estimate_first_order,
    estimate_host_memory,
)
from samara.devices.hardware.profile import load_device
from samara.shared.files import write_durably
from samara.shared.model.layer_selection import is_linear

COMPUTE, TRANSFER, UPDATE = 0.84, 0.93, 1.92
"""Seconds of a step of Llama-7B: both passes, transfer each way, update on the host."""
NONZEROS, LEARNING_RATE, SEQUENCE, VIRTUAL_STEPS = 16, 1e-5, 256, 20
SHOWN_STEPS = 8
"""Seconds of a drawn virtual timeline, over those of compute in a step."""
PLOTTED = ("zero-offload", "zero-offload, layer-wise", "lsp, s = hidden/8")
CPU = torch.device("cpu")


class Experiment:
    """A model shape on an emulated accelerator whose link and host have the paper's ratios."""

    def __init__(self, shape: str, batch: int, stretch: float, steps: int) -> None:
        self.shape, self.batch, self.stretch, self.steps = shape, batch, stretch, steps
        self.hidden = SHAPES[shape]["hidden_size"]
        self.parameters = sum(weight.numel() for weight in new_network(shape).parameters())
        # Calibration: Zero-Offload's steps with a link and a host that are not slowed down.
        self.bandwidth, self.host_stretch = 1e12, 1.0
        _, timeline, _ = self.run("zero", None)
        self.compute = timeline.busy_seconds(ACCELERATOR) / steps
        self.bandwidth = 4 * self.parameters / (self.compute * TRANSFER / COMPUTE)
        self.host_stretch = self.compute * UPDATE / COMPUTE / (timeline.busy_seconds(HOST) / steps)

    def run(
        self, order: Order | None, subspace: int | None
    ) -> tuple[float, Timeline, EmulatedAccelerator]:
        """Train some steps; return the seconds of one, the timeline and the accelerator.

        Without an order, the optimizer runs on the accelerator.
        """
        link = EmulatedTransfer(self.bandwidth, self.bandwidth)
        accelerator = EmulatedAccelerator(None, link, self.stretch, self.host_stretch)
        network = new_network(self.shape)
        layers = scheduled_layers(network, subspace)
        accelerator.hold(network.parameters())
        updates = [update for layer in layers for update in layer.updates]
        for update in updates:
            for projector in (update.projectors.left, update.projectors.right):
                if projector is not None:
                    accelerator.hold([projector.positions, projector.values])
        hold = accelerator.hold if order is None else accelerator.hold_on_host
        hold(moment for each in updates for moment in each.optimizer.moments)
        with scheduled(layers, accelerator, order, None if subspace else 2) as schedule:
            step = training_step(network, accelerator, self.batch)
            step()
            schedule.finish()
            accelerator.timeline.intervals.clear()
            for _ in range(self.steps):
                step()
            schedule.finish()
        intervals = accelerator.timeline.intervals
        whole = max(each.end for each in intervals) - min(each.start for each in intervals)
        return whole / self.steps, accelerator.timeline, accelerator

    def virtual(self, timeline: Timeline, order: Order, subspace: int | None) -> Timeline:
        """Many steps on a virtual clock, with the measured work and the link's bandwidth."""
        layers = scheduled_layers(new_network(self.shape), subspace)
        work: dict[tuple[int, str], float] = defaultdict(float)
        for each in timeline.intervals:
            work[each.layer, each.work] += (each.end - each.start) / self.steps
        seconds = []
        for index, layer in enumerate(layers):
            sent = 4 * sum(update.optimizer.moments[0].numel() for update in layer.updates)
            seconds.append(
                LayerSeconds(
                    forward=work[index, "forward"],
                    backward=work[index, "backward"],
                    offload=sent / self.bandwidth,
                    update=work[index, "update"],
                    upload=sent / self.bandwidth,
                    apply=work[index, "apply"],
                )
            )
        return simulate_schedule(seconds, order, VIRTUAL_STEPS)

    def predicted_bytes(
        self, method: FirstOrderMethod, order: Order | None, subspace: int, timeline: Timeline
    ) -> tuple[int, int]:
        """The estimate of the peaks on accelerator, without its runtime, and host.

        What waits on the host follows from the seconds of the stages, which are those of the run.
        """
        shape = llama_shape(self.shape, {"max_position_embeddings": 2_048, **SHAPES[self.shape]})
        work = FirstOrderWorkload(
            method,
            SEQUENCE,
            self.batch,
            "fp32",
            subspace=subspace,
            nonzeros=NONZEROS,
            layerwise=order == "layer-wise",
        )
        memory = estimate_first_order(shape, load_device("rtx-4090-workstation"), work).memory
        seconds: defaultdict[str, float] = defaultdict(float)
        for each in timeline.intervals:
            seconds[each.work] += (each.end - each.start) / self.steps
        stages = StageSeconds(
            seconds["forward"],
            seconds["backward"],
            seconds["offload"],
            seconds["update"],
            seconds["upload"],
            len(shape.blocks),
        )
        host = estimate_host_memory(shape, work, stages)
        return memory.total - memory.runtime, host.total


def new_network(shape: str, device: torch.device = CPU) -> Any:
    """A Llama of random weights in float32, with checkpointing."""
    network = random_base(shape, "none", torch.float32, device).network.requires_grad_(True)
    network.activation_checkpointing_enable({"use_reentrant": False})
    network.config.use_cache = False
    return network.train()


@contextlib.contextmanager
def scheduled(
    layers: list[ScheduledLayer], accelerator: Accelerator, order: Order | None, most: int | None
) -> Iterator[UpdateSchedule]:
    """Have backward passes inside the context update the layers; yields the schedule.

    Args:
        layers: layers in the order of the forward pass.
        accelerator: accelerator that computes.
        order: order of the transfers; None for updates at once.
        most: most layers whose gradients may be on the accelerator at a time.
    """
    updates = [update for layer in layers for update in layer.updates]
    schedule: ImmediateSchedule | OverlappedSchedule = ImmediateSchedule()
    with contextlib.ExitStack() as stack:
        if order is not None:
            schedule = OverlappedSchedule(layers, accelerator, order, most)
            stack.callback(schedule.close)
        GradientHooks(updates, schedule).learning_rate = LEARNING_RATE
        yield schedule


def scheduled_layers(network: Any, subspace: int | None) -> list[ScheduledLayer]:
    """All weights, or with a subspace the blocks' matrices, in the order of the forward pass."""
    model, layers = network.model, []
    if subspace is None:
        parts = [[model.embed_tokens], *([block] for block in model.layers)]
        for modules in [*parts, [model.norm, network.lm_head]]:
            weights = [weight for module in modules for weight in module.parameters()]
            updates = [LayerUpdate("", weight, ProjectorPair()) for weight in weights]
            layers.append(ScheduledLayer(modules[0], updates))
        return layers
    network.requires_grad_(False)
    for index, block in enumerate(model.layers):
        updates = []
        for number, (name, module) in enumerate(block.named_modules()):
            if is_linear(module):
                weight: nn.Parameter = module.weight.requires_grad_(True)
                rows, columns = weight.shape
                pair = ProjectorPair.random(
                    (rows, columns), subspace, NONZEROS, (index, number), weight.device
                )
                updates.append(LayerUpdate(name, weight, pair))
        layers.append(ScheduledLayer(block, updates))
    return layers


def training_step(
    network: Any, accelerator: Accelerator, batch: int, length: int = SEQUENCE
) -> Callable[[], None]:
    """A forward and backward pass over random tokens."""
    tokens = torch.randint(2, network.config.vocab_size, (batch, length)).to(network.device)

    def step() -> None:
        with accelerator.computing("forward", 0):
            network(input_ids=tokens, labels=tokens).loss.backward()

    return step


def measure(experiment: Experiment, plots: Path | None) -> list[dict[str, Any]]:
    """Train with every method, print and return a row for each, and draw timelines.

    Args:
        experiment: shape, link and host.
        plots: folder for the timelines; None for none.
    """
    hidden = experiment.hidden
    runs: list[tuple[str, FirstOrderMethod, Order | None, int | None]] = [
        ("resident", "fo-adam", None, None),
        ("zero-offload", "zero-offload", "zero", None),
        ("zero-offload, layer-wise", "zero-offload", "layer-wise", None),
        *((f"lsp, s = hidden/{part}", "lsp", "layer-wise", hidden // part) for part in (4, 8, 16)),
    ]
    rows, timelines, virtual_timelines = [], {}, {}
    for name, method, order, subspace in runs:
        seconds, timeline, accelerator = experiment.run(order, subspace)
        timelines[name] = timeline
        predicted, on_host = experiment.predicted_bytes(method, order, subspace or hidden, timeline)
        busy = {lane: timeline.busy_seconds(lane) / experiment.steps / seconds for lane in LANES}
        row: dict[str, Any] = {
            "shape": experiment.shape,
            "method": name,
            "step_seconds": seconds,
            "compute_seconds": experiment.compute,
            "busy_share": busy,
            "peak_bytes": accelerator.memory.peak,
            "predicted_bytes": predicted,
            "host_peak_bytes": accelerator.host_memory.peak,
            "predicted_host_bytes": on_host,
        }
        rows.append(row)
        if order is None:
            row["virtual_seconds"] = timeline.busy_seconds(ACCELERATOR) / experiment.steps
        else:
            # Zero-Offload's work is the same in both orders: on the virtual clock, one measurement.
            work = timelines["zero-offload"] if method == "zero-offload" else timeline
            virtual = experiment.virtual(work, order, subspace)
            row["virtual_seconds"] = max(each.end for each in virtual.intervals) / VIRTUAL_STEPS
            shown_until = SHOWN_STEPS * experiment.compute
            virtual.intervals = [each for each in virtual.intervals if each.start < shown_until]
            virtual_timelines[name] = virtual
        print(
            f"{experiment.shape} {name}: {seconds:.2f} s, virtual {row['virtual_seconds']:.2f} s, "
            f"{seconds / experiment.compute:.2f} of "
            f"compute, busy {' / '.join(f'{busy[lane]:.0%}' for lane in LANES)}, "
            f"{accelerator.memory.peak / 2**20:.0f} MiB ({predicted / 2**20:.0f} predicted), "
            f"host {accelerator.host_memory.peak / 2**20:.1f} ({on_host / 2**20:.1f} predicted)",
            flush=True,
        )
    if plots:
        for kind, drawn in (("", timelines), ("-virtual", virtual_timelines)):
            shown = {name: drawn[name] for name in PLOTTED}
            draw(shown, plots / f"offload-{experiment.shape}{kind}.png")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--shape",
        default="llama-34m",
        choices=["llama-tiny", "llama-small", "llama-34m", "llama-110m"],
    )
    parser.add_argument("--batch", type=int, default=2, help="examples of 256 tokens")
    parser.add_argument(
        "--stretch", type=float, default=3.0, help="factor of the accelerator's time"
    )
    parser.add_argument("--steps", type=int, default=3, help="measured, after one that is not")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--plot", type=Path, help="folder for the timelines")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    experiment = Experiment(arguments.shape, arguments.batch, arguments.stretch, arguments.steps)
    print(
        f"compute {experiment.compute:.2f} s, link {experiment.bandwidth / 1e6:.1f} MB/s each way, "
        f"host slowed down by {experiment.host_stretch:.1f}"
    )
    rows = measure(experiment, arguments.plot)
    if arguments.json:
        write_durably(arguments.json, (json.dumps(rows, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
