"""Automatic values of settings, by rules that are the same for every data set and model.

A setting in `OPEN` that a scenario does not set gets an automatic value. The rules come from
measurements on several data sets and models (docs/concepts/step-size.md). They depend only on the
other settings and the task. The run id is the same whether a value is automatic or set by the user.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from samara.shared.errors import TaskError
from samara.shared.settings.sections import AT_A_DEPTH, FEWEST_CUT, adapter_kind
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.objectives import CROSS_ENTROPY
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.terms.run_terms import fits_private_part

AUTO = "auto"
READOUT = "readout"
READOUT_AT_A_DEPTH = f"{READOUT}:{AT_A_DEPTH}"
COMPONENTS = "components"
INNER = "top:1"
"""Automatic value of ``adapter.layers`` in runs that cannot use a readout alone."""
CENTRAL, SHARED, INDEPENDENT = "central", "shared", "independent"
GAUSSIAN, ORTHOGONAL = "gaussian", "orthogonal"
EPSILON = 0.01
"""Default size of a perturbation."""
READOUT_STEPS, INNER_STEPS = 16, 2
READOUT_BATCH, INNER_BATCH = 10_000, 32
QUERIES, MOST_QUERIES = 16, 64
COMPONENT_QUERIES, MOST_COMPONENT_QUERIES = 32, 128
EVERY_ROUND, USUAL_EVERY = 1, 10
FEW_ROUNDS = 3
"""Largest number of rounds for which a readout's step size is constant."""
SCHEDULE, EVERY, BEST = "learning-rate-schedule", "evaluate.every", "evaluate.best"
DIFFERENCES, SEED_POLICY, DISTRIBUTION = "differences", "seed-policy", "adapter.distribution"
OBJECTIVE, LABEL_BIAS = "objective", "adapter.label-bias"
OPEN: dict[str, str | int] = {
    "adapter.layers": AUTO,
    DIFFERENCES: AUTO,
    SEED_POLICY: AUTO,
    "steps": 0,
    "queries": 0,
    "batch": 0,
    SCHEDULE: AUTO,
    EVERY: -1,
    BEST: AUTO,
    OBJECTIVE: AUTO,
    LABEL_BIAS: AUTO,
}
"""Settings that can be unset, each with the default value that marks it as unset."""
_Against = Mapping[str, tuple[tuple[str | int, ...], str]]
_OF_STEPS: dict[str, str | int | float] = {
    "steps": 0,
    "batch": 0,
    "epsilon": EPSILON,
    "learning-rate": AUTO,
    SCHEDULE: AUTO,
    "clip": 0.0,
    "personal.learning-rate": AUTO,
}
"""Settings of local steps, with their defaults. A client that reports components takes no steps."""
_AGAINST_COMPONENTS: _Against = {
    "privacy.mode": (("none",), "under noise components were less accurate"),
    "gradients": (("differences",), "a client's own update uses no projected gradients"),
    OBJECTIVE: ((AUTO, CROSS_ENTROPY), "a client's own update minimizes the cross-entropy"),
    "cohort.late-rounds": ((0,), "a late report needs its own directions"),
    SEED_POLICY: ((AUTO, SHARED), "components can be added only along the same directions"),
    DISTRIBUTION: ((GAUSSIAN, ORTHOGONAL), "components need orthogonal directions"),
}
"""For each setting: the values that allow components by default, and why other values do not."""
_AGAINST_SHIFTS: _Against = {
    "method": (
        ("finetune", "global", "ditto", "mixture"),
        "the round of shifts was measured for one global model without private intercepts",
    ),
    "privacy.mode": (("none",), "a profiled loss was not measured under noise"),
    "adapter.basis": (("",), "a basis already weakens the direction that shifts all scores"),
    BEST: ((AUTO, False, "loss"), "validations compare accuracies without the shift"),
}
"""For each setting: the values that allow a round of shifts by default, and why others do not."""


class Choice(NamedTuple):
    """A value derived from the other settings.

    Attributes:
        value: the value.
        reason: explanation of the value, for users.
    """

    value: str | int | bool
    reason: str


