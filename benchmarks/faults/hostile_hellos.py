"""False hellos of a client with a valid key; they must not start, end or block a run."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from flwr.app import Message, MessageType

from benchmarks.faults.toy_client import LAYOUT, app
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.protocol.wire import RECORD
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid

CLIENTS = 4
FOREIGN = replace(LAYOUT, a_seed=7)
LONG = replace(LAYOUT, tensors=tuple(Tensor(str(n), 1, 1, ADAPTER_GROUP) for n in range(2**15)))
HUGE = Layout((Tensor("toy", 2**29, 1, ADAPTER_GROUP),), 1, 1.0, 0, "rademacher")
Change = Callable[[Hello], Hello]


def says_layout(layout: Layout) -> Change:
    return lambda hello: replace(hello, layout=layout.to_json())


def says_clients(count: object) -> Change:
    return lambda hello: replace(hello, facts=f'{{"clients": {count}}}')


def says_model(hello: Hello) -> Hello:
    return replace(hello, model_id=b"m" * 32)


HELLOS: dict[str, Change] = {
    "clients: 10⁹": says_clients(10**9),
    "clients: 99,999": says_clients(99_999),
    "a layout of 2²⁹ numbers": says_layout(HUGE),
    "a layout of 2¹⁵ tensors": says_layout(LONG),
    "a foreign layout": says_layout(FOREIGN),
    "another model": says_model,
}


class HostileGrid(InProcessGrid):
    """A grid on which some clients send false hellos, and some clients connect later."""

    def __init__(
        self, config: RunConfig, changes: dict[int, Change], first: Iterable[int] | None = None
    ) -> None:
        super().__init__(app, CLIENTS, config.flat())
        self._changes = changes
        self._first = None if first is None else {FIRST_CLIENT_NODE + n for n in first}
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the connected nodes; nodes that connect later are missing at first."""
        nodes = list(super().get_node_ids())
        self._looks += 1
        return nodes if self._first is None or self._looks > 6 else sorted(self._first)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Return the replies, with some hellos changed."""
        for reply in super().pull_messages(message_ids):
            change = self._changes.get(reply.metadata.src_node_id - FIRST_CLIENT_NODE)
            if change and reply.metadata.message_type == MessageType.QUERY:
                record = reply.content.config_records[RECORD]
                frame = record["frame"]
                assert isinstance(frame, bytes)
                record["frame"] = change(Hello.decode(frame)).encode()
            yield reply
