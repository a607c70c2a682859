"""The local steps of a round, of one client or of many that share passes over the weights.

Every client keeps what is its own: examples, order of batches, directions, and the state that its
steps move. Only the passes are shared. So the reports of clients that step together are those of
clients that step alone, but for the rounding of larger matrix products (docs/fleet.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import LossRequest, run_estimators
from client.forward.grouping import Schedule, perturbations_per_pass
from client.forward.resident import have_equal_row_counts
from client.training.local_step_plan import LocalStepPlan
from shared.errors import SamaraError
from shared.frames.instructions import Split, TrainInstruction, token_of
from shared.frames.report import Report
from shared.model.lora_fa import Perturbations
from shared.replay import replay, to_float32
from shared.tasks.objectives import cross_entropy

if TYPE_CHECKING:
    from client.training.trainer import Examples, Trainer


@dataclass(frozen=True, eq=False)
class _Tried:
    """Which numbers are tried: bool [d], None for all; the others are those of a state."""

    start: NDArray[np.int64]
    moving: NDArray[np.bool_] | None

    def center(self, state: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [d], around which a client in a state tries directions."""
        return state if self.moving is None else np.where(self.moving, state, self.start)

    def along(self, z: NDArray[np.int16]) -> NDArray[np.int16]:
        """Directions [n, d] without the numbers that stay."""
        return z if self.moving is None else z * self.moving


@dataclass(eq=False)
class _Client:
    """A client on its way through the steps of a round."""

    data: "Examples"
    steps: LocalStepPlan
    state: NDArray[np.int64]
    error: SamaraError | None = None


def local_steps(
    trainer: "Trainer",
    instruction: TrainInstruction,
    state: NDArray[np.int64],
    indices: Sequence[int],
    clients: int,
    moving: NDArray[np.bool_] | None = None,
) -> list[Report | SamaraError]:
    """K local steps of every client from a common state, all of them side by side.

    Args:
        trainer: of the model.
        instruction: of the round, for the trainer's layout.
        state: int64 [d], which is left as it is.
        indices: of the clients that take the steps.
        clients: among how many the examples are dealt; 0 if one client holds all of them.
        moving: bool [d], the numbers that are tried; the others stay. None is all.

    Returns:
        A report for each client, or why it has none.
    """
    everybody = []
    for client in indices:
        data = trainer.share(client, clients, Split.TRAIN)
        steps = LocalStepPlan(instruction, client, data.labels, trainer.labels)
        everybody.append(_Client(data, steps, state))
    for _ in range(instruction.steps):
        going = [client for client in everybody if client.error is None]
        _step(trainer, going, _Tried(state, moving))
    token = token_of(instruction.encode())
    return [client.error or client.steps.report(token) for client in everybody]


def clients_within(rows: int, instruction: TrainInstruction, schedule: Schedule) -> int:
    """How many clients share a pass under a budget; at least one.

    Args:
        rows: most rows in a pass, of all its clients together; 0 is one client at a time.
        instruction: of the round.
        schedule: of a client's own step.
    """
    examples = min(schedule.micro_batch or instruction.batch, instruction.batch)
    own = perturbations_per_pass(schedule.grouping, instruction.queries) * examples
    return max(1, rows // own)


def _step(trainer: "Trainer", clients: Sequence[_Client], tried: _Tried) -> None:
    """One step of every client."""
    found = run_estimators(
        [client.steps.estimator() for client in clients],
        lambda requests: _losses(trainer, clients, requests, tried),
    )
    distribution, backend = trainer.layout.distribution, trainer.backend
    for client, result in zip(clients, found, strict=True):
        try:
            passes = client.steps.taken(result)
            client.state = replay(client.state, passes, distribution, backend)
        except SamaraError as error:
            client.error = error


def _losses(
    trainer: "Trainer", clients: Sequence[_Client], requests: Sequence[LossRequest], tried: _Tried
) -> list[NDArray[np.float64]]:
    """The losses that each client's request asks for; clients with as many rows share passes."""
    losses: dict[int, NDArray[np.float64]] = {}
    by_size: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_size.setdefault(len(request.batch), []).append(index)
    for alike in by_size.values():
        prompts = [clients[i].data.prompts[row] for i in alike for row in requests[i].batch]
        together = (
            [alike] if have_equal_row_counts(prompts, len(alike)) else [[index] for index in alike]
        )
        for some in together:
            own = [clients[index] for index in some]
            losses |= zip(
                some, _scored(trainer, own, [requests[i] for i in some], tried), strict=True
            )
    return [losses[index] for index in range(len(requests))]


def _scored(
    trainer: "Trainer", clients: Sequence[_Client], requests: Sequence[LossRequest], tried: _Tried
) -> list[NDArray[np.float64]]:
    """The losses of clients in shared passes, float64 [P] each."""
    layout, first = trainer.layout, requests[0]
    center = np.stack([to_float32(tried.center(client.state)) for client in clients])
    z = None
    if len(first.seeds):
        seeds = np.concatenate([request.seeds for request in requests])
        z = trainer.backend.directions(seeds, layout.size, layout.distribution)
        z = tried.along(z).reshape(len(clients), len(first.seeds), layout.size)
    perturbations = Perturbations.from_arrays(
        layout, center, z, first.epsilon, trainer.torch_device, first.signs
    )
    prompts = [
        client.data.prompts[row]
        for client, request in zip(clients, requests, strict=True)
        for row in request.batch
    ]
    scores = trainer.forward.scores(perturbations, prompts, trainer.schedule_of(len(first.batch)))
    by_client = scores.reshape(len(scores), len(clients), -1, scores.shape[2])
    return [
        cross_entropy(by_client[:, index], client.data.labels[request.batch])
        for index, (client, request) in enumerate(zip(clients, requests, strict=True))
    ]
