"""A proxy that passes a server's tasks to the resident trainer's Unix socket."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from samara.client.trainer.trainer_socket import RECONNECT_OPTIONS, address_of
from samara.shared.errors import TrainerError
from samara.shared.proto.trainer_pb2 import Reply, StatusReply, StatusRequest, Task
from samara.shared.proto.trainer_pb2_grpc import TrainerStub
from samara.shared.protocol.wire import MAX_FRAME_BYTES

PATIENCE_SECONDS = 60.0
"""Default time in seconds to wait for a trainer that is being restarted."""
CHANNEL_OPTIONS = (
    # One message may contain a snapshot and a tail, each as large as a frame.
    ("grpc.max_receive_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    ("grpc.max_send_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    *RECONNECT_OPTIONS,
)


class RemoteTrainer:
    """A proxy for the client in the resident trainer's process; it does not decode frames.

    Every method raises `TrainerError` if the trainer fails or ends.

    Args:
        socket: path of the trainer's socket.
        patience: seconds to keep trying to connect to the trainer.
    """

    def __init__(self, socket: str, patience: float = PATIENCE_SECONDS) -> None:
        self._socket, self._patience = socket, patience
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

    def answer(self, task: Task) -> Reply:
        """Return the reply to a task.

        Args:
            task: task whose settings are the run config, a JSON object with dotted keys.
        """
        return self._call(self._stub.Answer, task)  # type: ignore[no-any-return]

    def status(self) -> StatusReply:
        """Return the trainer's status."""
        return self._call(self._stub.Status, StatusRequest())  # type: ignore[no-any-return]

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                reason = "it ended during the call"
            else:
                reason = f"{error.code().name.lower()}: {error.details()}"
            raise TrainerError(f"the trainer at {self._socket} failed: {reason}") from error
