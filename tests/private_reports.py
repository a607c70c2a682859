"""Clients that add noise to their reports or mask them, and instructions for these clients."""

from collections.abc import Callable
from typing import Any

from asked_clients import run_id_in
from federations import Settings, config_of
from flwr.app import Message
from helpers import instruction_with

from samara.client.limits.answer_log import AnswerLog
from samara.client.limits.answered_runs import AnsweredRuns
from samara.client.limits.privacy_budget import ChargeLog
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.settings.config import RunConfig


def first_instruction(trainer: ResidentTrainer, **changes: Any) -> TrainInstruction:
    layout, run = trainer.runtime.layout, run_id_in(trainer)
    start = Session.begin(LedgerHeader(0, run, layout.hash), layout)
    return instruction_with(
        run_id=run, layout_hash=layout.hash, start_digest=start.digest, **changes
    )


PRIVATE = {
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 4.0,
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "method": "global",
    "cohort__minimum": 3,
}


MODES: dict[str, dict[str, Any]] = {
    "local": {"privacy__mode": "local"},
    "distributed": {"privacy__mode": "distributed", "privacy__honest_share": 0.7},
}
"""Settings by mode; with an honest share of 0.7, two of three clients must add enough noise."""


def private(settings: Settings, mode: str, **changes: Any) -> RunConfig:
    return config_of(settings, **(PRIVATE | MODES[mode] | changes))


def frame_of(reply: Message) -> bytes:
    return bytes(reply.content.config_records["samara"]["frame"])  # type: ignore[arg-type]


def local_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return private(settings | theirs, "local", cohort__minimum=1)


def asked_of(trainer: ResidentTrainer, config: RunConfig, **changes: Any) -> TrainInstruction:
    """The first instruction of a run, for the layout that follows from its settings."""
    trainer.client_under(config)
    return first_instruction(trainer, seed_policy=SeedPolicy.SHARED, **changes)


STEPS: dict[str, tuple[type, str]] = {
    "scalars": (ScalarCounts, "write"),
    "round": (AnsweredRuns, "write"),
    "charge": (ChargeLog, "add"),
    "session": (SessionFolder, "write_session"),
    "log": (AnswerLog, "add"),
}
"""Methods that write the records of an answer, in this order."""


def die_at(moment: str, die: Callable[[], None], patch: Callable[..., None] = setattr) -> None:
    """Make a process end before or after a step of its answer."""
    when, step = moment.split()
    kind, name = STEPS[step]
    plain = getattr(kind, name)

    def dies(*arguments: Any) -> Any:
        if isinstance(arguments[-1], Session) and not arguments[-1].report:
            return plain(*arguments)  # it has caught up
        if when == "before":
            die()
        result = plain(*arguments)
        die()
        return result

    patch(kind, name, dies)
