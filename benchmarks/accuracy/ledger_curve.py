"""Accuracy along a run: replay its ledger and evaluate the global model every few rounds.

    python -m benchmarks.accuracy.ledger_curve RUN [--every 10]

Reads model, data and settings from the run's result.json; all clients' examples together.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from samara.client.training.model_runtime import load_run
from samara.server.store import replay_run
from samara.shared.config import RunConfig
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import Confusion, evaluation_column
from samara.shared.result import read_result


def evaluate_rounds(
    run: Path, is_wanted: Callable[[int], bool]
) -> Iterator[tuple[int, Split, EvaluationColumn]]:
    """Yield round, split and result of the global model after some rounds of a run.

    Args:
        run: folder of a finished run.
        is_wanted: function that returns whether a round is evaluated.
    """
    whole = {"data.partition": "iid", "data.clients": 1}
    config = RunConfig.of(read_result(run)["config"] | whole, str(run))
    runtime, source = load_run(config)
    everything = source.share_of(0, 1)
    for step in replay_run(run):
        if step.record is None or not is_wanted(step.round):
            continue
        for split in (Split.VALIDATION, Split.TEST):
            data = everything.tokenized(split)
            yield (
                step.round,
                split,
                evaluation_column("", runtime.scores(step.state, data.prompts), data.labels),
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--every", type=int, default=10)
    arguments = parser.parse_args()
    print("round  split       accuracy  loss")
    for number, split, result in evaluate_rounds(
        arguments.run, lambda number: number % arguments.every == 0
    ):
        accuracy = Confusion(result.counts).accuracy
        name = split.name.lower()
        print(f"{number:5d}  {name:10s}  {accuracy:.2%}    {result.mean_loss:.4f}")


if __name__ == "__main__":
    main()
