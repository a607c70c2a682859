"""The counts from which a run's duration is estimated, and the timing of a row in the model."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.machine.process import cores
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.step_size import curvature_interval
from samara.shared.settings.config import RunConfig
from samara.shared.terms.run_terms import fits_private_part
from samara.simulations.planning.run_cost import RowCost, RunSize, run_cost

_MOST_TIMED = 32
_TOGETHER = 8
_TIMED_SECONDS = 0.7
_SHARE = 20.0
"""Minimum ratio of a run's expected time to the time spent on this measurement."""
_MOST_QUERIES = 16
_TYPICAL = 256

_Pass = Callable[[Sequence[Prompt], int], None]
"""A function that scores prompts under the perturbations of the given number of directions."""


def run_size(config: RunConfig, runtime: ModelRuntime, shares: Sequence[ClientData]) -> RunSize:
    """Return the counts of a run that has not begun.

    Args:
        config: settings of the run.
        runtime: loaded model.
        shares: data of the clients.
    """
    terms = config.terms
    clients = len(shares)
    training, validation, test = (
        sum(len(share.in_split(split)) for share in shares) for split in Split
    )
    test *= config.evaluate.test
    rounds = terms.rounds_of_federation
    # the round of shifts takes no steps, and one short pass over the training rows
    with_steps = rounds + bool(terms.intercept_round and not terms.reports_shifts)
    reports = with_steps * math.ceil(config.cohort.fraction * clients)
    validations, tests = (
        sum(terms.is_evaluated(number, split) for number in range(rounds + 1))
        for split in (Split.VALIDATION, Split.TEST)
    )
    fits = 0
    if fits_private_part(config.method):
        # each report fits an intercept, and each evaluated personal model a private part
        asked = terms.requested_columns(Split.VALIDATION, personal=False)
        fits = clients * (1 + validations * (len(asked) > 1))
    personal = config.makes_personal_models
    columns = [
        len(terms.requested_columns(split, personal=True)) * personal
        for split in (Split.VALIDATION, Split.TEST)
    ]
    is_kept = runtime.has_readout_alone
    size = runtime.layout.size
    tokens = _mean_tokens(_typical(shares))
    return RunSize(
        clients=clients,
        reports=reports,
        # finetune also takes private rounds that start from zero
        private_rounds=terms.private_rounds * clients * (1 + (config.method == "finetune")),
        fits=fits,
        steps=config.steps,
        perturbations=_perturbations(config, size),
        directions=config.queries,
        batch=min(config.batch, training / clients),
        labels=max(1, runtime.label_count),
        features=runtime.base.features if is_kept else 0,
        numbers=size,
        examples=sum(len(share.examples) for share in shares),
        tokens=tokens,
        training=training,
        validation=validation,
        test=test,
        validations=validations,
        tests=tests,
        personal_columns=(columns[0], columns[1]),
        model_numbers=sum(weight.numel() for weight in runtime.base.network.parameters()),
        damping_rows=sum(map(_tokens, runtime.texts_to_measure())) / tokens,
    )


def _perturbations(config: RunConfig, size: int) -> int:
    """Return the mean number of models with which a step scores its examples."""
    if config.gradients == "exact":
        return 3
    if config.differences == "components":
        return 2 * min(config.queries, size)
    if config.differences != "forward":
        return 2 * config.queries
    measured = 0.0  # share of the steps that measure curvature, for which both signs are needed
    if config.learning_rate == "auto":
        interval = curvature_interval(config.queries, config.differences)
        measured = math.ceil(config.steps / interval) / config.steps
    return round((1 + measured) * config.queries) + 1


