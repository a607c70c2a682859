"""The trainer's gRPC service on a Unix socket that only its owner may open.

One thread loads the model and does all the work, in the order in which it is asked, so that a
result never depends on which thread was asked. Another tells how it is in the meantime.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from client.protocol.client_handler import make_refusal
from client.protocol.protocol_client import ProtocolClient
from client.protocol.remote_trainer import CHANNEL_OPTIONS, address_of
from client.protocol.resident_trainer import ResidentTrainer
from shared.errors import PausedError, SamaraError, TrainerError
from shared.ledger.catch_up import CatchUp
from shared.machine import peak_memory_bytes
from shared.proto.trainer_pb2 import (
    Answer,
    CatchUpRequest,
    EvaluateRequest,
    StatusReply,
    StatusRequest,
    TrainRequest,
)
from shared.proto.trainer_pb2_grpc import TrainerServicer, add_TrainerServicer_to_server

_RECEIVERS = 4
"""Threads that receive calls and wait for the working one."""
_OTHERS_MAY_NOT = 0o177


class _Service(TrainerServicer):  # type: ignore[misc]
    """Hands the calls to the working thread; see trainer.proto for what they do."""

    def __init__(
        self, resident: ResidentTrainer, work: ThreadPoolExecutor, paused: Callable[[], str]
    ) -> None:
        self._resident, self._work, self._paused = resident, work, paused
        self._answered, self._busy = 0, 0.0

    def CatchUp(self, request: CatchUpRequest, context: Any) -> Answer:  # noqa: N802
        catch_up = CatchUp(request.snapshot, request.tail)
        return self._answer(request, lambda client: client.catch_up(request.instruction, catch_up))

    def Train(self, request: TrainRequest, context: Any) -> Answer:  # noqa: N802
        return self._unless_paused(request, lambda client: client.train(request.instruction))

    def Evaluate(self, request: EvaluateRequest, context: Any) -> Answer:  # noqa: N802
        return self._unless_paused(
            request, lambda client: client.evaluate(request.instruction, request.personal)
        )

    def Status(self, request: StatusRequest, context: Any) -> StatusReply:  # noqa: N802
        hello = b""
        if request.settings:
            hello = self._done(b"", request.settings, lambda client: client.hello())
        return StatusReply(
            hello=hello,
            model_loads=self._resident.model_loads,
            answered=self._answered,
            busy_seconds=self._busy,
            peak_memory_bytes=peak_memory_bytes(),
            paused=self._paused(),
        )

    def _unless_paused(
        self, request: TrainRequest | EvaluateRequest, ask: Callable[[ProtocolClient], bytes]
    ) -> Answer:
        if reason := self._paused():
            return self._answer(
                request,
                lambda client: client.refuse(request.instruction, PausedError(f"paused: {reason}")),
            )
        return self._answer(request, ask)

    def _answer(
        self,
        request: CatchUpRequest | TrainRequest | EvaluateRequest,
        ask: Callable[[ProtocolClient], bytes],
    ) -> Answer:
        return Answer(frame=self._done(request.instruction, request.settings, ask))

    def _done(
        self, instruction: bytes, settings: str, ask: Callable[[ProtocolClient], bytes]
    ) -> bytes:
        def work() -> bytes:
            begun = time.monotonic()
            try:
                return ask(self._resident.under(settings))
            except SamaraError as error:  # of the settings; a client refuses by itself
                return make_refusal(instruction, self._resident.client, 0, error)
            finally:
                self._answered += 1
                self._busy += time.monotonic() - begun

        return self._work.submit(work).result()


@contextmanager
def served(
    load: Callable[[], ResidentTrainer], socket: Path, paused: Callable[[], str] = lambda: ""
) -> Iterator[ResidentTrainer]:
    """A trainer that answers on a socket for as long as the context lasts.

    Args:
        load: makes the trainer; called once, in the thread that will use it.
        socket: of the service; a file that is there is replaced, so the caller makes sure that no
            other trainer listens.
        paused: why no work is taken at present; empty if it is.

    Raises:
        SamaraError: if the trainer cannot be loaded or the socket not be opened.
    """
    with ThreadPoolExecutor(1, "trainer") as work:
        resident = work.submit(load).result()
        server = grpc.server(ThreadPoolExecutor(_RECEIVERS), options=CHANNEL_OPTIONS)
        service = _Service(resident, work, paused)
        add_TrainerServicer_to_server(service, server)
        address = address_of(socket)
        before = os.umask(_OTHERS_MAY_NOT)
        try:
            socket.unlink(missing_ok=True)
            server.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            raise TrainerError(f"{socket}: cannot be opened: {error}") from error
        finally:
            os.umask(before)
        server.start()
        try:
            yield resident
        finally:
            server.stop(None).wait()
            socket.unlink(missing_ok=True)
