"""A program for ONNX Runtime beside the eager model, on one writer's messages.

    python -m benchmarks.devices.onnx_program [--model MODEL] [--layers readout|top:1]

Representations of the training examples, which only a readout has, and losses and projected
gradients of 200 steps, each engine by its own. The eager client is weight-only INT8 beside int8,
and has its weights rounded as the program beside float16 and int4.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
from samara.devices.phone.manifest import PhoneQuantization
from samara.devices.phone.quantization import (
    round_to_4_bits,
    round_to_float16,
    round_tokens_to_8_bits,
)
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_calls import ReadoutCalls
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split, make_local_instruction
from samara.shared.model.loading import BaseModel
from samara.shared.replay import digest, zero_state

CLIENTS, STEPS, QUERIES, BATCH = 8, 200, 4, 8
FIRST = 20
"""Steps in which what the engines round apart has hardly grown."""
SHAPES = ProgramShapes(QUERIES, 16, 32)
EPSILON, LEARNING_RATE = 0.01, 0.1
ROUNDINGS: dict[PhoneQuantization, tuple[Callable[[BaseModel], None], ...]] = {
    "none": (),
    "float16": (round_to_float16,),
    "int8": (round_tokens_to_8_bits,),
    "int4": (round_to_4_bits, round_tokens_to_8_bits),
}
"""Changes of the weights by an export."""


def compare(model: str, layers: str, quantization: PhoneQuantization, folder: Path) -> str:
    """Return a line of figures for a program."""
    settings = {"model.path": model, "data.clients": CLIENTS, "threads": 1}
    settings["adapter.layers"] = layers
    settings["model.quantization"] = "int8" if quantization == "int8" else "none"
    program_config = {key: value for key, value in settings.items() if "quantization" not in key}
    ready = prepare_model(RunConfig.of(program_config, "benchmark"), quantization)
    file, rows = folder / f"{quantization}.onnx", folder / "rows.jsonl"
    export_program(ready, SHAPES, quantization, "none", file, runtime="onnx")
    runtime, source = load_run(RunConfig.of(settings, "benchmark"))
    data = source.share_of(0, CLIENTS)
    rows.write_text(examples_as_jsonl(data))
    prompts = data.tokenized(Split.TRAIN).prompts
    if layers == "readout":
        runtime.prepare(data.tokenized(Split.TEST).prompts)
        runtime.features(data.tokenized(Split.TEST).prompts)  # measures the damping, as an export
    for rounding in ROUNDINGS[quantization]:
        rounding(runtime.base)
    program = load_program(file)
    trainer = PhoneLearner(program, read_examples(rows, program.manifest))
    apart = ""
    if isinstance(calls := trainer._calls, ReadoutCalls):
        scores, features = calls.numbers(Split.TRAIN, np.arange(len(prompts)))
        runtime.prepare(prompts)
        apart = (
            f"scores {np.abs(scores - runtime.base_scores(prompts)).max():.2g}, "
            f"features {np.abs(features - runtime.features(prompts)).max():.2g}; "
        )
    state = zero_state(runtime.layout.size)
    instruction = make_local_instruction(
        *(1, 0, 0),
        steps=STEPS,
        queries=QUERIES,
        batch=BATCH,
        epsilon=EPSILON,
        learning_rate=LEARNING_RATE,
        clip=0.0,
        layout_hash=runtime.layout.hash,
        start_digest=digest(runtime.layout.hash, state),
    )
    expected = take_local_steps(runtime, data, instruction, state)
    found = trainer.take_steps(instruction, state)
    g = np.abs(found.gradients - expected.gradients)
    size = file.stat().st_size + sum(one.bytes for one in program.manifest.weights)
    return (
        f"{quantization}: {size / 2**20:.1f} MiB; {apart}"
        f"mean loss {abs(found.mean_loss - expected.mean_loss):.2g}; g of the first {FIRST} steps "
        f"{g[:FIRST].max():.2g}, of all {g.max():.2g} / "
        f"{g.mean():.2g} of {np.sqrt((expected.gradients**2).mean()):.2g}"
    )


def main() -> None:
    """Print one line for each quantization."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--layers", choices=("readout", "top:1"), default="readout")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ROUNDINGS:
            print(compare(given.model, given.layers, quantization, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