def clients_together(config: RunConfig) -> int:
    """Return the number of clients that train at the same time; on a GPU, it is 1."""
    if config.model.torch_device != "cpu":
        return 1
    cohort = math.ceil(config.cohort.fraction * config.data.clients)
    return max(1, min(cores() // (config.threads or 1), cohort))


def measured_row(
    runtime: ModelRuntime, shares: Sequence[ClientData], size: RunSize, together: int
) -> RowCost:
    """Measure the seconds that the model needs for a row.

    The model scores some examples of typical lengths as in a step, for a small part of the run's
    expected time. The scores are discarded.

    Args:
        runtime: loaded model.
        shares: data of the clients.
        size: counts of the run.
        together: number of clients that compute at the same time. The same number of passes is
            timed in parallel, because two threads of one core need more processor time than one.
    """
    typical = sorted(_typical(shares), key=_tokens)
    middle = [typical[len(typical) // 2]]
    runtimes = [runtime, *(runtime.copy_sharing_weights() for _ in range(together - 1))]
    with ThreadPoolExecutor(together) as pool, ExitStack() as ending:
        for each in runtimes:
            ending.callback(each.free_buffers)

        def fresh() -> list[_Pass]:
            return [each.make_pass() for each in runtimes]

        kept = fresh()
        one = _seconds_of(pool, kept, middle, 0)  # the first pass also allocates memory
        if one < _TIMED_SECONDS:
            one = _seconds_of(pool, fresh(), middle, 0)
        again = 0.0
        queries = min(runtime.config.queries, _MOST_QUERIES)
        if not runtime.has_readout_alone:
            again = one * runtime.adapted_block_count / len(runtime.base.blocks)
        by_one = RowCost(one - again, 0.0, again)
        if one >= _TIMED_SECONDS:  # for a large model, more rows would take too long
            return by_one
        expected = run_cost(size, by_one)
        own = expected.total - expected.loading - expected.report
        timed = 2 * one + (3 * one + 4 * queries * again) * (again > 0)
        affordable = own / _SHARE / max(timed, 1e-6)
        most = min(_MOST_TIMED, len(typical), _TIMED_SECONDS / max(one, 1e-6), affordable)
        count = int(most)
        if count < 2:  # the run is short, and the first passes timed a row
            return by_one
        chosen = [typical[(2 * index + 1) * len(typical) // (2 * count)] for index in range(count)]
        parts = math.ceil(count / _TOGETHER)
        if runtime.has_readout_alone:  # passes have rows of similar length, but steps do not
            groups = [chosen[part * _TOGETHER : (part + 1) * _TOGETHER] for part in range(parts)]
        else:
            groups = [chosen[part::parts] for part in range(parts)]
        scale = _mean_tokens(typical) / sum(map(_tokens, chosen))

        def seconds(queries: int) -> float:
            """Return the processor seconds of a row, as the minimum of two measurements."""
            return scale * sum(
                min(_seconds_of(pool, kept, prompts, queries) for _ in range(2))
                for prompts in groups
            )

        if runtime.has_readout_alone:
            return RowCost(seconds(0))
        unkept = [[fresh() for _ in range(2)] for _ in groups]
        whole = scale * sum(
            min(_seconds_of(pool, passes, prompts, 0) for passes in twice)
            for twice, prompts in zip(unkept, groups, strict=True)
        )
        for prompts in groups:
            _seconds_of(pool, kept, prompts, 0)
        plain = seconds(0)
        again = max(0.0, seconds(queries) - plain) / (2 * queries - 1)
        return RowCost(max(0.0, whole - plain), max(0.0, plain - again), again)


def _seconds_of(
    pool: ThreadPoolExecutor, passes: Sequence[_Pass], prompts: Sequence[Prompt], queries: int
) -> float:
    """Return the mean processor seconds of several parallel passes."""
    begun = time.process_time()
    list(pool.map(lambda run: run(prompts, queries), passes))
    return (time.process_time() - begun) / len(passes)


def _typical(shares: Sequence[ClientData]) -> list[Prompt]:
    """Return prompts of some training examples of all clients."""
    most = math.ceil(_TYPICAL / len(shares))
    return [prompt for share in shares for prompt in share.some_prompts(Split.TRAIN, most)]


def _tokens(prompt: Prompt) -> int:
    return sum(map(len, prompt.sequences))


def _mean_tokens(prompts: Sequence[Prompt]) -> float:
    return sum(map(_tokens, prompts)) / len(prompts)
