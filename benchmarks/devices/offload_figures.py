"""Figures of the LSP-Offload paper beside predictions of its formulas and `samara device estimate`.

    python -m benchmarks.devices.offload_figures

Chen et al., "Practical offloading for fine-tuning LLM on commodity GPU via learned subspace
projectors". The first group of predictions uses the paper's own times of the stages (tables 1 and
4). The second group uses only the shapes of the models and the profiles of the paper's two
machines.
"""

from dataclasses import replace
from typing import NamedTuple

from samara.client.offload.iteration_time import (
    StageSeconds,
    layerwise_iteration,
    zero_offload_iteration,
)
from samara.devices.hardware.built_in_shapes import BUILT_IN
from samara.devices.hardware.model_shape import Linear, ModelShape, llama_shape
from samara.devices.hardware.offload_estimate import (
    STATES,
    FirstOrderMethod,
    FirstOrderWorkload,
    estimate_first_order,
    trained_parameters,
)
from samara.devices.hardware.profile import load_device

COMPUTE_7B = 0.93 / 1.11
"""Seconds of a forward and backward pass of Llama-7B. In section 3.1, 0.93 s is 1.11 times as long.
"""


class Figure(NamedTuple):
    """A figure of the LSP-Offload paper, and the prediction for it."""

    what: str
    where: str
    paper: float
    predicted: float

    @property
    def row(self) -> str:
        """Row of the table in docs/measurements/lsp.md."""
        error = self.predicted / self.paper - 1
        return (
            f"| {self.what} | {self.where} | {self.paper:.3g} | {self.predicted:.3g} "
            f"| {error:+.0%} |"
        )


def gpt2_shape(name: str, layers: int, hidden: int) -> ModelShape:
    """Return the shape of a GPT-2, in which one matrix computes queries, keys and values."""
    block = (
        Linear(hidden, 3 * hidden, adapted=True, positionwise=False),
        Linear(hidden, hidden, adapted=False, positionwise=True),
        Linear(hidden, 4 * hidden, adapted=False, positionwise=True),
        Linear(4 * hidden, hidden, adapted=False, positionwise=True),
    )
    vocabulary, context = 50_257, 1_024
    other = (vocabulary + context) * hidden + layers * 13 * hidden + 2 * hidden
    heads = hidden // 64
    return ModelShape(name, (block,) * layers, hidden, heads, hidden, vocabulary, other, context)


def roberta_base_shape() -> ModelShape:
    """Return the shape of RoBERTa-base."""
    hidden = Linear(768, 768, adapted=True, positionwise=False)
    wide = Linear(768, 3_072, adapted=False, positionwise=True)
    block = (*(hidden,) * 4, wide, Linear(3_072, 768, adapted=False, positionwise=True))
    other = (50_265 + 514 + 1) * 768 + 12 * (9 * 768 + 3_072 + 4 * 768) + 2 * 768
    return ModelShape("roberta-base", (block,) * 12, 768, 12, 768, 0, other, 512)


LLAMA_7B = llama_shape("llama-7b", BUILT_IN["llama2-7b"])
LLAMA_3B = llama_shape(
    "llama-3b",
    {
        **BUILT_IN["llama2-7b"],
        "hidden_size": 3_200,
        "intermediate_size": 8_640,
        "num_hidden_layers": 26,
    },
)
GPT2_1_3B = gpt2_shape("gpt2-1.3b", 40, 1_600)
GPT2_774M = gpt2_shape("gpt2-774m", 36, 1_280)
WORKSTATION, LAPTOP = load_device("rtx-4090-workstation"), load_device("rtx-a1000-laptop")


def from_the_papers_times() -> list[Figure]:
    """Return the figures that follow from tables 1 and 4."""
    seven = StageSeconds(
        forward=COMPUTE_7B * 1.7 / 5.2,
        backward=COMPUTE_7B * 3.5 / 5.2,
        offload=14 / 15,
        update=32 * 0.06,
        upload=14 / 15,
        layers=32,
    )
    small = StageSeconds(
        forward=40 * 0.0045,
        backward=40 * 0.0087,
        offload=2.6 / 12.5,
        update=40 * 0.08,
        upload=2.6 / 12.5,
        layers=40,
    )
    compute = seven.compute
    swapped = (14 + 42 + 8 - 24) / 15
    zero = zero_offload_iteration(seven)
    lsp, lsp_small = _compressed(seven, LLAMA_7B), _compressed(small, GPT2_1_3B)
    native = compute + 32 * 0.001
    return [
        Figure("7B: share of its memory that 24 GB hold", "3.1", 0.375, 24 / (14 + 42 + 8)),
        Figure("7B: s to swap the rest, each way", "3.1", 2.67, swapped),
        Figure("7B: swap / compute", "3.1", 3.2, swapped / compute),
        Figure("7B: s of Zero-Offload's transfers, each way", "3.1", 0.93, seven.offload),
        Figure(
            "7B: slowdown if transfers follow compute", "3.1", 2.11, 1 + seven.offload / compute
        ),
        Figure("7B: s of the host's update", "3.1", 1.92, seven.update),
        Figure("7B: slowdown if updates follow compute", "3.1", 2.14, 1 + seven.update / compute),
        Figure("7B: s of forward and backward of a layer on the host", "3.1", 4.9, 1.61 + 3.3),
        Figure("7B: the same / compute", "3.1", 3.21, (1.61 + 3.3) / compute),
        Figure("7B: s of compute, by layer times", "table 1", COMPUTE_7B, 32 * 0.0052),
        Figure("7B: LSP / Zero-Offload, s = 512", "fig. 4c", 3.33, zero / layerwise_iteration(lsp)),
        Figure(
            "7B: LSP / resident, s = 512",
            "section 6",
            1.02,
            native / layerwise_iteration(lsp),
        ),
        Figure(
            "7B: layer-wise / Zero's schedule (average of four)",
            "section 6",
            1.18,
            zero / layerwise_iteration(seven),
        ),
        Figure(
            "1.3B: layer-wise / Zero's schedule (average of four)",
            "section 6",
            1.18,
            zero_offload_iteration(small) / layerwise_iteration(small),
        ),
        Figure(
            "1.3B: Zero-Offload / compute (largest of fig. 2)",
            "3.2",
            4.28,
            zero_offload_iteration(small) / small.compute,
        ),
        Figure(
            "1.3B: LSP / Zero-Offload, s = 512",
            "fig. 4c",
            3.09,
            zero_offload_iteration(small) / layerwise_iteration(lsp_small),
        ),
    ]


