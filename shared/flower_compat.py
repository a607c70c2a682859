"""Imports of Flower's non-public parts; no other file of Samara imports them.

Flower may change them in any release. Each part is listed with the Flower version that it was
tested with, and `tests/shared/test_flower_compat.py` names the parts that an installed Flower
lacks. A part is imported at first use, so that a client's process loads no server parts of Flower.
"""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import Message

from samara.shared.network.polling import LEAST_PAUSE, pause_before_asking

if TYPE_CHECKING:
    from flwr.cli.build import build_fab_from_files as build_fab_from_files
    from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK_NODE_ID
    from flwr.common.constant import TIMESTAMP_HEADER as TIMESTAMP_HEADER
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.common.constant import SubStatus as SubStatus
    from flwr.common.serde import fab_to_proto as fab_to_proto
    from flwr.common.serde import message_to_proto as message_to_proto
    from flwr.common.serde import user_config_to_proto as user_config_to_proto
    from flwr.proto.control_pb2 import ListNodesRequest as ListNodesRequest
    from flwr.proto.control_pb2 import ListRunsRequest as ListRunsRequest
    from flwr.proto.control_pb2 import RegisterNodeRequest as RegisterNodeRequest
    from flwr.proto.control_pb2 import StartRunRequest as StartRunRequest
    from flwr.proto.control_pb2 import StopRunRequest as StopRunRequest
    from flwr.proto.control_pb2 import UnregisterNodeRequest as UnregisterNodeRequest
    from flwr.proto.fleet_pb2 import PushMessagesRequest as PushMessagesRequest
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest as ConfirmMessageReceivedRequest,
    )
    from flwr.proto.message_pb2 import ObjectTree as ObjectTree
    from flwr.proto.message_pb2 import PullObjectRequest as PullObjectRequest
    from flwr.proto.message_pb2 import PushObjectRequest as PushObjectRequest
    from flwr.proto.node_pb2 import NodeInfo as NodeInfo
    from flwr.proto.runtime_pb2 import AcquireTaskRequest as AcquireTaskRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest as PullAppMessagesRequest
    from flwr.proto.runtime_pb2 import PushAppMessagesRequest as PushAppMessagesRequest
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest as SendTaskHeartbeatRequest
    from flwr.supercore.constant import (
        FLEET_HTTP_PUBLIC_KEY_HEADER as FLEET_HTTP_PUBLIC_KEY_HEADER,
    )
    from flwr.supercore.constant import (
        FLEET_HTTP_SIGNATURE_HEADER as FLEET_HTTP_SIGNATURE_HEADER,
    )
    from flwr.supercore.constant import TaskType as TaskType
    from flwr.supercore.control import ControlHttpClient as ControlHttpClient
    from flwr.supercore.fab import Fab as Fab
    from flwr.supercore.heartbeat import HeartbeatSender as HeartbeatSender
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects as get_all_nested_objects,
    )
    from flwr.supercore.inflatable.inflatable_object import get_object_tree as get_object_tree
    from flwr.supercore.inflatable.inflatable_object import (
        iterate_object_tree as iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_object import (
        no_object_id_recompute as no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError as ObjectPullError
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectUnavailableError as ObjectUnavailableError,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents as inflate_object_from_contents,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_objects as pull_objects
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor as RuntimeTokenHttpInterceptor,
    )
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor as RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.interceptors import (
        SuperExecAuthHttpInterceptor as SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.protobuf.client import (
        ProtobufClientInterceptor as ProtobufClientInterceptor,
    )
    from flwr.supercore.retry import (
        make_simple_http_retry_invoker as make_simple_http_retry_invoker,
    )
    from flwr.supercore.run import Run as Run
    from flwr.supercore.run import RunNotRunningException as RunNotRunningException
    from flwr.supercore.runtime import RuntimeHttpClient as RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.superlink.auth_plugin.noop_auth_plugin import (
        _create_noop_account_info as _create_noop_account_info,
    )
    from flwr.superlink.cli import flower_superlink as flower_superlink
    from flwr.superlink.grid import HttpGrid as HttpGrid
    from flwr.superlink.servicer.control.control_handlers import register_node as register_node
    from flwr.supernode.cli.flower_supernode import flower_supernode as flower_supernode
    from flwr.supernode.fleet_http_connection import http_request_response as http_request_response
    from flwr.supernode.runtime.run_clientapp import pull_task_input as pull_task_input
    from flwr.supernode.runtime.run_clientapp import push_message as push_message
    from flwr.supernode.runtime.run_clientapp import push_task_output as push_task_output
    from flwr.supernode.start_client_internal import (
        _pull_and_store_message as _pull_and_store_message,
    )
    from flwr.supernode.start_client_internal import _push_messages as _push_messages


class FlowerPart(NamedTuple):
    """A non-public part of Flower.

    Attributes:
        module: module that contains the part.
        tested_version: the Flower version that Samara was tested with.
    """

    module: str
    tested_version: str


_PARTS_AT_ONCE = 4
"""Number of threads for the parts of a message. A valid message has three parts: message, records,
and one record."""
_HELLO = "query"
"""Message type of a hello request: Flower's ``query`` without the name of an action."""
_RUN_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
_START_CLIENT = "flwr.supernode.start_client_internal"
_OBJECT, _OBJECT_UTILS = (
    f"flwr.supercore.inflatable.inflatable_{name}" for name in ("object", "utils")
)
PARTS = {
    "AcquireTaskRequest": FlowerPart("flwr.proto.runtime_pb2", "1.41.0"),
    "ConfirmMessageReceivedRequest": FlowerPart("flwr.proto.message_pb2", "1.41.0"),
    "ControlHttpClient": FlowerPart("flwr.supercore.control", "1.41.0"),
    "ErrorCode": FlowerPart("flwr.common.constant", "1.41.0"),
    "FLEET_HTTP_PUBLIC_KEY_HEADER": FlowerPart("flwr.supercore.constant", "1.41.0"),
    "FLEET_HTTP_SIGNATURE_HEADER": FlowerPart("flwr.supercore.constant", "1.41.0"),
    "Fab": FlowerPart("flwr.supercore.fab", "1.41.0"),
    "HeartbeatSender": FlowerPart("flwr.supercore.heartbeat", "1.41.0"),
    "HttpGrid": FlowerPart("flwr.superlink.grid", "1.41.0"),
    "ListNodesRequest": FlowerPart("flwr.proto.control_pb2", "1.41.0"),
    "ListRunsRequest": FlowerPart("flwr.proto.control_pb2", "1.41.0"),
    "NodeInfo": FlowerPart("flwr.proto.node_pb2", "1.41.0"),
    "ObjectPullError": FlowerPart(_OBJECT_UTILS, "1.41.0"),
    "ObjectTree": FlowerPart("flwr.proto.message_pb2", "1.41.0"),
    "ObjectUnavailableError": FlowerPart(_OBJECT_UTILS, "1.41.0"),
    "ProtobufClientInterceptor": FlowerPart("flwr.supercore.protobuf.client", "1.41.0"),
    "PullAppMessagesRequest": FlowerPart("flwr.proto.runtime_pb2", "1.41.0"),
    "PullObjectRequest": FlowerPart("flwr.proto.message_pb2", "1.41.0"),
    "PushAppMessagesRequest": FlowerPart("flwr.proto.runtime_pb2", "1.41.0"),
    "PushMessagesRequest": FlowerPart("flwr.proto.fleet_pb2", "1.41.0"),
    "PushObjectRequest": FlowerPart("flwr.proto.message_pb2", "1.41.0"),
    "RegisterNodeRequest": FlowerPart("flwr.proto.control_pb2", "1.41.0"),
    "Run": FlowerPart("flwr.supercore.run", "1.41.0"),
    "RunNotRunningException": FlowerPart("flwr.supercore.run", "1.41.0"),
    "RuntimeHttpClient": FlowerPart("flwr.supercore.runtime", "1.41.0"),
    "RuntimeTokenHttpInterceptor": FlowerPart("flwr.supercore.interceptors", "1.41.0"),
    "RuntimeVersionHttpInterceptor": FlowerPart("flwr.supercore.interceptors", "1.41.0"),
    "SUPERLINK_NODE_ID": FlowerPart("flwr.common.constant", "1.41.0"),
    "SendTaskHeartbeatRequest": FlowerPart("flwr.proto.runtime_pb2", "1.41.0"),
    "StartRunRequest": FlowerPart("flwr.proto.control_pb2", "1.41.0"),
    "StopRunRequest": FlowerPart("flwr.proto.control_pb2", "1.41.0"),
    "SubStatus": FlowerPart("flwr.common.constant", "1.41.0"),
    "SuperExecAuthHttpInterceptor": FlowerPart("flwr.supercore.interceptors", "1.41.0"),
    "TIMESTAMP_HEADER": FlowerPart("flwr.common.constant", "1.41.0"),
    "TaskIdentity": FlowerPart("flwr.supercore.task_identity", "1.41.0"),
    "TaskType": FlowerPart("flwr.supercore.constant", "1.41.0"),
    "UnregisterNodeRequest": FlowerPart("flwr.proto.control_pb2", "1.41.0"),
    "_pull_and_store_message": FlowerPart(_START_CLIENT, "1.41.0"),
    "_create_noop_account_info": FlowerPart(
        "flwr.superlink.auth_plugin.noop_auth_plugin", "1.41.0"
    ),
    "_push_messages": FlowerPart(_START_CLIENT, "1.41.0"),
    "build_fab_from_files": FlowerPart("flwr.cli.build", "1.41.0"),
    "fab_to_proto": FlowerPart("flwr.common.serde", "1.41.0"),
    "flower_superlink": FlowerPart("flwr.superlink.cli", "1.41.0"),
    "flower_supernode": FlowerPart("flwr.supernode.cli.flower_supernode", "1.41.0"),
    "get_all_nested_objects": FlowerPart(_OBJECT, "1.41.0"),
    "get_object_tree": FlowerPart(_OBJECT, "1.41.0"),
    "http_request_response": FlowerPart("flwr.supernode.fleet_http_connection", "1.41.0"),
    "inflate_object_from_contents": FlowerPart(_OBJECT_UTILS, "1.41.0"),
    "iterate_object_tree": FlowerPart(_OBJECT, "1.41.0"),
    "make_simple_http_retry_invoker": FlowerPart("flwr.supercore.retry", "1.41.0"),
    "message_to_proto": FlowerPart("flwr.common.serde", "1.41.0"),
    "no_object_id_recompute": FlowerPart(_OBJECT, "1.41.0"),
    "pull_objects": FlowerPart(_OBJECT_UTILS, "1.41.0"),
    "pull_task_input": FlowerPart(_RUN_CLIENTAPP, "1.41.0"),
    "push_message": FlowerPart(_RUN_CLIENTAPP, "1.41.0"),
    "push_task_output": FlowerPart(_RUN_CLIENTAPP, "1.41.0"),
    "register_node": FlowerPart("flwr.superlink.servicer.control.control_handlers", "1.41.0"),
    "user_config_to_proto": FlowerPart("flwr.common.serde", "1.41.0"),
}
"""Flower's non-public parts by name. For type checkers, the same parts are imported above."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a part by name.

        Raises:
            ImportError: if the installed Flower lacks the part.
        """
        if name not in PARTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        part = PARTS[name]
        try:
            return getattr(import_module(part.module), name)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"Flower {version('flwr')} has no {part.module}.{name}. Samara was tested with it "
                f"in Flower {part.tested_version}; install flwr=={part.tested_version}, or change "
                f"{__name__}"
            ) from error


def set_message_id(message: Message, message_id: str) -> None:
    """Set a message's id, as Flower's grids do when they send a message."""
    message.metadata.__dict__["_message_id"] = message_id


def runtime_client(grid: "HttpGrid") -> "RuntimeHttpClient":
    """Return the client of the SuperLink's runtime API that a ServerApp's grid uses."""
    return grid._runtime_client


def end_tasks_of_lost_messages() -> None:
    """Make the SuperNode of this process end a task whose message can no longer be fetched.

    Flower ends such a task itself, unless the run has ended since the message was offered. In that
    case Flower raises an error that is not an `Exception`. The task would then stay open, and its
    executor would wait for the message forever.
    """
    internal: Any = import_module(_START_CLIENT)
    pull_and_store = internal._pull_and_store_message

    def ending(ask: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a server request so that it raises an `Exception` when the run has ended."""
        from flwr.supercore.run import RunNotRunningException

        def ask_or_fail(*arguments: Any) -> Any:
            try:
                return ask(*arguments)
            except RunNotRunningException:
                raise RuntimeError("its run has ended") from None

        return ask_or_fail

    def pull_and_store_or_end(**given: Any) -> Any:
        for name in ("pull_object", "confirm_message_received"):
            given[name] = ending(given[name])
        return pull_and_store(**given)

    internal._pull_and_store_message = pull_and_store_or_end


def discard_replies_to_lost_messages() -> None:
    """Make the SuperNode of this process discard replies to messages that it could not confirm.

    A task may have answered before the server fails to confirm its message. Flower then drops the
    message, but sends the task's reply in place of the reply to the next message, and so on. This
    must not be used with `pass_on_many_messages_at_once`.
    """
    internal: Any = import_module(_START_CLIENT)
    pull_and_store = internal._pull_and_store_message

    def discard_and_pull(**given: Any) -> Any:
        given["state"].get_messages_legacy(is_reply=True)  # each reply is returned once
        return pull_and_store(**given)

    internal._pull_and_store_message = discard_and_pull


def note_messages(note: Callable[[str, int], None]) -> None:
    """Make the SuperNode of this process report a message before it fetches the message's parts.

    Args:
        note: callback with the message type and the number of parts.
    """
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    internal: Any = import_module(_START_CLIENT)
    pull_and_store = internal._pull_and_store_message

    def pull_and_note(**given: Any) -> Any:
        receive = given["receive"]

        def receive_and_note() -> Any:
            if received := receive():
                message, tree = received
                parts = sum(1 for _ in iterate_object_tree(tree))
                note(message.metadata.message_type, parts)
            return received

        return pull_and_store(**given | {"receive": receive_and_note})

    internal._pull_and_store_message = pull_and_note


class _GivenReplies:
    """A SuperNode's state that offers only the given replies for sending."""

    def __init__(self, state: Any, replies: Sequence[Message]) -> None:
        self._state, self._replies = state, replies

    def get_messages_legacy(self, **_: Any) -> Sequence[Message]:
        return self._replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def transfer_parts_together() -> None:
    """Make this process send and fetch all parts of a message at the same time.

    Flower uses one thread per core, but these threads only wait for the network.
    """
    utils: Any = import_module(_OBJECT_UTILS)
    utils.get_num_workers = lambda most: _PARTS_AT_ONCE


def fetch_messages_quickly() -> None:
    """Make an executor in this process fetch its SuperNode's incoming message without delay.

    Flower waits a second after a failed attempt. Samara's executor polls more often than Flower's,
    so it would often ask too early and wait. Flower also sends the SuperNode a confirmation that
    the message was fetched, and waits until it arrives. Here a thread sends the confirmation, so
    that the message can be answered meanwhile.
    """
    clientapp: Any = import_module(_RUN_CLIENTAPP)
    fetch = clientapp.pull_and_inflate_object_from_tree

    def fetch_now(tree: Any, pull: Any, confirm: Callable[[str], None], **given: Any) -> Any:
        def confirm_quietly(object_id: str) -> None:
            # A lost confirmation does no harm: the SuperNode deletes the object when the message
            # is answered.
            with suppress(Exception):
                confirm(object_id)

        def confirm_meanwhile(object_id: str) -> None:
            Thread(target=confirm_quietly, args=(object_id,), daemon=True).start()

        return fetch(tree, pull, confirm_meanwhile, initial_backoff=LEAST_PAUSE, **given)

    clientapp.pull_and_inflate_object_from_tree = fetch_now


def leave_in_spite_of_repeated_signals() -> None:
    """Make the SuperNode of this process ignore SIGTERM once it has begun to leave the server.

    When a parent with several threads is killed, the kernel sends SIGTERM to the SuperNode several
    times. At the first signal, Flower restores the earlier handler. The second signal would then
    end the SuperNode before it tells the server, and the server would refuse the client's next
    connection for a minute.
    """
    internal: Any = import_module(_START_CLIENT)
    register = internal.register_signal_handlers

    def register_after_ignoring(**given: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        register(**given)

    internal.register_signal_handlers = register_after_ignoring


def pass_on_many_messages_at_once(longest_pause: float) -> None:
    """Make the SuperNode of this process accept a message before the previous one is answered.

    Flower's own loop answers one message after another, and polls every 3 s. This loop polls more
    often for a short time after a reply, or after a message other than a hello request.

    Args:
        longest_pause: largest number of seconds between two polls.
    """
    internal: Any = import_module(_START_CLIENT)
    pull, push = internal._pull_and_store_message, internal._push_messages
    taken: list[Message] = []
    active = time.monotonic()

    def pull_or_notice_replies(**given: Any) -> int:
        nonlocal active
        state, receive = given["state"], given["receive"]

        def noting() -> Any:
            nonlocal active
            if (received := receive()) and received[0].metadata.message_type != _HELLO:
                active = time.monotonic()
            return received

        given["receive"] = noting
        while True:
            if (run_id := pull(**given)) is not None:
                return int(run_id)
            begun = time.monotonic()
            end = begun + pause_before_asking(begun - active, longest_pause)
            while (now := time.monotonic()) < end:
                if replies := state.get_messages_legacy(is_reply=True):
                    taken.extend(replies)
                    active = now
                    return 0  # Flower's loop sends the replies after any result except None
                time.sleep(min(LEAST_PAUSE / 2, end - now))

    def push_what_there_is(state: Any, **given: Any) -> None:
        replies = [*taken, *state.get_messages_legacy(is_reply=True)]
        taken.clear()
        if replies:
            push(state=_GivenReplies(state, replies), **given)

    # Flower would wait at least a second before it asks again for a missing part.
    internal.pull_objects = partial(internal.pull_objects, initial_backoff=LEAST_PAUSE)
    internal.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, LEAST_PAUSE / 2)))
    internal._pull_and_store_message = pull_or_notice_replies
    internal._push_messages = push_what_there_is
