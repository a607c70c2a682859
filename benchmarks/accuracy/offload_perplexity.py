"""Perplexity against emulated time: LSP-Offload and Zero-Offload (the paper's figures 4a and 4b).

    OMP_NUM_THREADS=1 python -m benchmarks.accuracy.offload_perplexity --model FOLDER \\
        --texts FILE [--texts FILE] [--field passage] --out FOLDER [--plot FILE.png] [--linear] \\
        [--subspace S]

A causal model is trained further on texts of JSON lines, by Zero-Offload on all parameters and by
LSP-Offload on the matrices of its blocks, with the defaults of `samara tune`. The rate of each
method is searched in the same way: by the perplexity of validation texts after a quarter of the
run, from the centres that `offload_accuracy` has. The curves are those of other texts, the test's.

Emulated time is that of `emulated_steps`, in units of a forward and backward pass. Compression,
decompression and the learning of projectors are in it by their processor time over that of the
passes of the same run, so that a machine that is busy at times changes little. LSP-Offload takes at
least as much emulated time as Zero-Offload. With `--linear`, Zero-Offload also takes its steps on
the matrices of the blocks alone: what is left between that and LSP-Offload is due to the subspaces.
With `--subspace S`, these have S × S numbers in place of an eighth of the hidden size squared.

FOLDER has rows.jsonl with a line per run, and table.md; the same command continues.
"""

import argparse
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.accuracy.emulated_steps import emulated_step
from benchmarks.accuracy.offload_accuracy import METHODS, REFERENCE
from benchmarks.accuracy.rate_search import search_rate
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.accuracy.token_sequences import Sequences, batch_of, loss_of, read_texts, split
from samara.client.offload.layer_update import ImmediateSchedule, LayerUpdate, SubspaceSettings
from samara.client.offload.linear_layers import linear_weights
from samara.client.offload.offloaded_adam import OffloadedAdam
from samara.client.tuning.methods import LSP_GAMMA
from samara.client.tuning.sections import LspSettings

CENTRES = {
    "zero-offload": METHODS["full"].centre,
    "lsp": METHODS[REFERENCE].centre,
    "linear": METHODS["full"].centre,
}

Curve = tuple[list[float], list[float]]
"""Emulated times, in units, and perplexities."""


@dataclass(frozen=True)
class Setting:
    """Sizes of the runs."""

    context: int = 128
    batch: int = 8
    zero_steps: int = 120
    evaluations: int = 10
    search_share: float = 0.25
    """Share of a run's steps after which learning rates are compared."""
    held_out: int = 48
    """Sequences of validation, and as many of the test."""
    seed: int = 0


@torch.inference_mode()
def perplexity(network: Any, sequences: Tensor) -> float:
    """Return exp of the mean loss of a token."""
    losses = [loss_of(network, part).item() for part in torch.split(sequences, 16)]
    return math.exp(float(np.mean(losses)))


