"""Private runs whose process gets kill -9 at a given moment."""

import itertools
import os
import signal
from typing import Any

from federations import Settings
from flwr.app import Message, MessageType
from private_reports import private

from samara.client.limits.privacy_budget import ChargeLog
from samara.server.rounds.masking_exchange import MASKING_MESSAGE
from samara.server.rounds.releases import ReleaseLog
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.step_size import RecordedStepSize
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid

CLIENTS, ROUNDS = 2, 3


OF_ROUNDS = MessageType.TRAIN, MASKING_MESSAGE


Steps = dict[str, tuple[type, str, int]]


STEPS: Steps = {
    "frame": (InProcessGrid, "_deliver", CLIENTS),
    "charge": (ChargeLog, "add", CLIENTS),
    "release": (ReleaseLog, "add", 1),
    "size": (RecordedStepSize, "record", 1),
    "ledger": (Ledger, "append", 1),
}
"""Methods that deliver or write in a round, by name of the step, with their calls per round."""


def private_run(settings: Settings) -> RunConfig:
    """A run whose clients add the noise, and store their reports and charges."""
    own: dict[str, Any] = {"data__clients": CLIENTS, "cohort__minimum": CLIENTS, "rounds": ROUNDS}
    return private(settings, "distributed", **own, data__epsilon_limit=1e6)


def die_at(moment: str, steps: Steps = STEPS) -> None:
    """Kill this process (kill -9) before or after a given call of a step.

    Of the steps that handle frames, only frames of rounds count.
    """
    when, step, number = moment.split()
    kind, name, _ = steps[step]
    plain, calls = getattr(kind, name), itertools.count(1)

    def dies(*arguments: Any, **options: Any) -> Any:
        _, first, *_ = arguments
        is_other = isinstance(first, Message) and first.metadata.message_type not in OF_ROUNDS
        is_it = not is_other and next(calls) == int(number)
        if is_it and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, dies)
