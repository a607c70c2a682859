"""The gRPC service of a resident trainer, on a Unix socket that only its owner can open.

One thread loads the model and does all the work in the order of the calls, so that no result
depends on the thread that computed it. Between calls this thread takes the client's private rounds.
A second thread answers the owner's questions between the first thread's forward passes. Questions
have priority. A third thread returns the status at any time.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from samara.client.forward.peak_memory import give_back_freed_memory
from samara.client.forward.turns import Turns, take_turns
from samara.client.limits.pauses import Pauses
from samara.client.limits.work_costs import WorkCost, WorkCosts
from samara.client.protocol.client import INSTRUCTIONS
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import decode_instruction
from samara.client.questions.model_in_use import find_unevaluated_runs
from samara.client.questions.model_validation import note_validation
from samara.client.questions.personal_model import PersonalModels
from samara.client.questions.question_limits import MOST_QUESTIONS
from samara.client.questions.question_runner import QuestionRunner
from samara.client.questions.question_service import QuestionService
from samara.client.trainer.idle_work import IdleWork
from samara.client.trainer.remote_trainer import CHANNEL_OPTIONS
from samara.client.trainer.trainer_socket import address_of
from samara.shared.errors import SamaraError, TrainerError
from samara.shared.machine.process import peak_memory_bytes
from samara.shared.proto.trainer_pb2 import Reply, StatusReply, StatusRequest, Task, TaskKind
from samara.shared.proto.trainer_pb2_grpc import (
    TrainerServicer,
    add_PersonalModelServicer_to_server,
    add_TrainerServicer_to_server,
)
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.wire import Kind, kind_of

log = logging.getLogger("samara.client")

_RECEIVERS = 4 + MOST_QUESTIONS
"""Number of threads that receive calls, then wait for the working or the answering thread."""
_OWNER_ONLY_UMASK = 0o177


class _Service(TrainerServicer):  # type: ignore[misc]
    """A gRPC service that passes calls to the working thread; see trainer.proto for the calls."""

    def __init__(
        self,
        resident: ResidentTrainer,
        worker: ThreadPoolExecutor,
        pauses: Pauses,
        joules: Callable[[], float | None],
        shares_cost: bool,
    ) -> None:
        self._resident, self._worker, self._shares_cost = resident, worker, shares_cost
        self.idle = IdleWork(worker, self._take_private_rounds, pauses.reason)
        # ids of runs with personal models that are not evaluated yet
        self._unevaluated = find_unevaluated_runs(resident.folder)
        self._pauses, self._joules = pauses, joules
        self._costs = WorkCosts(resident.folder)
        self._call_count, self._busy_seconds = 0, 0.0

    def Answer(self, request: Task, context: Any) -> Reply:  # noqa: N802
        with self.idle.message():
            return self._worker.submit(self._answer, request).result()

    def Status(self, request: StatusRequest, context: Any) -> StatusReply:  # noqa: N802
        return StatusReply(
            model_loads=self._resident.model_loads,
            answered=self._call_count,
            busy_seconds=self._busy_seconds,
            peak_memory_bytes=peak_memory_bytes(),
            paused=self._pauses.reason(),
        )

    def _answer(self, task: Task) -> Reply:
        """Return the reply to a task, in the working thread."""
        begun, paused, joules = time.monotonic(), self._pauses.seconds, self._joules()
        reply = Reply(frame=self._resident.answer(task, self._pauses.message))
        give_back_freed_memory()
        seconds = time.monotonic() - begun
        self._call_count += 1
        self._busy_seconds += seconds
        if task.kind not in INSTRUCTIONS:
            return reply
        after, kind = self._joules(), kind_of(reply.frame)
        cost = WorkCost(
            int(task.kind == TaskKind.TRAIN),
            seconds,
            self._pauses.seconds - paused,
            0.0 if joules is None or after is None else after - joules,
        )
        self._note_cost(task.instruction, cost)
        if kind is Kind.EVALUATION and task.personal:
            self._note_validation(decode_instruction(task.instruction).run_id)
        if self._shares_cost and kind in (Kind.REPORT, Kind.REPORT_OF_SUMS):
            spent = cost.seconds, cost.paused, cost.joules
            token, client = token_of(task.instruction), self._resident.client
            reply.cost = RoundCost(token, client, *spent).encode()
        return reply

    def _take_private_rounds(self) -> None:
        """Take the private rounds that are due, between messages.

        Models left over from a killed trainer are evaluated first. The personal model is evaluated
        after the private rounds from each state, before the next private rounds begin. A device
        that is slower than its federation would otherwise never evaluate, because it always has
        pending private rounds.
        """
        while True:
            while self._unevaluated:
                self._note_validation(self._unevaluated[0])
                del self._unevaluated[0]
            if not (personalized := self._resident.take_private_rounds()):
                return
            self._unevaluated.append(personalized)

    def _note_validation(self, run_id: bytes) -> None:
        try:
            note_validation(self._resident, run_id)
        except SamaraError as error:  # the task's answer does not depend on it
            log.warning("the personal model could not be evaluated: %s", error)

    def _note_cost(self, instruction: bytes, cost: WorkCost) -> None:
        try:
            self._costs.add(decode_instruction(instruction).run_id, cost)
        except SamaraError as error:  # no answer depends on the costs
            log.warning("%s", error)


@contextmanager
def serve_trainer(
    load: Callable[[], ResidentTrainer],
    socket: Path,
    pause_reason: Callable[[], str] = lambda: "",
    joules: Callable[[], float | None] = lambda: None,
    shares_cost: bool = False,
) -> Iterator[ResidentTrainer]:
    """Serve a resident trainer on a socket inside the context.

    Args:
        load: function that loads the trainer; called once, in the thread that uses the trainer.
        socket: path of the socket. An existing file is replaced, so the caller must make sure that
            no other trainer listens there.
        pause_reason: function that returns without delay the current reason for a pause; empty for
            no pause. It is called before every forward pass.
        joules: function that returns the machine's energy so far, in joules; None if it is not
            measured.
        shares_cost: whether to send each report's cost for this device along with the report.

    Raises:
        SamaraError: if the trainer cannot be loaded, or the socket cannot be opened.
    """
    pauses = Pauses(pause_reason)
    turns = Turns(pauses.before_pass)
    with (
        ThreadPoolExecutor(1, "trainer", take_turns, (turns.training_pass,)) as worker,
        ThreadPoolExecutor(1, "answers") as answerer,
    ):
        resident = worker.submit(load).result()
        server = grpc.server(ThreadPoolExecutor(_RECEIVERS), options=CHANNEL_OPTIONS)
        service = _Service(resident, worker, pauses, joules, shares_cost)
        add_TrainerServicer_to_server(service, server)
        questions = QuestionService(PersonalModels(resident), QuestionRunner(turns, answerer))
        add_PersonalModelServicer_to_server(questions, server)
        address = address_of(socket)
        previous = os.umask(_OWNER_ONLY_UMASK)
        try:
            socket.unlink(missing_ok=True)
            server.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            raise TrainerError(
                f"{socket}: cannot be opened: {error}; check the permissions of its folder"
            ) from error
        finally:
            os.umask(previous)
        server.start()
        service.idle.begin()
        try:
            yield resident
        finally:
            service.idle.close()
            server.stop(None).wait()
            socket.unlink(missing_ok=True)
