"""The plan of a simulation: data, clients, evaluations, and expected duration."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samara.client.streaming.loading import choose_tier
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.devices.hardware.profile import load_device
from samara.devices.hardware.target import step_of
from samara.devices.live.checks.memory_check import default_profile, expected_footprint
from samara.shared.errors import SamaraError
from samara.shared.model.depth import count_blocks
from samara.shared.protocol.frames.instructions import Split
from samara.shared.results.traffic import SENDS_UPDATE, sends_update
from samara.shared.settings.choices import automatic_values, describe_choices
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ClassificationTask, GenerationTask
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.text_split import SharedTexts
from samara.simulations.planning.run_cost import RunCost, RunSize, run_cost
from samara.simulations.planning.run_progress import PLAN, RunProgress
from samara.simulations.planning.run_size import clients_together, measured_row, run_size
from samara.simulations.report.fleet import span_of

_BOARD = "orin-nano-8gb"
log = logging.getLogger("samara.simulation")


def log_plan(
    config: RunConfig,
    runtime: ModelRuntime,
    shares: Sequence[ClientData],
    folder: Path,
    form_seconds: float = 0.0,
) -> None:
    """Log the lines of `describe_plan`; the last record contains the run's `RunProgress`.

    Args:
        config: settings of the run.
        runtime: loaded model.
        shares: data of the clients.
        folder: folder of the run.
        form_seconds: processor seconds that the choice of the prompt form took.
    """
    size, cost = measured_cost(config, runtime, shares)
    cost = cost._replace(form=form_seconds)
    *lines, last = _lines(config, runtime, shares, folder, size, cost)
    for line in lines:
        log.info("%s", line)
    event = {"event": PLAN, "progress": RunProgress(size, cost)}
    log.info("%s", last, extra={"event": event})


def describe_plan(
    config: RunConfig, runtime: ModelRuntime, shares: Sequence[ClientData], folder: Path
) -> list[str]:
    """Describe the plan of a run that has not begun, one fact per line.

    Args:
        config: settings of the run.
        runtime: loaded model.
        shares: data of the clients.
        folder: folder of the run.
    """
    size, cost = measured_cost(config, runtime, shares)
    return _lines(config, runtime, shares, folder, size, cost)


def measured_cost(
    config: RunConfig, runtime: ModelRuntime, shares: Sequence[ClientData]
) -> tuple[RunSize, RunCost]:
    """Return the counts of a run that has not begun, and its expected cost on this machine.

    Args:
        config: settings of the run.
        runtime: loaded model, which computes some rows for timing.
        shares: data of the clients.
    """
    size = run_size(config, runtime, shares)
    return size, run_cost(size, measured_row(runtime, shares, size, clients_together(config)))


def _lines(
    config: RunConfig,
    runtime: ModelRuntime,
    shares: Sequence[ClientData],
    folder: Path,
    size: RunSize,
    cost: RunCost,
) -> list[str]:
    counts = {split: _count(shares, split) for split in Split}
    generated = config.data.path == EMBEDDED_DATA
    users = len({example.user for share in shares for example in share.examples} - {""})
    lines = [
        f"data: {'generated messages' if generated else config.data.path}: "
        + ", ".join(f"{count:,} {split.name.lower()}" for split, count in counts.items())
        + " examples",
        f"labels in training: {_labels(config, shares)}",
        f"clients: {len(shares)} with {_range(shares, Split.TRAIN)} training examples"
        + (f", of {users:,} users" if users else ""),
        f"split: {config.data.split}, drawn with data.seed {config.data.seed}; each client has "
        f"{_range(shares, Split.VALIDATION)} validation and {_range(shares, Split.TEST)} test "
        "examples",
        f"model: {config.model.path}, adapter {config.adapter.layers}, "
        f"{runtime.layout.size:,} trained numbers",
        *_trained(config, runtime),
        *([SENDS_UPDATE] if sends_update(config.flat(), runtime.layout.size) else []),
        f"evaluations: {_evaluations(config)}",
    ]
    if generated:
        lines.append(
            f"note: the texts are generated (data.path = {EMBEDDED_DATA}), and none are yours. For "
            "your own, run `samara new DIR --data FILE --model MODEL`, or set data.path, task and "
            "model.path"
        )
    if shared := _shared_texts(shares).describe(config.data.split):
        lines.append(f"note: {shared}")
    if chosen := automatic_values(config.flat()):
        lines.append(describe_choices(chosen, config.flat()))
    lines.append(_describe_cost(size, cost))
    loaded = _loaded(config, runtime, size)
    try:
        lines += [_on_a_board(loaded, size), _memory(loaded)]
    except SamaraError as error:
        lines.append(f"memory and a board's time cannot be estimated: {error}")
    return [*lines, f"results: {folder.absolute()}"]


def _trained(config: RunConfig, runtime: ModelRuntime) -> list[str]:
    """Describe the input of a readout, with the reason if it was chosen automatically."""
    if not config.adapter.has_readout:
        return []
    base = runtime.base
    line = "trained: weights on the last state"
    if base.depth:
        whole = count_blocks(base.folder)
        line = (
            f"trained: weights on the state after block {base.depth} of {whole}; later blocks are "
            "not loaded"
        )
        if base.family != "encoder":
            line += ". Training begins with all labels equally likely"
    reason = automatic_values(config.flat()).get("adapter.layers")
    return [f"{line}. Reason: {reason}" if reason else line]


def known_of(shares: Sequence[ClientData]) -> dict[str, Any]:
    """Return the fields of a result that depend only on the data of all clients."""
    return {"shared_texts": asdict(_shared_texts(shares)), "names": _names_of(shares)}


def _names_of(shares: Sequence[ClientData]) -> dict[str, str]:
    """Return the users' names by client index; empty unless each client is exactly one user."""
    users = [{example.user for example in share.examples} for share in shares]
    if any(len(own) != 1 or "" in own for own in users):
        return {}
    names = [next(iter(own)) for own in users]
    if len(set(names)) < len(names):  # if clients share the rows of one user
        return {}
    return {str(share.client): name for share, name in zip(shares, names, strict=True)}


