"""A resident trainer behind its Unix socket, as the ClientApp sees it."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from shared.errors import TrainerError
from shared.ledger.catch_up import CatchUp
from shared.proto.trainer_pb2 import (
    CatchUpRequest,
    EvaluateRequest,
    StatusReply,
    StatusRequest,
    TrainRequest,
)
from shared.proto.trainer_pb2_grpc import TrainerStub
from shared.wire import MAX_FRAME_BYTES

PATIENCE_SECONDS = 60.0
"""How long a trainer that is being started again is waited for."""
MAX_SOCKET_BYTES = 107
"""Of a path that a Unix socket may have."""
CHANNEL_OPTIONS = (
    # a snapshot and a tail in one message, each within the limit of a frame
    ("grpc.max_receive_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    ("grpc.max_send_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    # a trainer that is started again is found at once; the usual pause grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def address_of(socket: Path) -> str:
    """What gRPC calls a Unix socket.

    Raises:
        TrainerError: if the path is too long for one.
    """
    path = str(socket.absolute())
    if len(path.encode()) > MAX_SOCKET_BYTES:
        raise TrainerError(
            f"{path}: a socket's path may have {MAX_SOCKET_BYTES} bytes; use a shorter folder"
        )
    return f"unix:{path}"


class RemoteTrainer:
    """Forwards to the trainer process; frames pass unread.

    Args:
        socket: of the trainer.
        settings: the run config, dotted keys.
        patience: seconds to wait for a trainer that does not answer the door.

    Raises:
        TrainerError: from every method, if the trainer is not there or fails.
    """

    def __init__(
        self, socket: str, settings: Mapping[str, Any], patience: float = PATIENCE_SECONDS
    ) -> None:
        self._socket, self._patience = socket, patience
        self._settings = json.dumps(dict(settings), sort_keys=True)
        self._channel = grpc.insecure_channel(address_of(Path(socket)), CHANNEL_OPTIONS)
        self._stub = TrainerStub(self._channel)

    def __enter__(self) -> Self:
        """The trainer, once it is there."""
        try:
            grpc.channel_ready_future(self._channel).result(self._patience)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise TrainerError(
                f"no trainer answers at {self._socket}; is 'samara client up' running?"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self._channel.close()

    def hello(self) -> bytes:
        """How the client introduces itself."""
        return self.status(self._settings).hello

    def status(self, settings: str = "") -> StatusReply:
        """How the trainer is, with the introduction under these settings."""
        return self._call(self._stub.Status, StatusRequest(settings=settings))  # type: ignore[no-any-return]

    def catch_up(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Stand where an instruction begins."""
        request = CatchUpRequest(
            instruction=instruction,
            settings=self._settings,
            snapshot=catch_up.snapshot,
            tail=catch_up.tail,
        )
        return self._frame(self._stub.CatchUp, request)

    def train(self, instruction: bytes) -> bytes:
        """Train, and report."""
        request = TrainRequest(instruction=instruction, settings=self._settings)
        return self._frame(self._stub.Train, request)

    def evaluate(self, instruction: bytes, personal: bool) -> bytes:
        """Evaluate the global model, or compare every way to serve this client."""
        request = EvaluateRequest(
            instruction=instruction, settings=self._settings, personal=personal
        )
        return self._frame(self._stub.Evaluate, request)

    def _frame(self, method: Any, request: Any) -> bytes:
        frame: bytes = self._call(method, request).frame
        return frame

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                reason = "it ended while it worked; it is started again"
            else:
                reason = f"{error.code().name.lower()}: {error.details()}"
            raise TrainerError(f"the trainer at {self._socket} failed: {reason}") from error
