"""Perplexity against emulated time: LSP-Offload and Zero-Offload (the paper's figures 4a and 4b).

    OMP_NUM_THREADS=1 python -m benchmarks.accuracy.offload_perplexity --reviews FILE \\
        --out FOLDER [--plot FILE.png]

FILE is `imdb/train.jsonl.gz`. A small Llama is trained on one half of the reviews, as is its
tokenizer. It is then trained further on the other half, by Zero-Offload on all parameters and by
LSP-Offload on the matrices of its blocks. Learning rates are chosen by the lowest last perplexity
on validation reviews of the second half; curves are those of other ones, the test reviews.

Emulated time is that of `emulated_steps`, in units of a forward and backward pass: what is computed
is the processor time of this run, with the learning of projectors. LSP-Offload takes at least as
much of it as Zero-Offload.

FOLDER has the model, rows.jsonl with a line per run, and table.md; the same command continues.
"""

import argparse
import gzip
import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.accuracy.emulated_steps import emulated_step
from benchmarks.accuracy.pretraining import pace
from benchmarks.accuracy.rows import Row, Rows
from client.offload.layer_update import ImmediateSchedule, LayerUpdate, SubspaceSettings
from client.offload.linear_layers import linear_weights
from client.offload.offloaded_adam import OffloadedAdam

END = "</s>"
RATES = {"zero-offload": (3e-4, 1e-3, 3e-3), "lsp": (1e-3, 3e-3)}


@dataclass(frozen=True)
class Setting:
    """Sizes of model and runs."""

    hidden: int = 128
    blocks: int = 4
    feed_forward: int = 352
    heads: int = 4
    vocabulary: int = 2048
    context: int = 128
    batch: int = 8
    pretraining_steps: int = 1000
    pretraining_rate: float = 3e-3
    reviews: int = 2500
    """Most reviews of each half, which is more than the steps read."""
    zero_steps: int = 120
    evaluations: int = 10
    held_out: int = 48
    """Sequences of validation, and as many of the test."""
    subspace: int = 16
    nonzeros: int = 4
    threshold: float = 0.5
    check_frequency: int = 100
    learning_steps: int = 100
    seed: int = 0


@dataclass(frozen=True)
class Halves:
    """Sequences of tokens, int64 [n, context], of the two halves of the reviews."""

    first: Tensor
    second: Tensor
    validation: Tensor
    test: Tensor


def read_halves(file: Path, setting: Setting) -> tuple[list[str], list[str]]:
    """Return the reviews of the two halves, in an order by hash."""
    with gzip.open(file, "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    texts.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
    middle = len(texts) // 2
    return texts[:middle][: setting.reviews], texts[middle:][: setting.reviews]


def make_halves(file: Path, setting: Setting) -> Halves:
    """Return both halves as the model reads them, with a tokenizer of the first one."""
    from tokenizers import ByteLevelBPETokenizer

    texts, others = read_halves(file, setting)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, setting.vocabulary, special_tokens=[END], show_progress=False
    )

    def sequences(reviews: list[str]) -> Tensor:
        ids = np.concatenate([[0, *each.ids] for each in tokenizer.encode_batch(reviews)])
        whole = len(ids) // setting.context * setting.context
        return torch.from_numpy(ids[:whole].astype(np.int64)).view(-1, setting.context)

    second, count = sequences(others), setting.held_out
    return Halves(sequences(texts), second[2 * count :], second[:count], second[count : 2 * count])


