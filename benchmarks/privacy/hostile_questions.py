"""The answers of a client to a server that asks for more than a run needs.

    python -m benchmarks.privacy.hostile_questions

One live client with the settings of `samara client up` (embedded model, generated messages, a
readout) is sent frames by a server that makes up its run, and so its states too. Every row begins
with a new client, and says how many messages were answered and what left the device; ``--set``
gives the client settings of its owner.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from samara.client.protocol.client import Client
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.devices.live.settings import resolve_device_settings
from samara.shared.config import RunConfig
from samara.shared.errors import SamaraError
from samara.shared.frames.evaluation import Evaluation
from samara.shared.frames.instructions import (
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from samara.shared.frames.refusal import Refusal
from samara.shared.frames.report import Report
from samara.shared.ledger.ledger import Ledger
from samara.shared.ledger.records import LedgerHeader
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.replay import CoefficientBlock
from samara.shared.round_delta import DerivedSeeds, Group, RoundDelta
from samara.shared.wire import Kind, kind_of

RUN_ID, TIMES = b"made up!", 50


class MadeUpRun:
    """A run that never was, and the client that is asked about it."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        device = resolve_device_settings("embedded", "messages", "messages", "cpu", settings)
        trainer = ResidentTrainer.load(RunConfig.of(device, "device"), 7, folder / "client")
        self.client: Client = trainer.client_under(RunConfig.of({}, "server"))
        self.layout = trainer.runtime.layout
        header = LedgerHeader(0, RUN_ID, self.layout.hash)
        self.ledger = Ledger(folder / "ledger", header, self.layout, 0)

    def move(self) -> None:
        """Go to another state: the next round, in one direction of the server's choice."""
        number = self.ledger.position.round + 1
        step = CoefficientBlock(3, np.array([10**6], np.int32))
        group = Group(number, DerivedSeeds(number, 0, 1, 1), step)
        self.ledger.append(RoundDelta(number, 0, bytes(8), (), (group,)))

    def train(self, **changes: int) -> bytes:
        """Ask for a report on one step, with changes."""
        instruction = TrainInstruction(
            run_id=RUN_ID,
            round=self.ledger.position.round + 1,
            track=0,
            steps=1,
            queries=16,
            batch=16,
            seed_policy=SeedPolicy.INDEPENDENT,
            root=1,
            epsilon=1e-3,
            learning_rate=0.0,
            clip=0.0,
            deadline=0.0,
            layout_hash=self.layout.hash,
            start_digest=self.ledger.digest,
        )
        frame = replace(instruction, **changes).encode()  # type: ignore[arg-type]
        return self._ask(frame, TaskKind.TRAIN)

    def evaluate(self, split: Split, personal: bool = False) -> bytes:
        """Ask for an evaluation of the present state."""
        position, digest = self.ledger.position, self.ledger.digest
        frame = EvaluateInstruction(
            RUN_ID, position.round, 0, split, self.layout.hash, digest
        ).encode()
        return self._ask(frame, TaskKind.EVALUATE, personal)

    def _ask(self, frame: bytes, kind: TaskKind, personal: bool = False) -> bytes:
        missed = self.ledger.catch_up(0)
        return self.client.answer(
            Task(
                kind=kind,
                instruction=frame,
                snapshot=missed.snapshot,
                tail=missed.tail,
                personal=personal,
            )
        )


def at_states(run: MadeUpRun, ask: Callable[[MadeUpRun], bytes]) -> Iterator[bytes]:
    """Ask the same at many states."""
    for _ in range(TIMES):
        run.move()
        yield ask(run)


Question = Callable[[MadeUpRun], Iterator[bytes]]
QUESTIONS: dict[str, Question] = {
    "a step on one example": lambda run: iter([run.train(batch=1, queries=run.layout.size + 64)]),
    "100,000 directions on two examples": lambda run: iter(
        [run.train(batch=2, steps=2, queries=50_000)]
    ),
    f"the loss of the training examples at {TIMES} states": partial(
        at_states, ask=lambda run: run.evaluate(Split.TRAIN)
    ),
    f"the loss of the validation examples at {TIMES} states": partial(
        at_states, ask=lambda run: run.evaluate(Split.VALIDATION)
    ),
    f"{TIMES} personal comparisons": partial(
        at_states, ask=lambda run: run.evaluate(Split.TEST, personal=True)
    ),
    f"{TIMES} instructions of one round, 16 directions each": lambda run: (
        run.train(root=number) for number in range(TIMES)
    ),
}


def describe(answers: list[bytes]) -> str:
    """Return how many messages were answered and refused, and the numbers in the answers."""
    answered = [answer for answer in answers if kind_of(answer) is not Kind.REFUSAL]
    codes = {Refusal.decode(a).code for a in answers if kind_of(a) is Kind.REFUSAL}
    scalars = losses = 0
    for answer in answered:
        if kind_of(answer) is Kind.EVALUATION:
            losses += len(Evaluation.decode(answer).columns)
        else:
            scalars, losses = scalars + Report.decode(answer).gradients.size, losses + 1
    refused = f"; the others refused, code {', '.join(map(str, sorted(codes)))}" if codes else ""
    return f"{len(answered)} of {len(answers)}: {scalars:,} scalars, {losses} losses{refused}"


@contextmanager
def made_up_run(settings: list[str]) -> Iterator[MadeUpRun]:
    """A new client in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run = MadeUpRun(Path(folder), settings)
        try:
            yield run
        finally:
            run.ledger.close()


def main() -> None:
    """Print a row for every question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", action="append", default=[], help="key=value, the owner's")
    settings = parser.parse_args().set
    print("| asked | answered |\n|---|---|")
    for name, ask in QUESTIONS.items():
        with made_up_run(settings) as run:
            try:
                print(f"| {name} | {describe(list(ask(run)))} |", flush=True)
            except SamaraError as error:
                print(f"| {name} | {error} |", flush=True)


if __name__ == "__main__":
    main()