def choose(flat: Mapping[str, Any]) -> dict[str, Choice]:
    """Return automatic values for all settings in `OPEN`, even if the user has set another value.

    Args:
        flat: settings by dotted key; a setting is unset if it is missing or has its `OPEN` value.
    """
    layers = Choice(
        READOUT_AT_A_DEPTH,
        "the model runs only once per example, and in measurements a readout gained more per "
        f"forward pass than adapters inside the model; in a causal LM with at least {FEWEST_CUT} "
        "blocks, a readout after two thirds of the blocks was as accurate as one after all "
        "blocks",
    )
    if flat.get("adapter.basis"):
        layers = Choice(INNER, "a basis is for adapters inside the model")
    elif flat.get("fleet.devices"):
        layers = Choice(INNER, "emulated devices are timed with adapters inside the model")
    elif isinstance(_task(flat), GenerationTask):
        layers = Choice(INNER, "a readout needs labels, and texts have none")
    given = flat.get("adapter.layers", AUTO)
    if flat.get("adapter.start") and given != AUTO:
        layers = Choice(given, "the adapter begins with a start, which has these layers")
    kind = adapter_kind(str(layers.value if given == AUTO else given))
    is_readout = kind == READOUT
    differences = _differences(flat, is_readout)
    if flat.get(DIFFERENCES, AUTO) == AUTO:
        flat = {**flat, DIFFERENCES: differences.value}
    objective = _objective(flat, kind)
    if flat.get(OBJECTIVE, AUTO) == AUTO:
        flat = {**flat, OBJECTIVE: objective.value}
    for_all = {
        "adapter.layers": layers,
        DIFFERENCES: differences,
        SEED_POLICY: _seed_policy(flat),
        OBJECTIVE: objective,
        LABEL_BIAS: _label_bias(flat),
    }
    if is_readout:
        return {
            **for_all,
            "steps": _readout_steps(flat),
            "queries": _readout_queries(flat),
            "batch": Choice(
                READOUT_BATCH,
                "a readout's step can use all examples of a client, which avoids the noise of "
                "batches",
            ),
            SCHEDULE: _readout_schedule(flat),
            EVERY: _readout_every(flat),
            BEST: _best(flat),
        }
    divided = (
        "in measurements the result depended on the number of forward passes, not on the number of "
        "steps"
    )
    return {
        **for_all,
        "steps": Choice(
            INNER_STEPS,
            f"{divided}; rounds of two steps need half the messages of rounds of one step",
        ),
        "queries": Choice(
            QUERIES,
            f"{divided}; with at least {QUERIES} directions every step can measure curvature by "
            "one further loss",
        ),
        "batch": Choice(INNER_BATCH, divided),
        SCHEDULE: _schedule(
            flat, "constant", "adapters inside the model were measured with a constant step size"
        ),
        EVERY: Choice(USUAL_EVERY, "a validation takes forward passes of the whole model"),
        BEST: Choice(False, "the return to the lowest loss was only measured for readouts"),
    }


def _differences(flat: Mapping[str, Any], is_readout: bool) -> Choice:
    """Return the automatic `differences`: components, or central differences of losses."""
    if not is_readout:
        return Choice(CENTRAL, "adapters inside the model are trained by losses of perturbations")
    if flat.get("method") == "cluster":
        return Choice(CENTRAL, "clusters are found by projected gradients")
    if reason := _reason_against(flat, _AGAINST_COMPONENTS):
        return Choice(CENTRAL, reason)
    for key, usual in _OF_STEPS.items():
        if flat.get(key, usual) != usual:
            return Choice(CENTRAL, f"{key} is set, and components have no such steps")
    return Choice(
        COMPONENTS,
        "in measurements components of a client's own update were as accurate as projected "
        "gradients, and took a fifth of the bytes",
    )


