"""Accuracy, bytes and passes of FedAvg on LoRA and LoRA-FA, for comparison with a Samara run.

FedAvg (McMahan et al., 2017) uses the federation's clients, data shares, rounds, local steps and
batch size. A client takes SGD steps with exact gradients of the adapter, and sends the adapter. The
server returns the mean of the adapters, weighted by numbers of examples. This module computes all
steps in one process, because Samara's frames do not contain weights.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from samara.client.forward.grouping import Schedule
from samara.client.forward.streamed import make_forward_engine
from samara.client.spaces.low_rank import LoRAFASpace, LoRASpace
from samara.client.training.client_data import ClientData, LabelledPrompts
from samara.client.training.model_runtime import LoadedRun, load_run
from samara.client.tuning.training_loss import summed_loss
from samara.shared.errors import ConfigError
from samara.shared.model.cache_key import cache_key
from samara.shared.model.model_folder import model_id_of
from samara.shared.protocol.directions import batch_order, round_root
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import write_durably
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.label_scores import evaluation_column
from samara.simulations.finished import inputs_of

BYTES = 4
BACKWARD = 2
SPACES = {"LoRA": LoRASpace, "LoRA-FA": LoRAFASpace}
MICRO_BATCH = 16
FED_AVG_FILE = "fed_avg.json"
"""File in the run's folder with the results of FedAvg."""


@dataclass(frozen=True)
class Figures:
    """The accuracy and costs of a method.

    Attributes:
        accuracy: accuracy on all clients' test examples.
        auc: mean over the clients of the area under the ROC curve; NaN unless the task has two
            labels.
        bytes_up: bytes that a client sends in a round.
        bytes_down: bytes that a client receives in a round.
        passes: rows of a client in the whole run; a backward pass counts as two rows.
    """

    accuracy: float
    auc: float
    bytes_up: float
    bytes_down: float
    passes: float


class FedAvg:
    """A federation that averages the trained parameters of a low-rank adapter.

    Args:
        run: model and data of the run to compare with.
        space: a name in `SPACES`.
        learning_rate: η of the local steps.
    """

    def __init__(self, run: LoadedRun, space: str, learning_rate: float) -> None:
        self._config = run.runtime.config
        self._rate = learning_rate
        base = run.runtime.base.copy_sharing_weights()
        scorer = run.runtime.scorer
        backend = NumbaBackend(1)
        self._space = SPACES[space](base, self._config.adapter, scorer.labels, backend)
        adapter = self._space.adapter
        cache = run.runtime.trunk_cache
        self._forward = make_forward_engine(base, adapter, scorer, streamed=False, cache=cache)
        count = self._config.data.clients
        self._clients = [run.data.share_of(client, count) for client in range(count)]
        self._passes = 0

    def run(self, on_round: Callable[[int], None] = lambda done: None) -> Figures:
        """Run all rounds, and evaluate the final mean.

        Args:
            on_round: function that is called with the number of completed rounds.
        """
        theta = self._space.values(0, self._space.size).clone()
        counts = [len(client.tokenized(Split.TRAIN).labels) for client in self._clients]
        shares = torch.tensor(counts, dtype=torch.float32) / sum(counts)
        for number in range(self._config.rounds):
            own = torch.stack([self._trained(theta, client, number) for client in self._clients])
            theta = shares @ own
            on_round(number + 1)
        size = BYTES * self._space.size
        clients = len(self._clients)
        return Figures(*self._accuracy(theta), size, size, self._passes / clients)

    def _trained(self, start: torch.Tensor, client: ClientData, number: int) -> torch.Tensor:
        """Take a client's local steps of a round, and return the trained adapter."""
        theta = start.clone()
        train = client.tokenized(Split.TRAIN)
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
        leaf = theta.detach().requires_grad_()
        total = torch.zeros_like(theta)
        for first in range(0, len(batch), MICRO_BATCH):
            some = batch[first : first + MICRO_BATCH]
            with self._space.computing_with(leaf) as adapters:
                prompts = [train.prompts[index] for index in some]
                scores = self._forward.score_pass(adapters, prompts)[0]
            loss = summed_loss(scores, train.labels[some], "cross-entropy") / len(batch)
            total += torch.autograd.grad(loss, leaf)[0]
        return total

    def _accuracy(self, theta: torch.Tensor) -> tuple[float, float]:
        """Return accuracy and AUC of an adapter on the clients' test examples."""
        right, count, areas = 0, 0, []
        for client in self._clients:
            test = client.evaluated(Split.TEST)
            if len(test.labels):
                with self._space.computing_with(theta) as adapters:
                    schedule = Schedule("both", MICRO_BATCH)
                    scores = self._forward.scores(adapters, test.prompts, schedule)[0]
                column = evaluation_column("", scores, test.labels)
                right += int(np.trace(column.counts))
                count += len(test.labels)
                areas += [] if column.auc is None else [column.auc]
        return right / count, float(np.mean(areas)) if areas else math.nan


