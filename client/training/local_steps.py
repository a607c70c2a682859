"""The local steps of a round, for one client or for many that share forward passes.

Every client has separate examples, batches, directions and state. Only the forward passes are
shared. So a client that shares passes reports the same as a client that steps alone, except for the
rounding of larger matrix products (docs/measurements/fleets.md).
"""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.estimators.exact import directional_derivatives
from samara.client.estimators.prge import LossRequest, run_estimators
from samara.client.forward.answer_losses import answer_losses
from samara.client.forward.grouping import Schedule, perturbations_per_pass
from samara.client.forward.resident import ResidentForward, have_equal_row_counts
from samara.client.training.client_data import ClientData, LabelledPrompts
from samara.client.training.local_step_plan import InterruptedSteps, LocalStepPlan
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.errors import SamaraError
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.replay_torch import draw_directions, replay_on_device
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.frames.instructions import Split, TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.tasks.objectives import SUMMED_CROSS_ENTROPY
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.tasks.rows import Example

_one_at_a_time = threading.Lock()
"""Lock held during the steps of a readout.

Parallel threads would take these steps more slowly than one thread, because a step needs the
interpreter every few microseconds.
"""


@dataclass(frozen=True, eq=False)
class _TrainedPart:
    """The numbers that are trained; all other numbers keep their values at the start of the round.

    Attributes:
        start: state at the start of the round, int64 [d].
        mask: bool [d], true where numbers are perturbed; None perturbs all.
    """

    start: torch.Tensor
    mask: torch.Tensor | None

    def center(self, state: torch.Tensor) -> torch.Tensor:
        """Return the state around which a client's adapter is perturbed, int64 [d].

        Args:
            state: state of the client, int64 [d].
        """
        return state if self.mask is None else torch.where(self.mask, state, self.start)

    def project(self, z: torch.Tensor) -> torch.Tensor:
        """Return directions, int16 [n, d], set to zero where numbers are not trained."""
        return z if self.mask is None else z * self.mask


@dataclass(eq=False)
class _Participant:
    """A client with its data, plan and state during the steps of a round.

    Attributes:
        data: all examples of the client.
        examples: training examples.
        texts: training examples as text, if steps decode answers.
        plan: batches and directions of the client's steps, and the results so far.
        state: state after the client's steps so far, int64 [d] on the model's torch device.
        error: error that ended the client's steps; None without an error.
    """

    data: ClientData
    examples: LabelledPrompts
    texts: Sequence[Example]
    plan: LocalStepPlan
    state: torch.Tensor
    error: SamaraError | None = None


def take_local_steps(
    runtime: ModelRuntime,
    data: ClientData,
    instruction: TrainInstruction,
    state: NDArray[np.int64],
    mask: NDArray[np.bool_] | None = None,
    interrupted: InterruptedSteps[_Participant] | None = None,
) -> Report:
    """Take a client's K local steps from a state, and return the report.

    Args:
        runtime: model runtime.
        data: examples of the client.
        instruction: instruction of the round.
        state: int64 [d], the state from which the steps start; it is not changed.
        mask: bool [d], true where numbers are perturbed; None perturbs all.
        interrupted: storage of finished steps if an exception interrupts the round; None for none.

    Raises:
        LayoutError: if the instruction is for another layout.
        TrainingError: if a loss is not finite.
        ReplayError: if a local step leaves the exact range of the state.
    """
    (report,) = take_local_steps_together(runtime, [data], instruction, state, mask, interrupted)
    if isinstance(report, SamaraError):
        raise report
    return report