def _objective(flat: Mapping[str, Any], kind: str) -> Choice:
    """Return the automatic objective: the profiled loss if the last round can add the shift."""
    if kind != "inner":
        return Choice(CROSS_ENTROPY, "the profiled loss was measured for adapters inside the model")
    if reason := _reason_against_shifts(flat):
        return Choice(CROSS_ENTROPY, reason)
    if flat.get(LABEL_BIAS, AUTO) not in (AUTO, True):
        return Choice(CROSS_ENTROPY, "without a label bias no shift can be added")
    return Choice(
        PROFILED,
        "in measurements with equal passes inside the model it was more accurate than the "
        "cross-entropy, with the clients' mean shift added after the last round",
    )


def _label_bias(flat: Mapping[str, Any]) -> Choice:
    """Return the automatic `adapter.label-bias`: whether a last round adds numbers per label."""
    if fits_private_part(str(flat.get("method"))) and _common_labels(flat):
        return Choice(True, "the method fits a private label bias")
    if flat.get(OBJECTIVE) == PROFILED and not _reason_against_shifts(flat):
        return Choice(True, "the last round adds the shift that the profiled loss leaves out")
    return Choice(False, "no round after training adds numbers per label")


def _reason_against_shifts(flat: Mapping[str, Any]) -> str:
    """Return the reason why a run has no round of shifts by default; empty if it has one."""
    if not _common_labels(flat):
        return "the rows have no common labels whose scores could be shifted"
    if flat.get("adapter.start") and flat.get(LABEL_BIAS, AUTO) == AUTO:
        return "the start may have no label bias, to which a shift is added"
    if flat.get("fleet.devices"):
        return "the round of shifts was not measured on emulated devices"
    return _reason_against(flat, _AGAINST_SHIFTS)


def _reason_against(flat: Mapping[str, Any], table: _Against) -> str:
    """Return the reason of the first setting whose value a table does not allow; empty if none."""
    for key, (allowed, reason) in table.items():
        if flat.get(key, allowed[0]) not in allowed:
            return f"{key} is {flat[key]}, and {reason}"
    return ""


def _seed_policy(flat: Mapping[str, Any]) -> Choice:
    """Return the automatic seed policy: whether a round's clients share their directions."""
    if flat.get(DIFFERENCES) == COMPONENTS:
        return Choice(SHARED, "components can be added only along the same directions")
    return Choice(INDEPENDENT, "more directions have a lower variance")


def _best(flat: Mapping[str, Any]) -> Choice:
    """Return the automatic `evaluate.best` of a run with a readout."""
    if flat.get("privacy.mode", "none") != "none":
        return Choice(False, "evaluations have no noise, and ε does not cover them")
    if flat.get(EVERY) == 0:
        return Choice(False, "no rounds are validated")
    if flat.get("method") == "readout":
        return Choice(False, "every validation would fit the private part of every client")
    return Choice("loss", "a readout overfits few examples, and validations detect it")


def _readout_every(flat: Mapping[str, Any]) -> Choice:
    """Return the number of rounds between the validations of a run with a readout."""
    best = flat.get(BEST, AUTO)
    if (_best(flat).value if best == AUTO else best) != "loss":
        return Choice(USUAL_EVERY, "validations do not decide which round the run returns to")
    return Choice(
        EVERY_ROUND,
        "a readout overfits few examples within a few rounds, the run returns to a validated "
        "round, and cached representations need no forward passes",
    )


def _readout_schedule(flat: Mapping[str, Any]) -> Choice:
    """Return the schedule of a readout's step size."""
    if flat.get("rounds") in range(1, FEW_ROUNDS + 1):
        reason = (
            f"in measurements runs of at most {FEW_ROUNDS} rounds gained more with a constant step "
            "size"
        )
        return _schedule(flat, "constant", reason)
    return _schedule(flat, "linear", "the noise of a readout's last steps would stay in the model")


def _schedule(flat: Mapping[str, Any], value: str, reason: str) -> Choice:
    """Return the schedule: `value` if the step size is estimated, otherwise constant."""
    if flat.get("learning-rate", AUTO) != AUTO:
        return Choice("constant", "the step size is set")
    if flat.get(DIFFERENCES) == COMPONENTS:
        return Choice("constant", "the step size of components follows from the settings")
    return Choice(value, reason)


