"""Frames of a server that asks too much, and clients that receive them."""

from pathlib import Path
from typing import Any

from asking import evaluate_task
from federations import Settings, config_of
from helpers import History, delta_of, history_of, instruction_with
from residents import device_settings

from samara.client.protocol.client import Client
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.settings.config import RunConfig


def server_config_for(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return config_of(settings | theirs, personal__rounds=1)


def load(settings: Settings, folder: Path, **limits: Any) -> ResidentTrainer:
    """A live client with its own settings, as after `samara client up`."""
    own = device_settings(settings, 7, folder).device_settings
    own |= {f"data.{name.replace('_', '-')}": value for name, value in limits.items()}
    trainer = ResidentTrainer.load(RunConfig.of(own, "test"), 7, folder)
    trainer.client_under(server_config_for(settings))  # with the run's layout
    return trainer


def run_id_in(trainer: ResidentTrainer) -> bytes:
    """The run id under the latest settings of a trainer."""
    return trainer._current[0]


def train_frame(trainer: ResidentTrainer, **changes: Any) -> bytes:
    layout = trainer.runtime.layout
    start = digest(layout.hash, zero_state(layout.size))
    instruction = instruction_with(
        **{
            "run_id": run_id_in(trainer),
            "layout_hash": layout.hash,
            "start_digest": start,
            "steps": 1,
        }
        | changes
    )
    return instruction.encode()


def evaluate_frame(trainer: ResidentTrainer, history: History, round_: int, split: Split) -> bytes:
    layout = trainer.runtime.layout
    return EvaluateInstruction(
        run_id_in(trainer), round_, 0, split, layout.hash, history.digests[round_]
    ).encode()


def made_up_run(trainer: ResidentTrainer, rounds: int) -> History:
    """A ledger of the run, with states that the server has chosen."""
    deltas = [delta_of(number) for number in range(1, rounds + 1)]
    return history_of(deltas, trainer.runtime.layout, run_id_in(trainer))


def ask(
    client: Client, frame: bytes, history: History, round_: int, personal: bool = False
) -> bytes:
    """Catch up to a round and evaluate, as a ClientApp does with a server's message."""
    catch_up = CatchUp(tail=history.tail(0, round_))
    return client.answer(evaluate_task(frame, catch_up, personal=personal))


def refusal_of(frame: bytes) -> tuple[int, tuple[int, int]]:
    refusal = Refusal.decode(frame)
    return refusal.code, refusal.numbers