def take_local_steps_together(
    runtime: ModelRuntime,
    clients: Sequence[ClientData],
    instruction: TrainInstruction,
    state: NDArray[np.int64],
    mask: NDArray[np.bool_] | None = None,
    interrupted: InterruptedSteps[_Participant] | None = None,
) -> list[Report | SamaraError]:
    """Take the K local steps of clients that start from one state and share forward passes.

    Args:
        runtime: model runtime.
        clients: examples of each client.
        instruction: instruction of the round.
        state: int64 [d], the state from which the steps start; it is not changed.
        mask: bool [d], true where numbers are perturbed; None perturbs all.
        interrupted: storage of finished steps of a single client; None for none.

    Returns:
        The report of each client, or the error that ended its steps.

    Raises:
        LayoutError: if the instruction is for another layout.
    """
    runtime.check_layout(instruction.layout_hash)
    token, participants = token_of(instruction.encode()), []
    start = torch.tensor(state).to(runtime.torch_device)
    trained = None if mask is None else torch.tensor(mask).to(runtime.torch_device)
    for data in clients:
        examples = prepare_training_examples(runtime, data)
        plan = LocalStepPlan(instruction, data.client, examples.labels, runtime.label_count)
        texts = data.in_split(Split.TRAIN) if runtime.decodes_answers else ()
        participants.append(_Participant(data, examples, texts, plan, start))
    if interrupted:
        participants = [interrupted.resume(token, one.examples, one) for one in participants]
    part = _TrainedPart(start, trained)
    with _one_at_a_time if runtime.has_readout_alone else nullcontext():
        for _ in range(participants[0].plan.steps_taken, instruction.steps):
            _take_step(runtime, [one for one in participants if one.error is None], part)
    return [one.error or one.plan.report(token) for one in participants]


def prepare_training_examples(runtime: ModelRuntime, data: ClientData) -> LabelledPrompts:
    """Return a client's training examples, prepared for the runtime's forward engine.

    The rows of this preparation count as passes of the client. The first pass of a readout counts
    once, even if its result was cached by an earlier run.
    """
    examples, before = data.tokenized(Split.TRAIN), runtime.passes
    for part in examples.parts:
        runtime.prepare(part)
    if runtime.has_readout_alone and not data.has_passed:
        data.passes, data.has_passed = data.passes + len(examples.prompts), True
    else:
        data.passes += runtime.passes - before
    return examples


def prepare_evaluated_examples(
    runtime: ModelRuntime, data: ClientData, split: Split
) -> LabelledPrompts:
    """Return the examples that an evaluation uses, prepared for the runtime's forward engine."""
    examples = data.evaluated(split)
    for part in examples.parts:
        runtime.prepare(part)
    return examples