def _readout_steps(flat: Mapping[str, Any]) -> Choice:
    """Return the number of steps of a readout's round."""
    if flat.get(DIFFERENCES) == COMPONENTS:
        return Choice(1, "a report of components covers a client's whole round")
    return Choice(
        READOUT_STEPS,
        "a readout's steps need no forward passes, and in measurements fewer steps per round, "
        "with equally many directions each, gained less",
    )


def _readout_queries(flat: Mapping[str, Any]) -> Choice:
    """Return the number of directions of a readout's step, proportional to labels − 1.

    A task that cannot be read counts as a task of two labels.
    """
    labels = _common_labels(flat) or 2
    each, most = QUERIES, MOST_QUERIES
    if flat.get(DIFFERENCES) == COMPONENTS:
        each, most = COMPONENT_QUERIES, MOST_COMPONENT_QUERIES
    queries = min(each * (labels - 1), most)
    reason = (
        f"{each} for every label except one, at most {most}: a readout has a row of weights for "
        "each of these labels, and more rows need more directions"
    )
    return Choice(queries, reason)


def _common_labels(flat: Mapping[str, Any]) -> int:
    """Return the number of labels that all rows of the task share; 0 if they share none."""
    task = _task(flat)
    if isinstance(task, ClassificationTask):
        return len(task.words)
    return len(task.candidates) if isinstance(task, ChoiceTask) and not task.list_names else 0


def _task(flat: Mapping[str, Any]) -> Task | None:
    """Return the task, or None if it cannot be read; loading it later raises the error."""
    try:
        return load_task(str(flat.get("task", EMBEDDED_DATA)))
    except TaskError:
        return None


def with_choices(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key, with automatic values for settings that are not set."""
    chosen = {
        key: choice.value
        for key, choice in choose(flat).items()
        if _is_open(flat.get(key, OPEN[key]), OPEN[key])
    }
    directions = {}
    if chosen.get(DIFFERENCES, flat.get(DIFFERENCES)) == COMPONENTS:
        directions = {DISTRIBUTION: ORTHOGONAL}
    if DIFFERENCES in chosen:
        return {**flat, **directions, **chosen}
    return {**directions, **flat, **chosen}


def _is_open(value: object, mark: str | int) -> bool:
    return type(value) is type(mark) and value == mark


def describe_choices(keys: Iterable[str], flat: Mapping[str, Any]) -> str:
    """Describe settings and their automatic values in one line.

    Args:
        keys: dotted keys of the settings to describe.
        flat: settings by dotted key.
    """
    # Lower case, because TOML writes true and false.
    return "chosen by default: " + ", ".join(f"{key} = {str(flat[key]).lower()}" for key in keys)


def automatic_values(flat: Mapping[str, Any]) -> dict[str, str]:
    """Return the reason for each setting whose value equals the automatic one, by dotted key."""
    pair = {OBJECTIVE: AUTO, LABEL_BIAS: AUTO}
    choices = choose({**flat, **pair})
    others = {key: choice for key, choice in choices.items() if flat[key] == choice.value}
    if not pair.keys() <= others.keys():  # either follows from the other
        others = {key: choice for key, choice in others.items() if key not in pair}
    others.pop(DIFFERENCES, None)
    form = choose(_reopened(flat, [DIFFERENCES, *others]))[DIFFERENCES]
    if form.value == flat[DIFFERENCES]:
        others[DIFFERENCES] = form
    return {key: choice.reason for key, choice in others.items()}


def with_overrides(flat: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some replaced; automatic values are unset, because they may change.

    Args:
        flat: settings of a run by dotted key.
        given: the new settings by dotted key.
    """
    return _reopened(flat, automatic_values(flat)) | dict(given)


def _reopened(flat: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return settings after marking some of them as unset again."""
    opened = dict(flat) | {key: OPEN[key] for key in keys}
    if opened[DIFFERENCES] == AUTO and opened[DISTRIBUTION] == ORTHOGONAL:
        del opened[DISTRIBUTION]
    return opened
