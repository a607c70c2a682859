"""The in-process engine, a Flower `Grid` that calls the unmodified ClientApp.

The engine uses no sockets, serialization or polling. It uses Flower's classes of messages and
contexts, so that ServerApp and ClientApp also run unchanged with Flower's engines.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from samara.shared.flower_compat import ErrorCode, Run, TaskIdentity, set_message_id

log = logging.getLogger("samara.engine")

RUN_ID = 1
_SERVER_NODE = 1
FIRST_CLIENT_NODE = 1000


def ignore_message(message_type: str, partition: int) -> None:
    """Do nothing; the default callback after an answered message."""


class LocalGrid(Grid):
    """The base class of in-process grids, in which node `FIRST_CLIENT_NODE` + i is client i."""

    def __init__(self) -> None:
        self._run = Run.create_empty(RUN_ID)
        TaskIdentity.run_id = RUN_ID
        TaskIdentity.node_id = _SERVER_NODE
        TaskIdentity.task_id = RUN_ID

    def set_run(self, run: Run) -> None:
        """Set the run that this grid belongs to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid belongs to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver messages, and return the replies that are available immediately."""
        return self.pull_messages(self.push_messages(messages))


class InProcessGrid(LocalGrid):
    """A grid that delivers every message by a function call.

    Args:
        client_app: the app that every node runs.
        clients: number of nodes; node i holds partition i.
        run_config: Flower's run config, passed to every client.
        on_message: function that is called with message type and partition after each answered
            message.
        pool: threads that answer messages of different clients in parallel. Without a pool,
            messages are answered one after the other.
        nodes: additional node config of each node.
    """

    def __init__(
        self,
        client_app: ClientApp,
        clients: int,
        run_config: UserConfig,
        on_message: Callable[[str, int], None] = ignore_message,
        pool: Executor | None = None,
        nodes: Sequence[UserConfig] = (),
    ) -> None:
        self._client_app = client_app
        self._on_message = on_message
        self._map = pool.map if pool else map
        super().__init__()
        self._contexts = {
            FIRST_CLIENT_NODE + partition: Context(
                run_id=RUN_ID,
                node_id=FIRST_CLIENT_NODE + partition,
                node_config={"partition-id": partition, "num-partitions": clients}
                | dict(nodes[partition] if nodes else {}),
                state=RecordDict(),
                run_config=run_config,
            )
            for partition in range(clients)
        }
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes, because every client is always connected."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages and keep the replies."""
        sent = {str(uuid4()): message for message in messages}
        for identifier, message in sent.items():
            set_message_id(message, identifier)
        self._replies |= zip(sent, self._map(self._deliver, sent.values()), strict=True)
        return list(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages; each reply is returned once."""
        return [self._replies.pop(m) for m in list(message_ids) if m in self._replies]

    def _deliver(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            reply = self._client_app(message, context)
        except Exception as error:
            log.exception("the client app failed")
            reply = Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=message
            )
        partition = int(context.node_config["partition-id"])
        self._on_message(message.metadata.message_type, partition)
        return reply