def from_shapes_and_profiles() -> list[Figure]:
    """Return the figures that follow from the models' shapes and the profiles."""
    roberta = roberta_base_shape()
    everything = roberta.block_weights + roberta.other_weights
    lsp = FirstOrderWorkload("lsp")
    rows = sum(linear.inputs + linear.outputs for linear in LLAMA_7B.blocks[0]) * 32
    projectors = 16 * 2 * sum(linear.inputs + linear.outputs for linear in roberta.blocks[0]) * 12
    adam = estimate_first_order(LLAMA_7B, WORKSTATION, FirstOrderWorkload("fo-adam", batch=4))
    small = estimate_first_order(GPT2_1_3B, LAPTOP, FirstOrderWorkload("fo-adam"))
    return [
        Figure("7B: GB of weights", "table 1", 14, adam.memory.weights / 1e9),
        Figure(
            "7B: GB of gradients and moments",
            "table 1",
            42,
            STATES * adam.memory.weights / 1e9,
        ),
        Figure("1.3B: GB of weights", "table 4", 2.6, small.memory.weights / 1e9),
        Figure(
            "1.3B: GB of gradients and moments",
            "table 4",
            7.8,
            STATES * small.memory.weights / 1e9,
        ),
        Figure("fp32 Adam: 10⁹ parameters in 24 GB", "1", 1.5, 24 / (4 * (1 + STATES))),
        Figure("7B: GB of LoRA's matrices at rank 512", "4.1", 3, rows * 512 * 2 / 1e9),
        Figure("RoBERTa-base: MB with Adam", "table 3", 747, everything * 2 * 3 / 1e6),
        Figure("RoBERTa-base: MB with LSP", "table 3", 253, (everything * 2 + projectors) / 1e6),
        Figure(
            "RoBERTa-base: 10⁶ numbers trained by LSP",
            "table 3",
            18,
            trained_parameters(roberta, lsp) / 1e6,
        ),
        Figure("7B: s of compute at 2,048 tokens (not in the paper)", "3.1", COMPUTE_7B, _plain()),
        *(
            Figure(f"{name}: LSP / Zero-Offload, s = 512{said}", "fig. 4c", paper, ratio)
            for name, said, paper, ratio in (
                ("774M", ", batch 4", 2.03, _ratio(GPT2_774M, 4)),
                ("1.3B", ", batch assumed 2", 3.09, _ratio(GPT2_1_3B, 2)),
                ("3B", ", batch 16", 2.04, _ratio(LLAMA_3B, 16)),
                ("7B", ", batch assumed 4", 3.33, _ratio(LLAMA_7B, 4)),
            )
        ),
    ]


def _compressed(stages: StageSeconds, shape: ModelShape) -> StageSeconds:
    """Return stages with the transfers and updates of LSP instead of Zero-Offload."""
    share = trained_parameters(shape, FirstOrderWorkload("lsp")) / (
        shape.block_weights + shape.other_weights
    )
    return replace(
        stages,
        offload=stages.offload * share,
        update=stages.update * share,
        upload=stages.upload * share,
    )


def _plain() -> float:
    work = FirstOrderWorkload("fo-adam", batch=4, checkpointing=False)
    return estimate_first_order(LLAMA_7B, WORKSTATION, work).stages.compute


def _ratio(shape: ModelShape, batch: int) -> float:
    """Return LSP's throughput over Zero-Offload's, at 512 tokens with checkpointing (section 5)."""
    device = LAPTOP if shape.name.startswith("gpt2") else WORKSTATION
    methods: tuple[FirstOrderMethod, ...] = "zero-offload", "lsp"
    zero, lsp = (
        estimate_first_order(shape, device, FirstOrderWorkload(method, batch=batch)).seconds
        for method in methods
    )
    return zero / lsp


def main() -> None:
    for group in (from_the_papers_times(), from_shapes_and_profiles()):
        print("| figure | where | paper | predicted | error |\n|---|---|---|---|---|")
        print("\n".join(figure.row for figure in group) + "\n")


if __name__ == "__main__":
    main()
