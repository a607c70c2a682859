"""The worth of buckets: a readout's accuracy while hostile clients turn their reports around.

    python -m benchmarks.privacy.hostile_clients --out FOLDER [--data DATA --model MODEL] \\
        [--sets sst2] [--clients 60] [--hostile 0,1,3] [--buckets 0,6] [--seeds 0,1,2]

Data, rounds, clip and step size are those of `benchmarks.privacy.accuracy`. A hostile client sends
its vector with the opposite sign and `STRENGTH` times as long, which under masks nobody sees. The
sum of a round is then still no longer than honest reports could make it. Noise is central, of NOISE
times the sensitivity, which is none to speak of, or that of ε = 8.

FOLDER/hostile.jsonl has a line per run; the same command continues, and prints the table.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.privacy.accuracy import (
    ROUNDS,
    SCALARS,
    examples_of,
    judge,
    make_parser,
    mean_and_spread,
    texts_of,
)
from benchmarks.privacy.federation import Federation, make_config, public_norms, vector_reports
from benchmarks.privacy.texts import SplitTexts, joined
from samara.server.rounds.replies import ValidatedReplies
from samara.shared.frames.instructions import Split, TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import VectorReport
from samara.shared.round_delta import RoundDelta
from samara.shared.step_size import Observation

STRENGTH = 10
NOISE = 0.001


class AttackedFederation(Federation):
    """The rounds of a run in which the first clients are hostile.

    Attributes:
        hostile: their number.
    """

    hostile = 0

    def _aggregate(
        self, instruction: TrainInstruction, reports: Sequence[Report]
    ) -> tuple[RoundDelta, Observation | None]:
        assert self._private is not None, "only vectors can be hidden"
        answers = dict(vector_reports(reports, self._config.privacy.clip).answers)
        for client in sorted(answers)[: self.hostile]:
            own = answers[client]
            answers[client] = VectorReport(own.token, client, -STRENGTH * own.vector)
        replies = ValidatedReplies[VectorReport](answers=answers)
        made = self._private.aggregate(instruction, replies, 1, len(reports))
        return made.delta, made.observation


def measure(texts: SplitTexts, cell: Row) -> Row:
    """Return the accuracy of a run and of its start.

    Args:
        texts: texts of the clients.
        cell: number of hostile clients, bucket (0 for none), ε (None for next to no noise), seed.
    """
    own: dict[str, Any] = {"rounds": ROUNDS, "steps": 1, "queries": SCALARS, "seed": cell["seed"]}
    norms = public_norms(joined(texts[Split.VALIDATION]), examples_of(texts), make_config(own))
    own |= {"privacy.mode": "central", "privacy.clip": float(np.median(norms))}
    own |= {"privacy.bucket": cell["bucket"], "cohort.minimum": max(1, cell["bucket"])}
    own |= (
        {"privacy.noise-multiplier": NOISE}
        if cell["epsilon"] is None
        else {"privacy.epsilon": cell["epsilon"]}
    )
    with TemporaryDirectory() as folder:
        federation = AttackedFederation(make_config(own), texts[Split.TRAIN], Path(folder))
        federation.hostile = cell["hostile"]
        federation.run()
    start = judge(texts, np.zeros(len(federation.numbers)))
    return {"zero_shot": start["accuracy"]} | judge(texts, federation.numbers)


def table(rows: Iterable[Row]) -> str:
    """Return the accuracy on test texts, mean and spread over seeds, as Markdown."""
    groups: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["set"], row["clients"], row["epsilon"], row["bucket"], row["hostile"]].append(
            row
        )
    lines = [
        "| data | clients | ε | bucket | hostile | seeds | zero-shot | accuracy | loss |",
        "|---" * 9 + "|",
    ]
    for (name, clients, epsilon, bucket, hostile), own in groups.items():
        lines.append(
            f"| {name} | {clients:,} | {'none' if epsilon is None else epsilon} | {bucket or '–'} "
            f"| {hostile} | {len(own)} | {np.mean([row['zero_shot'] for row in own]):.1%} | "
            f"{mean_and_spread([row['accuracy'] for row in own])} | "
            f"{np.mean([row['loss'] for row in own]):.3f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--sets", type=listed, default=["sst2"])
    parser.add_argument("--clients", type=listed, default=["60"])
    parser.add_argument("--hostile", type=listed, default=["0", "1", "3"])
    parser.add_argument("--buckets", type=listed, default=["0", "6"])
    parser.add_argument("--epsilons", type=listed, default=["none", "8"])
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    given = parser.parse_args(arguments)
    rows = Rows(given.out / "hostile.jsonl")
    for name, clients, seed in product(given.sets, given.clients, given.seeds):
        texts = texts_of(name, int(clients), int(seed), given)
        for epsilon, bucket, hostile in product(given.epsilons, given.buckets, given.hostile):
            cell: Row = {
                "set": name,
                "clients": int(clients),
                "epsilon": None if epsilon == "none" else float(epsilon),
                "bucket": int(bucket),
                "hostile": int(hostile),
                "seed": int(seed),
            }
            if not rows.find(**cell):
                rows.add(cell | measure(texts, cell))
    print(table(rows))


if __name__ == "__main__":
    main()
