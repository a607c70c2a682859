"""The work of a readout's program with calls as long as their longest example, and without.

    python -m benchmarks.devices.phone_lengths [--model MODEL] [--task sst2] --data DATA [--seq 64]

Exports a program, and lets a phone's examples go through it twice: by calls of any length, and by
calls of one length, as a manifest without `least_sequence` says. Prints as JSON the bytes of the
program, the tokens that went through the model, the processor's seconds of it, and the largest
difference of a score and of a feature.
"""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.readout_calls import KEPT_BYTES, ReadoutCalls
from samara.devices.phone.reference_client.readout_program import ReadoutProgram, load_program
from samara.devices.phone.tokenization import write_examples
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split


def passed(program: Path, rows: Path) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Let all examples through the model; returns their numbers, and figures."""
    loaded = load_program(program)
    assert isinstance(loaded, ReadoutProgram)
    examples = read_examples(rows, loaded.manifest)
    calls, begun = ReadoutCalls(loaded, examples, KEPT_BYTES), time.process_time()
    numbers = [
        np.concatenate(calls.numbers(split, np.arange(len(examples[split]))), axis=1)
        for split in Split
    ]
    seconds = time.process_time() - begun
    lengths = np.concatenate([examples[split].lengths for split in Split])
    return np.concatenate(numbers), {
        "examples": calls.example_passes,
        "tokens of the examples": int(lengths.sum()),
        "longest example": int(lengths.max()),
        "tokens through the model": calls.token_passes,
        "processor seconds": round(seconds, 1),
    }


def main(
    data: Annotated[str, typer.Option(help="File, folder, or `messages`.")],
    model: str = "embedded",
    task: str = "sst2",
    seq: int = 64,
    batch: int = 16,
    limit: Annotated[int, typer.Option(help="Examples of a client at most.")] = 600,
) -> None:
    """Print as JSON what both programs compute."""
    flat = {"model.path": model, "task": task, "data.path": data, "data.clients": 1}
    config = RunConfig.of(flat | {"model.max-length": seq}, "phone lengths")
    figures, found = dict[str, Any](), list[np.ndarray[Any, Any]]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file, rows = folder / "any length.pte", folder / "rows.jsonl"
        ready, shapes = prepare_model(config, "none"), ProgramShapes(2, batch, seq)
        manifest = export_program(ready, shapes, "none", "xnnpack", file)
        figures["bytes of the program"] = file.stat().st_size
        write_examples(config, file, None, rows)
        kept = rows.read_text(encoding="utf-8").splitlines(keepends=True)[:limit]
        rows.write_text("".join(kept), encoding="utf-8")
        other = folder / "one length.pte"
        other.hardlink_to(file)
        replace(manifest, least_sequence=0).write(other)
        for program in (other, file):
            numbers, figures[program.stem] = passed(program, rows)
            found.append(numbers)
    labels = found[0].shape[1] - ready.base.features
    difference = np.abs(found[1] - found[0])
    figures["largest difference of a score"] = float(difference[:, :labels].max())
    figures["largest difference of a feature"] = float(difference[:, labels:].max())
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    typer.run(main)
