"""The overlap of reading and computing, with blocks that take a fixed time to arrive.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.streamed_overlap

Reading is made to wait, as for a disk, and takes no processor: so the answer does not depend on how
busy the machine's disk and processors are.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.speed.shapes import TASK, write_checkpoint
from samara.client.forward.streamed import StreamedBody, StreamedForward
from samara.client.streaming.loading import load_model
from samara.client.streaming.stream import BlockStream, Scheduling
from samara.shared.directions import directions
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.sections import AdapterSettings, ModelSettings

BLOCK_SECONDS, TOKENS, EXAMPLES, TURNS = 0.1, 64, 4, 5


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint("llama-34m", Path(folder), 2**30, torch.float32)
        for overlap in (True, False):
            measure(Path(folder), Scheduling(overlap=overlap))


def measure(folder: Path, scheduling: Scheduling) -> None:
    settings = {"path": str(folder), "stream": "disk"}
    loaded = load_model(ModelSettings.model_validate(settings, by_alias=False, by_name=True))
    assert loaded.store is not None
    base, store = loaded.base, loaded.store
    stream = BlockStream(base, store, scheduling=scheduling)
    adapter = inject(base, AdapterSettings(layers="all", rank=4), 2)
    scorer = CausalScorer(base, TASK, TOKENS)
    forward = StreamedForward(adapter, scorer, StreamedBody(base, 0))
    prompts = [Prompt((tuple(range(12, 12 + TOKENS)),), ((TOKENS - 1,),))] * EXAMPLES
    layout = adapter.layout
    z = directions(np.arange(1, dtype=np.uint64), layout.size, layout.distribution)
    perturbations = Perturbations.from_arrays(layout, np.zeros(layout.size, np.float32), z, 0.01)

    def seconds(of_a_block: float) -> float:
        store.fetch = lambda block, host_buffer: time.sleep(of_a_block)  # type: ignore[method-assign]
        stream.finish_writes()
        begun = time.perf_counter()
        forward.scores(perturbations, prompts)
        return time.perf_counter() - begun

    forward.scores(perturbations, prompts)
    turns = [(seconds(0.0), seconds(BLOCK_SECONDS)) for _ in range(TURNS)]
    compute, step = (statistics.median(times) for times in zip(*turns, strict=True))
    reading = BLOCK_SECONDS * stream.block_count
    print(
        f"overlap {scheduling.overlap}: computing {compute:.2f} s, reading {reading:.2f} s, "
        f"a step {step:.2f} s, {step / max(compute, reading):.2f} of the longer one"
    )


if __name__ == "__main__":
    main()
