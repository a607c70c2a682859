"""Accuracy along a run: replay its ledger and evaluate the global model every few rounds.

    python -m benchmarks.accuracy.ledger_curve RUN [--every 10]

Reads model, data and settings from the run's result.json; all clients' examples together.
"""

import argparse
from pathlib import Path

from client.training.model_runtime import evaluation_column, load_run
from server.store import replay_run
from shared.config import RunConfig
from shared.frames.instructions import Split
from shared.result import read_result
from shared.tasks.metrics import Confusion


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=int, default=10)
    arguments = parser.parse_args()
    whole = {"data.partition": "iid", "data.clients": 1}
    config = RunConfig.of(read_result(arguments.run)["config"] | whole, str(arguments.run))
    runtime, source = load_run(config)
    everything = source.share_of(0, 1)
    print("round  split       accuracy  loss")
    for step in replay_run(arguments.run):
        if step.record is None or step.round % arguments.every:
            continue
        for split in (Split.VALIDATION, Split.TEST):
            data = everything.tokenized(split)
            scores = runtime.scores(step.state, data.prompts)
            result = evaluation_column("", scores, data.labels)
            accuracy = Confusion(result.counts).accuracy
            name = split.name.lower()
            print(f"{step.round:5d}  {name:10s}  {accuracy:.2%}    {result.mean_loss:.4f}")


if __name__ == "__main__":
    main()
