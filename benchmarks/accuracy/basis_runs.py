"""Accuracy of adapters in an informed basis and without one, by the passes of a client.

    python -m benchmarks.accuracy.basis_runs --data SST2 --model MINILM --basis FILE --out FOLDER

Eight clients with adapters on the top two layers (rank 4), by `samara simulate`, for several run
seeds. FILE is what `samara adapter basis` writes for these adapters. A pass is one example under
one perturbation; validations are not counted. Finished runs in FOLDER are not repeated, and
unfinished ones are continued.
"""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.ledger_curve import evaluate_rounds
from samara.shared.config import load_scenario
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import Confusion
from samara.shared.result import read_result
from samara.simulations.simulate import simulate

SCENARIO = Path(__file__).parents[2] / "simulations" / "scenarios" / "sst2.toml"


@dataclass(frozen=True)
class Condition:
    """A way to spend passes.

    Attributes:
        basis: whether the adapters are trained in the basis.
        differences: ``central`` or ``forward``.
        steps: local steps per round.
        queries: directions per step.
        batch: examples per step.
        learning_rate: η, or ``auto``.
    """

    basis: bool
    differences: str
    steps: int
    queries: int
    batch: int
    learning_rate: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read a condition such as ``basis,forward,4,8,16,0.8``."""
        basis, differences, steps, queries, batch, learning_rate = text.split(",")
        sizes = int(steps), int(queries), int(batch)
        return cls(basis == "basis", differences, *sizes, learning_rate)

    def __str__(self) -> str:
        kind = "basis" if self.basis else "isotropic"
        sizes = f"{self.steps},{self.queries},{self.batch}"
        return f"{kind},{self.differences},{sizes},{self.learning_rate}"

    @property
    def passes(self) -> int:
        """The passes of a client in a round, with η set by hand."""
        losses = self.queries + 1 if self.differences == "forward" else 2 * self.queries
        return self.steps * losses * self.batch


USUAL = (
    Condition(True, "forward", 4, 8, 16, "0.8"),
    Condition(False, "central", 4, 8, 8, "0.8"),
)


def settings_of(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the settings of model, data and adapter that all conditions share."""
    return {
        "task": arguments.task,
        "data.path": arguments.data,
        "model.path": arguments.model,
        "adapter.layers": "top:2",
        "adapter.rank": 4,
        "adapter.alpha": 4,
        "threads": 1,
    }


def run_condition(arguments: argparse.Namespace, condition: Condition, seed: int) -> Path:
    """Return the folder of a run, which is made unless it exists."""
    out: Path = arguments.out / f"{condition}-{seed}"
    if (out / "result.json").exists():
        return out
    settings = settings_of(arguments) | {
        "adapter.basis": arguments.basis if condition.basis else "",
        "steps": condition.steps,
        "queries": condition.queries,
        "batch": condition.batch,
        "differences": condition.differences,
        "learning-rate": condition.learning_rate,
        "rounds": max(arguments.budgets) // condition.passes,
        "evaluate.every": 9,
        "seed": seed,
        "out": out,
    }
    config = load_scenario(SCENARIO, [f"{key}={value}" for key, value in settings.items()])
    return simulate(config)


def curve_of(run: Path, condition: Condition, budgets: Sequence[int]) -> list[tuple[float, float]]:
    """Return validation and test accuracy at the start and after each budget was spent."""
    start = {e["split"]: e for e in read_result(run)["evaluations"] if e["round"] == 0}
    zero_shot = [start[name]["columns"]["global"]["accuracy"] for name in ("validation", "test")]
    rounds = [budget // condition.passes for budget in budgets]
    found = {
        (number, split): Confusion(result.counts).accuracy
        for number, split, result in evaluate_rounds(run, lambda number: number in rounds)
    }
    splits = (Split.VALIDATION, Split.TEST)
    later = [tuple(found[number, split] for split in splits) for number in rounds]
    return [tuple(zero_shot), *later]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("--data", "--model", "--basis"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budgets", type=int, nargs="*", default=[2500, 5200, 10400, 16000])
    parser.add_argument("--conditions", type=Condition.parse, nargs="*", default=USUAL)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    table = Table(title="validation / test accuracy, %, by passes of a client", box=None)
    for column in ("condition", "seed", "0", *map(str, arguments.budgets)):
        table.add_column(column, justify="right", no_wrap=True)
    # All conditions of a seed come before the next seed: unfinished work compares conditions too.
    for seed in range(arguments.seeds):
        for condition in arguments.conditions:
            run = run_condition(arguments, condition, seed)
            cells = [f"{v:.1%} / {t:.1%}" for v, t in curve_of(run, condition, arguments.budgets)]
            print(condition, seed, *cells, flush=True)
            table.add_row(str(condition), str(seed), *cells)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