def load(folder: Path) -> Any:
    """Return the network of a model folder in float32, without dropout."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    ).eval()


def measure_compute(network: Any, train: Tensor, setting: Setting) -> tuple[float, float]:
    """Return the processor seconds of a forward and of a backward pass over all parameters."""
    seconds = []
    for step in range(12):
        begun = time.process_time()
        loss = loss_of(network, batch_of(train, step, setting.batch, setting.seed))
        between = time.process_time()
        loss.backward()  # type: ignore[no-untyped-call]
        seconds.append((between - begun, time.process_time() - between))
        network.zero_grad()
    forward, backward = np.median(seconds, axis=0)
    return float(forward), float(backward)


def subspace_of(network: Any, setting: Setting, size: int | None) -> SubspaceSettings:
    """Return the subspaces that `samara tune` has by default, or those of another size."""
    lsp = LspSettings()
    return SubspaceSettings(
        size or network.config.hidden_size // 8,
        lsp.nonzeros,
        lsp.threshold,
        LSP_GAMMA,
        lsp.learning_steps,
        setting.seed,
    )


class TimedUpdates(ImmediateSchedule):
    """Updates at once, with the processor seconds that they have taken.

    Attributes:
        seconds: processor seconds so far.
    """

    seconds = 0.0

    def gradient(self, layer: LayerUpdate, gradient: Tensor, learning_rate: float | None) -> None:
        """Compress, update and apply."""
        begun = time.process_time()
        super().gradient(layer, gradient, learning_rate)
        self.seconds += time.process_time() - begun


def fine_tune(
    folder: Path,
    sequences: Sequences,
    setting: Setting,
    method: str,
    rate: float,
    steps: int,
    evaluations: int,
    size: int | None = None,
) -> Row:
    """Train a model further; return its curve, and seconds of passes, updates and checks.

    Args:
        folder: folder of the model.
        sequences: tokens.
        setting: sizes.
        method: `lsp`, `zero-offload`, or `linear`: Zero-Offload of the blocks' matrices alone.
        rate: learning rate.
        steps: steps.
        evaluations: number of points of the curve behind the first.
        size: size s of the subspaces; None for the default.
    """
    network = load(folder)
    subspace = subspace_of(network, setting, size) if method == "lsp" else None
    weights = dict(network.named_parameters())
    if method != "zero-offload":
        weights = linear_weights(network.requires_grad_(False))
    for weight in weights.values():
        weight.requires_grad_(True)
    layers = [
        LayerUpdate.in_subspace(name, weight, subspace) if subspace else LayerUpdate(name, weight)
        for name, weight in weights.items()
    ]
    updates = TimedUpdates()
    adam = OffloadedAdam(layers, updates, subspace)
    every = max(1, steps // evaluations)
    curve: list[Row] = []
    seconds: list[tuple[float, float]] = []
    checks: list[float] = []
    biases: list[float] = []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            found = {
                name: perplexity(network, getattr(sequences, name))
                for name in ("validation", "test")
            }
            curve.append({"step": step, "checks": len(checks)} | found)
        if step == steps:
            break
        if subspace is not None and step % LspSettings().check_frequency == 0:
            begun = time.process_time()
            other = batch_of(sequences.train, steps + step, setting.batch, setting.seed)
            with adam.checking() as results:
                loss_of(network, other).backward()  # type: ignore[no-untyped-call]
            checks.append(time.process_time() - begun)
            biases.append(float(np.mean([each.learned or each.bias for each in results])))
        begun, updated = time.process_time(), updates.seconds
        batch = batch_of(sequences.train, step, setting.batch, setting.seed)
        loss = loss_of(network, batch)
        adam.begin_pass(rate)
        loss.backward()  # type: ignore[no-untyped-call]
        update = updates.seconds - updated
        seconds.append((time.process_time() - begun - update, update))
    in_passes, in_updates = np.median(seconds, axis=0)
    return {
        "curve": curve,
        "pass_seconds": float(in_passes),
        "update_seconds": float(in_updates),
        "check_seconds": checks,
        "biases": biases,
        "sent": sum(layer.optimizer.moments[0].numel() for layer in layers),
    }


def time_to_reach(times: list[float], values: list[float], wanted: float) -> float | None:
    """Return when a curve first reaches a perplexity, between its points; None if it never does."""
    for index, value in enumerate(values):
        if value <= wanted:
            if index == 0:
                return times[0]
            share = (values[index - 1] - wanted) / (values[index - 1] - value)
            return times[index - 1] + share * (times[index] - times[index - 1])
    return None


def timed_curve(row: Row, step: float) -> Curve:
    """Return emulated time, in units, and test perplexity of a run's evaluations.

    Args:
        row: row of the run.
        step: emulated time of a step, in units.
    """
    checks = np.concatenate([[0.0], np.cumsum(check_times(row))])
    times = [point["step"] * step + checks[point["checks"]] for point in row["curve"]]
    return times, [point["test"] for point in row["curve"]]


def check_times(row: Row) -> list[float]:
    """Return the time of each check of a run, in units."""
    return [seconds / row["pass_seconds"] for seconds in row["check_seconds"]]


@dataclass(frozen=True)
class Comparison:
    """Both methods' runs with their best rates, and what they cost.

    Attributes:
        zero: row of Zero-Offload's run.
        lsp: row of LSP-Offload's run.
        zero_step: emulated time of a step of Zero-Offload, in units.
        lsp_step: that of LSP-Offload, without checks.
        linear: row of Zero-Offload's run on the matrices alone, if there is one.
        linear_step: emulated time of its step, in units.
        size: size s of the subspaces; None for the default.
    """

    zero: Row
    lsp: Row
    zero_step: float
    lsp_step: float
    linear: Row | None = None
    linear_step: float = 0.0
    size: int | None = None

    def curves(self) -> tuple[Curve, Curve]:
        """Return the timed curves of Zero-Offload and LSP-Offload."""
        return timed_curve(self.zero, self.zero_step), timed_curve(self.lsp, self.lsp_step)

    def named_curves(self) -> dict[str, Curve]:
        """Return all timed curves by the names that a plot has."""
        zero, lsp = self.curves()
        curves = {"Zero-Offload": zero, f"LSP-Offload, s = {self.size or 'hidden/8'}": lsp}
        if self.linear is not None:
            curves["Zero-Offload, matrices alone"] = timed_curve(self.linear, self.linear_step)
        return curves


def draw(curves: dict[str, Curve], file: Path) -> None:
    """Draw perplexity against emulated time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, (times, values) in curves.items():
        axes.plot(times, values, marker="o", markersize=3, label=name)
    axes.set_xlabel("emulated time / time of a forward and backward pass")
    axes.set_ylabel("perplexity of test texts")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)