def new_network(setting: Setting) -> Any:
    """An untrained Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(setting.seed)
    config = LlamaConfig(
        vocab_size=setting.vocabulary,
        hidden_size=setting.hidden,
        intermediate_size=setting.feed_forward,
        num_hidden_layers=setting.blocks,
        num_attention_heads=setting.heads,
        num_key_value_heads=setting.heads,
        max_position_embeddings=setting.context,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def batch_of(sequences: Tensor, step: int, setting: Setting) -> Tensor:
    """Return the sequences of a step, in an order that depends on the seed alone."""
    generator = torch.Generator().manual_seed(setting.seed)
    order = torch.randperm(len(sequences), generator=generator)
    start = step * setting.batch % (len(sequences) - setting.batch)
    return sequences[order[start : start + setting.batch]]


def loss_of(network: Any, sequences: Tensor) -> Tensor:
    loss: Tensor = network(input_ids=sequences, labels=sequences).loss
    return loss


@torch.inference_mode()
def perplexity(network: Any, sequences: Tensor) -> float:
    """Return exp of the mean loss of a token."""
    losses = [loss_of(network, part).item() for part in torch.split(sequences, 16)]
    return math.exp(float(np.mean(losses)))


def pretrain(halves: Halves, setting: Setting, folder: Path) -> None:
    """Train a network on the first half, and write its weights."""
    network = new_network(setting)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    for step in range(setting.pretraining_steps):
        for group in optimizer.param_groups:
            group["lr"] = setting.pretraining_rate * pace(step / setting.pretraining_steps, 0.05)
        loss = loss_of(network, batch_of(halves.first, step, setting))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"pretraining, step {step + 1}: loss {loss.item():.3f}", flush=True)
    network.save_pretrained(folder)


def load(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder).eval()


def measure_compute(network: Any, halves: Halves, setting: Setting) -> tuple[float, float]:
    """Return the processor seconds of a forward and of a backward pass over all parameters."""
    seconds = []
    for step in range(12):
        begun = time.process_time()
        loss = loss_of(network, batch_of(halves.second, step, setting))
        between = time.process_time()
        loss.backward()  # type: ignore[no-untyped-call]
        seconds.append((between - begun, time.process_time() - between))
        network.zero_grad()
    forward, backward = np.median(seconds, axis=0)
    return float(forward), float(backward)


def fine_tune(
    folder: Path,
    halves: Halves,
    setting: Setting,
    rate: float,
    steps: int,
    subspace: SubspaceSettings | None,
) -> dict[str, Any]:
    """Train on the second half; return the curve, seconds of a step and of the checks."""
    network = load(folder)
    if subspace is None:
        layers = [LayerUpdate(name, weight) for name, weight in network.named_parameters()]
    else:
        matrices = linear_weights(network.requires_grad_(False))
        layers = [
            LayerUpdate.in_subspace(name, weight, subspace) for name, weight in matrices.items()
        ]
        for weight in matrices.values():
            weight.requires_grad_(True)
    adam = OffloadedAdam(layers, ImmediateSchedule(), subspace)
    every = max(1, steps // setting.evaluations)
    curve: list[dict[str, Any]] = []
    seconds: list[float] = []
    checks: list[float] = []
    biases: list[float] = []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            found = {
                name: perplexity(network, getattr(halves, name)) for name in ("validation", "test")
            }
            curve.append({"step": step, "checks": len(checks)} | found)
        if step == steps:
            break
        if subspace is not None and step % setting.check_frequency == 0:
            begun = time.process_time()
            other = batch_of(halves.second, steps + step, setting)
            with adam.checking() as results:
                loss_of(network, other).backward()  # type: ignore[no-untyped-call]
            checks.append(time.process_time() - begun)
            biases.append(float(np.mean([each.learned or each.bias for each in results])))
        begun = time.process_time()
        loss = loss_of(network, batch_of(halves.second, step, setting))
        adam.begin_pass(rate)
        loss.backward()  # type: ignore[no-untyped-call]
        seconds.append(time.process_time() - begun)
    return {
        "curve": curve,
        "step_seconds": float(np.median(seconds)),
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


def timed_curve(row: Row, step: float, unit: float) -> tuple[list[float], list[float]]:
    """Return emulated time, in units, and test perplexity of a run's evaluations."""
    checks = np.concatenate([[0.0], np.cumsum(row["check_seconds"])])
    times = [(point["step"] * step + checks[point["checks"]]) / unit for point in row["curve"]]
    return times, [point["test"] for point in row["curve"]]


