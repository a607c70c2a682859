"""A client for questions to this device's models through the resident trainer's socket."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from samara.client.trainer.trainer_socket import RECONNECT_OPTIONS, address_of
from samara.shared.errors import (
    BusyError,
    QuestionError,
    SamaraError,
    TrainerError,
    UnknownModelError,
)
from samara.shared.proto.trainer_pb2 import (
    ClassifyReply,
    ClassifyRequest,
    DescribeReply,
    DescribeRequest,
    GeneratePart,
    GenerateRequest,
    Question,
)
from samara.shared.proto.trainer_pb2_grpc import PersonalModelStub

_KINDS: dict[grpc.StatusCode, type[SamaraError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: QuestionError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BusyError,
}


class RemoteModel:
    """The models of the resident trainer, which runs in another process.

    Every method raises a `QuestionError` if the question cannot be answered, a `BusyError` if too
    many questions are open, and a `TrainerError` if the trainer cannot be reached or fails.

    Args:
        socket: path of the trainer's socket.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = grpc.aio.insecure_channel(address_of(socket), RECONNECT_OPTIONS)
        self._stub = PersonalModelStub(self._channel)

    async def __aenter__(self) -> Self:
        """Return this object; the first question opens the connection."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self._channel.close()

    async def describe(self, run: str = "") -> DescribeReply:
        """Return the models that can answer questions.

        Args:
            run: first digits of a run id; empty for the run whose model is in use.
        """
        return await self._call(self._stub.Describe, DescribeRequest(run=run))  # type: ignore[no-any-return]

    async def classify(
        self, questions: Sequence[str | Mapping[str, str]], models: Sequence[str], run: str = ""
    ) -> ClassifyReply:
        """Return the labels of texts under several models.

        Args:
            questions: texts, or rows by field if the task reads several fields.
            models: names of the models.
            run: first digits of a run id; empty for the run whose model is in use.
        """
        request = ClassifyRequest(
            questions=[
                Question(text=one) if isinstance(one, str) else Question(fields=dict(one))
                for one in questions
            ],
            models=models,
            run=run,
        )
        return await self._call(self._stub.Classify, request)  # type: ignore[no-any-return]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GeneratePart, None]:
        """Yield opening, pieces and ending of a text; closing the iterator ends the call."""
        call = self._stub.Generate(request)
        try:
            async for part in call:
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        finally:
            call.cancel()

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request)
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error

    def _error(self, error: grpc.aio.AioRpcError) -> SamaraError:
        if kind := _KINDS.get(error.code()):
            return kind(error.details())
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return TrainerError(
                f"no trainer answers at {self._socket}: the trainer is being restarted, or `samara "
                "client up` has ended; ask again in a moment, or start `up` or `serve` again"
            )
        return TrainerError(
            f"the trainer at {self._socket} failed: {error.code().name.lower()}: {error.details()}"
        )