def zeroth_order(result: RunResult) -> Figures:
    """Return accuracy and costs of a zeroth-order federation, without the bytes of evaluations."""
    evaluations = [entry for entry in result.evaluations if entry.split == "test"]
    costs = [result.training_cost(client) for client in result.clients]
    messages = result.final_round * len(costs)
    column = evaluations[-1].columns["global"]
    return Figures(
        column.accuracy,
        math.nan if column.mean_client_auc is None else column.mean_client_auc,
        sum(cost.bytes_up for cost in costs) / messages,
        sum(cost.bytes_down for cost in costs) / messages,
        result.mean_passes or 0.0,
    )


def fed_avg_beside(
    folder: Path, learning_rates: Sequence[float], on_round: Callable[[str, int, int], None]
) -> dict[str, Figures]:
    """Return the accuracy and costs of a finished run and of FedAvg, by name of the method.

    The results are stored in the run's folder and reused for the same model, task and data.

    Args:
        folder: folder of the run.
        learning_rates: values of η to try for FedAvg's local steps.
        on_round: function that is called with the name of the method, the number of its completed
            rounds, and the number of all rounds.

    Raises:
        ConfigError: if FedAvg cannot train the run's parameters.
    """
    result = RunResult.read(folder)
    # a result contains the chosen values of automatic settings
    config = RunConfig.of(result.config, str(folder))
    check_fed_avg(config)
    kept = _read(folder / FED_AVG_FILE)
    federation = inputs_of(config) | {
        "settings": config.flat(),
        "model": model_id_of(config.model.path),
        "torch": torch.__version__,
    }

    @lru_cache(1)
    def loaded() -> LoadedRun:
        return load_run(config.with_values({"model.stream": "off"}))

    found = {"zeroth order": zeroth_order(result)}
    for space, rate in product(SPACES, learning_rates):
        name = f"FedAvg, {space}, η = {rate:g}"
        key = cache_key("FedAvg 2", of=federation, space=space, rate=rate).hex()
        if key not in kept:
            on_rounds = partial(_of_method, on_round, name, config.rounds)
            kept[key] = asdict(FedAvg(loaded(), space, rate).run(on_rounds))
            content = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
            write_durably(folder / FED_AVG_FILE, content.encode())
        found[name] = Figures(**kept[key])
    return found


def _of_method(
    on_round: Callable[[str, int, int], None], name: str, rounds: int, done: int
) -> None:
    on_round(name, done, rounds)


def check_fed_avg(config: RunConfig) -> None:
    """Check that a federation can be compared with FedAvg.

    Raises:
        ConfigError: if a setting rules out the comparison; the message names the setting.
    """
    if config.adapter.has_readout:
        raise ConfigError(
            "--fed-avg: FedAvg trains adapters inside the model, but this run has a readout; set "
            "adapter.layers to top:1"
        )
    if config.method in ("local", "cluster"):
        raise ConfigError(
            f"--fed-avg: FedAvg trains one common model, but method {config.method} has none; set "
            "method to global"
        )
    if isinstance(load_task(config.task), GenerationTask):
        raise ConfigError(
            "--fed-avg: FedAvg trains a choice between labels, but this run trains texts; leave "
            "out --fed-avg"
        )


def _read(file: Path) -> dict[str, dict[str, float]]:
    """Return the stored results by key; empty if they are missing or damaged."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def figures_table(rows: Mapping[str, Figures], title: str) -> Table:
    """Return a table of methods with accuracy, AUC, bytes per round, and passes per run."""
    table = Table(title=title, box=None)
    for column in ("method", "accuracy", "AUC", "bytes up", "bytes down", "passes of a client"):
        table.add_column(column, justify="right")
    for name, own in rows.items():
        area = "" if math.isnan(own.auc) else f"{own.auc:.3f}"
        costs = (own.bytes_up, own.bytes_down, own.passes)
        table.add_row(name, f"{own.accuracy:.1%}", area, *(f"{value:,.0f}" for value in costs))
    return table