def draw(curves: dict[str, tuple[list[float], list[float]]], file: Path) -> None:
    """Draw perplexity against emulated time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, (times, values) in curves.items():
        axes.plot(times, values, marker="o", markersize=3, label=name)
    axes.set_xlabel("emulated time / time of a forward and backward pass")
    axes.set_ylabel("perplexity, test reviews")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reviews", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    setting = Setting()
    torch.set_num_threads(1)
    halves, model = make_halves(arguments.reviews, setting), arguments.out / "model"
    if not model.exists():
        pretrain(halves, setting, model)
    rows = Rows(arguments.out / "rows.jsonl")
    compute = rows.find(kind="compute")
    if compute is None:
        forward, backward = measure_compute(load(model), halves, setting)
        numbers = sum(weight.numel() for weight in load(model).parameters())
        compute = rows.add(
            {"kind": "compute", "forward": forward, "backward": backward, "numbers": numbers}
            | asdict(setting)
        )
    forward, backward, numbers = (compute[key] for key in ("forward", "backward", "numbers"))
    unit = forward + backward
    zero_step = emulated_step(forward, backward, 0.0, 1.0, setting.blocks + 2, False)
    # LSP-Offload has no less time: its steps alone take as long, its checks come on top.
    steps = {"zero-offload": setting.zero_steps}
    steps["lsp"] = int(setting.zero_steps * zero_step / unit)
    best: dict[str, Row] = {}
    for method, rates in RATES.items():
        found = []
        for rate in rates:
            subspace = SubspaceSettings(
                setting.subspace,
                setting.nonzeros,
                setting.threshold,
                1e-4,
                setting.learning_steps,
                setting.seed,
            )
            row = rows.find(kind="run", method=method, rate=rate)
            row = row or rows.add(
                {"kind": "run", "method": method, "rate": rate}
                | fine_tune(
                    model,
                    halves,
                    setting,
                    rate,
                    steps[method],
                    subspace if method == "lsp" else None,
                )
            )
            found.append(row)
        best[method] = min(found, key=lambda row: row["curve"][-1]["validation"])
    lsp = best["lsp"]
    extra = max(0.0, lsp["step_seconds"] - unit)
    lsp_step = emulated_step(forward, backward, extra, lsp["sent"] / numbers, setting.blocks, True)
    zero = timed_curve(best["zero-offload"], zero_step, unit)
    curves = {
        "Zero-Offload": zero,
        f"LSP-Offload, s = hidden/{setting.hidden // setting.subspace}": timed_curve(
            lsp, lsp_step, unit
        ),
    }
    (reached,) = (curve for name, curve in curves.items() if name.startswith("LSP"))
    lines = [
        f"η {best['zero-offload']['rate']:g} and {lsp['rate']:g}; a step takes "
        f"{zero_step / unit:.2f} and {lsp_step / unit:.2f} of a pass, the checks "
        f"{', '.join(f'{seconds / unit:.0f}' for seconds in lsp['check_seconds'])}; "
        f"biases {', '.join(f'{bias:.2f}' for bias in lsp['biases'])}\n",
        "| Zero-Offload's perplexity | its time | LSP's time | ratio |",
        "|---|---|---|---|",
    ]
    for when, value in zip(*zero, strict=True):
        other = time_to_reach(*reached, value)
        ratio = f"{other / when:.2f}" if other is not None and when else "–"
        shown = "never" if other is None else f"{other:.0f}"
        lines.append(f"| {value:.2f} | {when:.0f} | {shown} | {ratio} |")
    lines.append(f"\nLSP-Offload's last perplexity: {reached[1][-1]:.2f} at {reached[0][-1]:.0f}")
    table = "\n".join(lines) + "\n"
    (arguments.out / "table.md").write_text(table)
    print(table)
    if arguments.plot:
        draw(curves, arguments.plot)


if __name__ == "__main__":
    main()