def _shared_texts(shares: Sequence[ClientData]) -> SharedTexts:
    return SharedTexts.among([share.examples for share in shares])


def _count(shares: Sequence[ClientData], split: Split) -> int:
    return sum(len(share.in_split(split)) for share in shares)


def _labels(config: RunConfig, shares: Sequence[ClientData]) -> str:
    task = load_task(config.task)
    if isinstance(task, GenerationTask):
        texts = [share.tokenized(Split.TRAIN) for share in shares]
        tokens = sum(int(own.token_counts.sum()) for own in texts)
        return f"none; {tokens:,} tokens of {sum(own.byte_count for own in texts):,} bytes"
    if not isinstance(task, ClassificationTask):
        return "the rows' own candidates"
    found = Counter(e.label for share in shares for e in share.in_split(Split.TRAIN))
    whole = max(1, found.total())
    return ", ".join(f"{word} {found[i] / whole:.0%}" for i, word in enumerate(task.words))


def _range(shares: Sequence[ClientData], split: Split) -> str:
    sizes = [len(share.in_split(split)) for share in shares]
    return f"{min(sizes):,} to {max(sizes):,}" if min(sizes) < max(sizes) else f"{sizes[0]:,}"


def validations(config: RunConfig) -> int:
    """Return the number of validations of the global model: before, during and after training."""
    rounds = config.federated_rounds
    every = config.evaluate.every
    return (2 if rounds else 1) + ((rounds - 1) // every if every and rounds else 0)


def _evaluations(config: RunConfig) -> str:
    gap = config.evaluate.every
    every = f", every {f'{gap} rounds' if gap > 1 else 'round'}" if gap else ""
    text = f"{validations(config)} validations: before round 1{every}, and after the last round"
    if config.evaluate.test:
        text += "; tests before round 1 and after the last round"
    if config.evaluate.limit:
        text += f"; at most {config.evaluate.limit} examples of each split of a client"
    return text + ("; then every client's personal model" if config.makes_personal_models else "")


def _describe_cost(size: RunSize, cost: RunCost) -> str:
    """Return a line about the expected duration of a run on this machine."""
    before = size.validation + size.test
    parts = {
        "loading": cost.loading,
        "choice of the form": cost.form,
        "one pass over all examples": cost.passes,
        "rounds": cost.rounds,
        "evaluations": cost.first_evaluations + cost.evaluations,
        "personal models": cost.personal,
        "report": cost.report,
    }
    known = ", ".join(f"{span_of(part)} {name}" for name, part in parts.items() if part >= 0.05)
    return (
        f"estimate: about {span_of(cost.total)} of processor time on this machine ({known}); "
        f"{span_of(cost.before_round_1)} of it before round 1 for {before:,} rows "
        "(evaluate.limit reduces them)"
    )


def _loaded(config: RunConfig, runtime: ModelRuntime, size: RunSize) -> RunConfig:
    """Return the settings, with the loaded model's folder and the mean batch of a step."""
    model = config.model.model_copy(update={"path": str(runtime.base.folder)})
    return config.model_copy(update={"model": model, "batch": math.ceil(size.batch)})


def _on_a_board(config: RunConfig, size: RunSize) -> str:
    """Return a line about a client's training time on a Jetson Orin Nano."""
    board = load_device(_BOARD)
    step = step_of(config, board, math.ceil(size.tokens))
    first = step.first_pass.total if step.first_pass else 0.0
    steps = size.steps * math.ceil(size.reports / size.clients)
    return (
        f"on a Jetson Orin Nano: about {span_of(first + steps * step.time.total)} for the "
        f"{steps:,} steps of a client, by the time model of device profile {board.name}, without "
        "evaluations and messages"
    )


def _memory(config: RunConfig) -> str:
    profile = default_profile(config.model.torch_device)
    footprint = expected_footprint(config, profile)
    streamed = choose_tier(config.model) is not None
    memory = footprint.of_clients(clients_together(config), streamed) / 2**20
    return f"memory: about {memory:,.0f} MiB, estimated with device profile {profile.name}"