def measure(
    folder: Path,
    sequences: Sequences,
    setting: Setting,
    rows: Rows,
    linear: bool = False,
    size: int | None = None,
) -> Comparison:
    """Search the rates, and train with them; what is among the rows is not repeated.

    Args:
        folder: folder of the model.
        sequences: tokens.
        setting: sizes.
        rows: rows so far.
        linear: whether Zero-Offload also trains the matrices alone.
        size: size s of LSP-Offload's subspaces; None for the default.
    """
    compute = rows.find(kind="compute", **asdict(setting))
    if compute is None:
        network = load(folder)
        forward, backward = measure_compute(network, sequences.train, setting)
        compute = rows.add(
            {"kind": "compute", "forward": forward, "backward": backward}
            | {"numbers": sum(weight.numel() for weight in network.parameters())}
            | {"blocks": network.config.num_hidden_layers}
            | asdict(setting)
        )
    forward, backward, blocks = (compute[key] for key in ("forward", "backward", "blocks"))
    unit = forward + backward
    zero_step = emulated_step(forward, backward, 0.0, 1.0, blocks + 2, False)
    # LSP-Offload has no less time: its steps alone take as long, its checks come on top.
    steps = {"zero-offload": setting.zero_steps, "lsp": int(setting.zero_steps * zero_step / unit)}
    if linear:
        steps["linear"] = setting.zero_steps

    def run(method: str, rate: float, count: int, evaluations: int) -> Row:
        rate = float(f"{rate:.3g}")
        key: Row = {"kind": "run", "method": method, "rate": rate, "steps": count}
        key |= {"seed": setting.seed, "size": size if method == "lsp" else None}
        return rows.find(**key) or rows.add(
            key | fine_tune(folder, sequences, setting, method, rate, count, evaluations, size)
        )

    found = {}
    for method in steps:
        prefix = int(steps[method] * setting.search_share)

        def loss(rate: float, method: str = method, prefix: int = prefix) -> float:
            return float(run(method, rate, prefix, 1)["curve"][-1]["validation"])

        rate = search_rate(CENTRES[method], loss)
        found[method] = run(method, rate, steps[method], setting.evaluations)
    zero, lsp = (found[method] for method in ("zero-offload", "lsp"))
    extra = lsp["update_seconds"] / lsp["pass_seconds"] * unit
    share = lsp["sent"] / compute["numbers"]
    lsp_step = emulated_step(forward, backward, extra, share, blocks, True)
    result = Comparison(zero, lsp, zero_step / unit, lsp_step / unit, size=size)
    if linear:
        share = found["linear"]["sent"] / compute["numbers"]
        step = emulated_step(forward, backward, 0.0, share, blocks, False)
        result = replace(result, linear=found["linear"], linear_step=step / unit)
    return result


def render_table(result: Comparison) -> str:
    """Return what the steps take, and a Markdown table of when LSP-Offload is as far."""
    zero, lsp = result.curves()
    checks = check_times(result.lsp)
    lines = [
        f"η {result.zero['rate']:g} and {result.lsp['rate']:g}; a step takes "
        f"{result.zero_step:.2f} and {result.lsp_step:.2f} of a pass, the checks "
        f"{', '.join(f'{each:.0f}' for each in checks)}; "
        f"biases {', '.join(f'{bias:.2f}' for bias in result.lsp['biases'])}\n",
        "| Zero-Offload's perplexity | its time | LSP-Offload's time | ratio "
        "| ratio, projectors learned before |",
        "|---|---|---|---|---|",
    ]
    for when, value in zip(*zero, strict=True):
        other = time_to_reach(*lsp, value)
        shown = "not reached" if other is None else f"{other:.0f}"
        ratios = ["–", "–"]
        if other is not None and when:
            ratios = [f"{other / when:.2f}", f"{max(0.0, other - checks[0]) / when:.2f}"]
        lines.append(f"| {value:.2f} | {when:.0f} | {shown} | {' | '.join(ratios)} |")
    lines.append(f"\nLSP-Offload's last perplexity: {lsp[1][-1]:.2f} at {lsp[0][-1]:.0f}")
    if result.linear is not None:
        times, values = timed_curve(result.linear, result.linear_step)
        lines.append(
            f"\nZero-Offload of the matrices alone, η {result.linear['rate']:g}: "
            f"{values[-1]:.2f} at {times[-1]:.0f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--texts", required=True, type=Path, action="append")
    parser.add_argument("--field", default="text", help="field of a line that has the text")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of batches and projectors")
    parser.add_argument("--linear", action="store_true", help="also Zero-Offload of matrices alone")
    parser.add_argument("--subspace", type=int, help="size s of LSP-Offload's subspaces")
    arguments = parser.parse_args()
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    setting = Setting(seed=arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=False)
    texts = read_texts(arguments.texts, arguments.field)
    sequences = split(texts, tokenizer, setting.context, setting.held_out)
    rows = Rows(arguments.out / "rows.jsonl")
    result = measure(
        arguments.model, sequences, setting, rows, arguments.linear, arguments.subspace
    )
    table = render_table(result)
    (arguments.out / "table.md").write_text(table)
    print(table)
    if arguments.plot:
        draw(result.named_curves(), arguments.plot)


if __name__ == "__main__":
    main()
