"""A Flower grid that forwards every call to another grid."""

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from samara.shared.flower_compat import Run


class DelegatingGrid(Grid):
    """A grid that forwards every call to another grid; subclasses override some calls.

    Args:
        grid: the grid that receives the calls.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Set the run that this grid belongs to."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run that this grid belongs to."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to a node."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived; each reply is returned once."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and return the replies that are available immediately.

        `pull_messages` returns later replies.
        """
        return self.pull_messages(self.push_messages(messages))
