"""A readout's program for ONNX Runtime beside the eager model, on one writer's messages.

    python -m benchmarks.devices.onnx_program [--model MODEL]

Representations of the training examples, and the projected gradients of 200 steps, each engine by
its own. The eager client is weight-only INT8 beside int8, and has its weights rounded to 4 bits
beside int4.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from client.training.local_steps import take_local_steps
from client.training.model_runtime import load_run
from devices.phone.export import ProgramShapes, export_program, prepare_model
from devices.phone.manifest import PhoneQuantization
from devices.phone.quantization import round_to_4_bits
from devices.phone.reference_client.examples import read_examples
from devices.phone.reference_client.phone_trainer import PhoneTrainer
from devices.phone.reference_client.readout_calls import ReadoutCalls
from devices.phone.reference_client.readout_program import load_program
from devices.phone.tokenization import examples_as_jsonl
from shared.config import RunConfig
from shared.frames.instructions import Split, make_local_instruction
from shared.replay import digest, zero_state

CLIENTS, STEPS, QUERIES, BATCH = 8, 200, 4, 8
SHAPES = ProgramShapes(QUERIES, 16, 32)
EPSILON, LEARNING_RATE = 0.01, 0.1
QUANTIZATIONS: tuple[PhoneQuantization, ...] = ("none", "int8", "int4")


def compare(model: str, quantization: PhoneQuantization, folder: Path) -> str:
    """Return a line of figures for a program."""
    settings = {"model.path": model, "data.clients": CLIENTS, "threads": 1}
    settings["model.quantization"] = "int8" if quantization == "int8" else "none"
    program_config = {key: value for key, value in settings.items() if "quantization" not in key}
    ready = prepare_model(RunConfig.of(program_config, "benchmark"), quantization)
    file, rows = folder / f"{quantization}.onnx", folder / "rows.jsonl"
    export_program(ready, SHAPES, quantization, "none", file, runtime="onnx")
    runtime, source = load_run(RunConfig.of(settings, "benchmark"))
    data = source.share_of(0, CLIENTS)
    rows.write_text(examples_as_jsonl(data))
    prompts = data.tokenized(Split.TRAIN).prompts
    if quantization == "int4":
        runtime.prepare(data.tokenized(Split.TEST).prompts)
        runtime.features(data.tokenized(Split.TEST).prompts)  # measures the damping, as an export
        round_to_4_bits(runtime.base)
    program = load_program(file)
    trainer = PhoneTrainer(program, read_examples(rows, program.manifest))
    calls = trainer._calls
    assert isinstance(calls, ReadoutCalls)
    scores, features = calls.numbers(Split.TRAIN, np.arange(len(prompts)))
    runtime.prepare(prompts)
    apart = [
        np.abs(scores - runtime.base_scores(prompts)).max(),
        np.abs(features - runtime.features(prompts)).max(),
    ]
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
    expected = take_local_steps(runtime, data, instruction, state).gradients
    g = np.abs(trainer.train(instruction, state, 0).gradients - expected)
    return (
        f"{quantization}: {file.stat().st_size / 2**20:.1f} MiB; scores {apart[0]:.2g}, features "
        f"{apart[1]:.2g}; g {g.max():.2g} / {g.mean():.2g} of {np.sqrt((expected**2).mean()):.2g}"
    )


def main() -> None:
    """Print one line for each quantization."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        for quantization in QUANTIZATIONS:
            print(compare(model, quantization, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
