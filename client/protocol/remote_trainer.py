"""The remote trainer: forwards a ClientApp's messages to the resident trainer's Unix socket."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from samara.client.protocol.trainer_socket import RECONNECT_OPTIONS, address_of
from samara.shared.errors import TrainerError
from samara.shared.ledger.records import CatchUp
from samara.shared.proto.trainer_pb2 import (
    BlobRequest,
    CatchUpRequest,
    EvaluateRequest,
    MaskRequest,
    StatusReply,
    StatusRequest,
    TrainRequest,
)
from samara.shared.proto.trainer_pb2_grpc import TrainerStub
from samara.shared.wire import MAX_FRAME_BYTES

PATIENCE_SECONDS = 60.0
"""Default time to wait for a trainer that is being restarted."""
CHANNEL_OPTIONS = (
    # a snapshot and a tail in one message, each within the limit of a frame
    ("grpc.max_receive_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    ("grpc.max_send_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    *RECONNECT_OPTIONS,
)


class RemoteTrainer:
    """A client in the process of its resident trainer; frames are forwarded unread.

    Every method raises `TrainerError` if the trainer fails or ends.

    Args:
        socket: path of the trainer's socket.
        settings: run config, with dotted keys.
        patience: seconds to wait for a trainer that does not accept the connection.

    Attributes:
        cost: round cost that came with the latest report, a frame for the server; empty unless the
            device's owner shares it.
    """

    def __init__(
        self, socket: str, settings: Mapping[str, Any], patience: float = PATIENCE_SECONDS
    ) -> None:
        self._socket, self._patience, self.cost = socket, patience, b""
        self._settings = json.dumps(dict(settings), sort_keys=True)
        self._channel = grpc.insecure_channel(address_of(Path(socket)), CHANNEL_OPTIONS)
        self._stub = TrainerStub(self._channel)

    def __enter__(self) -> Self:
        """Connect to the trainer.

        Raises:
            TrainerError: if no trainer accepts the connection in time.
        """
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
        """Return the hello with which the client introduces itself."""
        return self.status(self._settings).hello

    def status(self, settings: str = "") -> StatusReply:
        """Return the trainer's status, with the hello under these settings if there are any."""
        return self._call(self._stub.Status, StatusRequest(settings=settings))  # type: ignore[no-any-return]

    def catch_up(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Bring the session to an instruction's start; return nothing unless it is a refusal."""
        request = CatchUpRequest(
            instruction=instruction,
            settings=self._settings,
            snapshot=catch_up.snapshot,
            tail=catch_up.tail,
        )
        return self._frame(self._stub.CatchUp, request)

    def train(self, instruction: bytes) -> bytes:
        """Take the local steps, and return the report."""
        request = TrainRequest(instruction=instruction, settings=self._settings)
        answer = self._call(self._stub.Train, request)
        self.cost = answer.cost
        return answer.frame  # type: ignore[no-any-return]

    def evaluate(self, instruction: bytes, personal: bool) -> bytes:
        """Evaluate the global model, or the personal model and its baselines."""
        request = EvaluateRequest(
            instruction=instruction, settings=self._settings, personal=personal
        )
        return self._frame(self._stub.Evaluate, request)

    def receive_blob(self, part: bytes) -> bytes:
        """Keep a part of a file that the run needs, and return the receipt."""
        request = BlobRequest(part=part, settings=self._settings)
        return self._frame(self._stub.ReceiveBlob, request)

    def mask(self, frame: bytes) -> bytes:
        """Take part in the secure aggregation of a round; return nothing to sealed shares."""
        return self._frame(self._stub.Mask, MaskRequest(frame=frame, settings=self._settings))

    def _frame(self, method: Any, request: Any) -> bytes:
        frame: bytes = self._call(method, request).frame
        return frame

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                reason = "it ended during the call"
            else:
                reason = f"{error.code().name.lower()}: {error.details()}"
            raise TrainerError(f"the trainer at {self._socket} failed: {reason}") from error