def clients_per_pass(row_budget: int, instruction: TrainInstruction, schedule: Schedule) -> int:
    """Return the number of clients that share a forward pass within a budget of rows; at least 1.

    Args:
        row_budget: largest number of rows in a pass, of all clients together; 0 means one client
            per pass.
        instruction: instruction of the round.
        schedule: schedule of a client's step.
    """
    examples = min(schedule.micro_batch or instruction.batch, instruction.batch)
    rows = perturbations_per_pass(schedule.grouping, instruction.queries) * examples
    return max(1, row_budget // rows)


def _take_step(
    runtime: ModelRuntime, participants: Sequence[_Participant], part: _TrainedPart
) -> None:
    """Take one step of every participant."""
    estimates = run_estimators(
        [one.plan.next_estimator(runtime.config.gradients) for one in participants],
        lambda requests: _losses(runtime, participants, requests, part),
    )
    distribution, backend = runtime.layout.distribution, runtime.backend
    for one, estimate in zip(participants, estimates, strict=True):
        try:
            update = one.plan.finish_step(estimate)
            one.state = replay_on_device(one.state, update, distribution, backend)
        except SamaraError as error:
            one.error = error


def _losses(
    runtime: ModelRuntime,
    participants: Sequence[_Participant],
    requests: Sequence[LossRequest],
    part: _TrainedPart,
) -> list[NDArray[np.float64]]:
    """Return the losses for each request, with passes shared by clients with equal row counts."""
    losses: dict[int, NDArray[np.float64]] = {}
    by_size: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_size.setdefault(len(request.batch), []).append(index)
    for same_size in by_size.values():
        together = [same_size]
        if len(same_size) > 1:
            prompts = [p for i in same_size for p in _batch_prompts(participants[i], requests[i])]
            if runtime.decodes_answers or not have_equal_row_counts(prompts, len(same_size)):
                together = [[index] for index in same_size]
        for group in together:
            members, their_requests = [participants[i] for i in group], [requests[i] for i in group]
            before = runtime.passes
            results = _losses_in_one_pass(runtime, members, their_requests, part)
            for one in members:
                one.data.passes += (runtime.passes - before) // len(members)
            losses |= zip(group, results, strict=True)
    return [losses[index] for index in range(len(requests))]


def _losses_in_one_pass(
    runtime: ModelRuntime,
    participants: Sequence[_Participant],
    requests: Sequence[LossRequest],
    part: _TrainedPart,
) -> list[NDArray[np.float64]]:
    """Return the losses for the requests of clients that share forward passes, float64 [n] each."""
    layout, weight_map, first = runtime.layout, runtime.weight_map, requests[0]
    is_profiled = participants[0].plan.is_profiled
    weights = torch.stack([weight_map.center(part.center(one.state)) for one in participants])
    z = None
    if len(first.seeds):
        seeds = np.concatenate([request.seeds for request in requests])
        where = runtime.torch_device
        z = draw_directions(runtime.backend, seeds, layout.size, layout.distribution, 0, where)
        z = part.project(z).reshape(len(participants), len(first.seeds), layout.size)
    pairs = list(zip(participants, requests, strict=True))
    batches = [_batch_prompts(one, request) for one, request in pairs]
    prompts = batches[0] if len(batches) == 1 else [prompt for batch in batches for prompt in batch]
    labels = np.stack([one.examples.labels[request.batch] for one, request in pairs])
    schedule = runtime.schedule_for(len(first.batch))
    if first.exact and z is not None:
        losses, gradients = runtime.forward.loss_gradients(
            Perturbations(layout, weights),
            prompts,
            labels,
            schedule.micro_batch,
            is_profiled=is_profiled,
        )
        return [
            np.append(loss, directional_derivatives(weight_map.gradient(elements), directions))
            for loss, elements, directions in zip(losses, gradients, z.cpu().numpy(), strict=True)
        ]
    perturbations = Perturbations(
        layout,
        weights,
        None if z is None else weight_map.directions(z),
        first.epsilon,
        first.signs,
    )
    if runtime.decodes_answers:
        (one,) = participants
        return [_losses_of_answers(runtime, one, first, perturbations, schedule)]
    scores = runtime.forward.scores(perturbations, prompts, schedule)
    if first.unperturbed:
        center = replace(perturbations, directions=None)
        scores = np.concatenate([scores, runtime.forward.scores(center, prompts, schedule)])
    if runtime.config.objective == SUMMED_CROSS_ENTROPY:
        scores[..., 0] *= [len(prompt.targets[0]) for prompt in prompts]
    by_client = scores.reshape(len(scores), len(participants), -1, scores.shape[2])
    objective = runtime.objective
    if runtime.config.objective == PROFILED and not is_profiled:
        objective = cross_entropy  # in private rounds after which no round adds a shift
    return [objective(by_client[:, index], own) for index, own in enumerate(labels)]


def _losses_of_answers(
    runtime: ModelRuntime,
    participant: _Participant,
    request: LossRequest,
    perturbations: Perturbations,
    schedule: Schedule,
) -> NDArray[np.float64]:
    """Return the losses for a request whose objective is a metric of answers, float64 [n]."""
    task, forward = runtime.task, runtime.forward
    assert isinstance(task, GenerationTask)
    assert isinstance(forward, ResidentForward)
    examples = [participant.texts[row] for row in request.batch.tolist()]
    prompts = [runtime.tokenize(replace(one, answers=())) for one in examples]
    accepted = [one.answers for one in examples]
    size = schedule.micro_batch
    losses = answer_losses(forward, task, perturbations, prompts, accepted, size)
    if request.unperturbed:
        center = replace(perturbations, directions=None)
        unperturbed = answer_losses(forward, task, center, prompts, accepted, size)
        losses = np.append(losses, unperturbed)
    return losses.astype(np.float64)


def _batch_prompts(participant: _Participant, request: LossRequest) -> Sequence[Prompt]:
    """Return the prompts of a request's batch.

    A batch of all examples is the participant's tuple itself, which caches recognize.
    """
    prompts, rows = participant.examples.prompts, request.batch
    if np.array_equal(rows, np.arange(len(prompts))):
        return prompts
    return [prompts[row] for row in rows.tolist()]
