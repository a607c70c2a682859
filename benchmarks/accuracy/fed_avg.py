"""Zeroth-order rounds beside FedAvg on LoRA and LoRA-FA: accuracy, bytes and passes in one table.

    python -m benchmarks.accuracy.fed_avg SCENARIO --data DATA --model MODEL --out FOLDER \\
        [--rounds 40] [--seeds 0,1,2] [--learning-rate 0.01] [--set KEY=VALUE]

SCENARIO is a shipped one or a file, with adapters inside the model. FedAvg (McMahan et al., 2017)
has its clients, its shares of the data, as many rounds, local steps and examples of a step: a
client takes SGD steps on true gradients of the adapter, and sends the adapter; the server sends
back the mean by numbers of examples. A number is 4 bytes in each direction. Passes are examples
times perturbations, where a backward pass counts as two. FedAvg is a comparison: no wire of Samara
carries weights.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from client.forward.body import PerturbedBody
from client.forward.grouping import Schedule
from client.forward.resident import ResidentForward
from client.personal.readout_file import load_scorer
from client.spaces.low_rank import LoRAFASpace, LoRASpace
from client.training.client_data import (
    ClientData,
    ClientDataSource,
    ExampleTokenizer,
    LabelledPrompts,
    example_reader,
)
from client.tuning.training_loss import summed_loss
from shared.config import RunConfig, load_scenario
from shared.directions import batch_order, round_root
from shared.frames.instructions import Split
from shared.replay_numba import NumbaBackend
from shared.result import RunResult
from shared.scenarios import scenario_file
from simulations.simulate import simulate

BYTES, BACKWARD = 4, 2
SPACES = {"LoRA": LoRASpace, "LoRA-FA": LoRAFASpace}
MICRO_BATCH = 16


@dataclass(frozen=True)
class Figures:
    """The accuracy of a method and its costs.

    Attributes:
        accuracy: on all clients' test examples.
        bytes_up: bytes that a client sends in a round.
        bytes_down: bytes that a client receives in a round.
        passes: rows of a client in the whole run; a backward pass counts as two.
    """

    accuracy: float
    bytes_up: float
    bytes_down: float
    passes: float


class FedAvg:
    """A federation that averages the trained numbers of a low-rank adapter.

    Args:
        config: settings of the run that it is compared with.
        space: a name in `SPACES`.
        learning_rate: η of the local steps.
    """

    def __init__(self, config: RunConfig, space: str, learning_rate: float) -> None:
        self._config, self._rate = config, learning_rate
        base, task, scorer = load_scorer(config)
        backend = NumbaBackend(1)
        self._space = SPACES[space](base, config.adapter, scorer.labels, backend)
        adapter = self._space.adapter
        self._forward = ResidentForward(adapter, scorer, PerturbedBody(base, adapter.first_block))
        source = ClientDataSource(
            example_reader(task, config.data),
            config.data,
            ExampleTokenizer(scorer),
            config.evaluate.limit,
        )
        count = config.data.clients
        self._clients = [source.share_of(client, count) for client in range(count)]
        self._passes = 0

    def run(self) -> Figures:
        """Run all rounds and evaluate the last mean."""
        theta = self._space.values(0, self._space.size).clone()
        counts = [len(client.tokenized(Split.TRAIN).labels) for client in self._clients]
        shares = torch.tensor(counts, dtype=torch.float32) / sum(counts)
        for number in range(self._config.rounds):
            own = torch.stack([self._trained(theta, client, number) for client in self._clients])
            theta = shares @ own
        size, clients = BYTES * self._space.size, len(self._clients)
        return Figures(self._accuracy(theta), size, size, self._passes / clients)

    def _trained(self, start: torch.Tensor, client: ClientData, number: int) -> torch.Tensor:
        """Take a client's local steps of a round."""
        theta, train = start.clone(), client.tokenized(Split.TRAIN)
        root = round_root(self._config.seed, number, 0)
        for step in range(self._config.steps):
            order = batch_order(root, client.client, step, len(train.labels))
            batch = order[: self._config.batch]
            self._passes += (1 + BACKWARD) * len(batch)
            theta = theta - self._rate * self._gradient(theta, train, batch)
        return theta

    def _gradient(
        self, theta: torch.Tensor, train: LabelledPrompts, batch: NDArray[np.int64]
    ) -> torch.Tensor:
        leaf, total = theta.detach().requires_grad_(), torch.zeros_like(theta)
        for first in range(0, len(batch), MICRO_BATCH):
            some = batch[first : first + MICRO_BATCH]
            with self._space.computing_with(leaf) as adapters:
                prompts = [train.prompts[index] for index in some]
                scores = self._forward.score_pass(adapters, prompts)[0]
            loss = summed_loss(scores, train.labels[some], "cross-entropy") / len(batch)
            total += torch.autograd.grad(loss, leaf)[0]
        return total

    def _accuracy(self, theta: torch.Tensor) -> float:
        right = count = 0
        for client in self._clients:
            test = client.evaluated(Split.TEST)
            if len(test.labels):
                with self._space.computing_with(theta) as adapters:
                    schedule = Schedule("both", MICRO_BATCH)
                    scores = self._forward.scores(adapters, test.prompts, schedule)[0]
                right += int((scores.argmax(axis=1) == test.labels).sum())
                count += len(test.labels)
        return right / count


def zeroth_order(result: RunResult) -> Figures:
    """Return accuracy and costs of the federation itself, without the bytes of evaluations."""
    evaluations = [entry for entry in result.evaluations if entry.split == "test"]
    costs = [result.training_cost(client) for client in result.clients]
    messages = result.final_round * len(costs)
    return Figures(
        evaluations[-1].columns["global"].accuracy,
        sum(cost.bytes_up for cost in costs) / messages,
        sum(cost.bytes_down for cost in costs) / messages,
        result.mean_passes or 0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0])
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of FedAvg's steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    rows: dict[str, list[Figures]] = {}
    for seed in given.seeds:
        own = {"seed": seed, "rounds": given.rounds, "data.path": given.data, "threads": 1}
        own |= {"model.path": given.model, "out": given.out / f"seed-{seed}"}
        settings = [*given.set, *(f"{key}={value}" for key, value in own.items())]
        folder = simulate(load_scenario(scenario_file(given.scenario), settings))
        result = RunResult.read(folder)
        config = RunConfig.of(result.config, str(folder))  # without open values
        if config.adapter.has_readout:
            parser.error("FedAvg trains adapters inside the model: --set adapter.layers=top:1")
        rows.setdefault("zeroth order", []).append(zeroth_order(result))
        for space in SPACES:
            found = FedAvg(config, space, given.learning_rate).run()
            rows.setdefault(f"FedAvg, {space}", []).append(found)
    table = Table(title=f"{given.rounds} rounds, means of {len(given.seeds)} seeds", box=None)
    for column in ("method", "accuracy", "bytes up", "bytes down", "passes of a client"):
        table.add_column(column, justify="right")
    for name, figures in rows.items():
        mean = np.mean([[f.accuracy, f.bytes_up, f.bytes_down, f.passes] for f in figures], axis=0)
        table.add_row(name, f"{mean[0]:.1%}", *(f"{value:,.0f}" for value in mean[1:]))
    Console().print(table)


if __name__ == "__main__":
    main()
