"""Answers the messages of this machine's SuperNode in place of Flower's own executor.

By default, Flower starts a process for each message, and the process runs the app from the app
bundle. In the isolation mode "process", a SuperNode lets another process answer instead. This
executor is such a process. It polls the SuperNode for tasks, over a loopback connection protected
by a secret, and answers them with the installed ClientApp. No code from the network runs, and no
message waits for the start of an interpreter.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Event, Thread

import httpx
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from samara.client.app import error_reply
from samara.devices.live.connection.bundle_check import describe_difference
from samara.shared.errors import SamaraError
from samara.shared.flower_compat import (
    AcquireTaskRequest,
    Fab,
    HeartbeatSender,
    ProtobufClientInterceptor,
    Run,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskType,
    make_simple_http_retry_invoker,
    pull_task_input,
    push_message,
    push_task_output,
)
from samara.shared.network.polling import LEAST_PAUSE, pause_before_asking

log = logging.getLogger("samara.device")

_POLL_SECONDS = 0.3
"""Minimum polling delay in seconds."""
_LONGEST_POLL_SECONDS = 3.0
"""Maximum polling delay in seconds, the interval at which the SuperNode polls the server."""
_TRIES = 20
_UNREACHABLE_SECONDS = 2.0
_RETRY_SECONDS = 20.0
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Executor:
    """Answers the tasks of a SuperNode on this machine.

    Args:
        app: ClientApp that answers messages.
        secret: secret shared with the SuperNode.
        at_once: maximum number of tasks answered at the same time, each in a thread. With 1, tasks
            are answered one after the other. With more, the SuperNode is also polled more often.
    """

    def __init__(self, app: ClientApp, secret: bytes, at_once: int = 1) -> None:
        self._app = app
        self._secret = secret
        self._free = BoundedSemaphore(at_once)
        self._is_concurrent = at_once > 1
        self._compared: set[str] = set()
        self._last = "", ""

    def run(self, address: Callable[[], str], stop: Event) -> None:
        """Answer tasks until the stop event is set.

        Args:
            address: function that returns the current host:port of the SuperNode's runtime API.
            stop: event that ends the loop before the next task.
        """
        while not stop.is_set():
            current = address()
            active = time.monotonic()
            try:
                with self._connect(current) as client:
                    while not stop.is_set() and current == address():
                        with (
                            self._free
                        ):  # request no task that would have to wait for a free thread
                            pass
                        offer = client.AcquireTask(
                            AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
                        )
                        if offer.HasField("task") and offer.token:
                            self._take(current, offer.token, stop)
                            active = time.monotonic()
                        else:
                            stop.wait(self._pause_after(time.monotonic() - active))
            except (httpx.HTTPError, OSError):
                stop.wait(_UNREACHABLE_SECONDS)  # the SuperNode may still be starting
            except Exception as error:  # an error of one task must not end the loop
                _log_failure(error)
                stop.wait(_UNREACHABLE_SECONDS)

    def _pause_after(self, idle: float) -> float:
        """Return the polling delay in seconds after a given idle time in seconds."""
        if self._is_concurrent:
            return pause_before_asking(idle, _POLL_SECONDS)
        return max(_POLL_SECONDS, pause_before_asking(idle, _LONGEST_POLL_SECONDS))

    def _take(self, address: str, token: str, stop: Event) -> None:
        """Answer a task, in a new thread if several may be answered at once."""

        def answer() -> None:
            with self._free, _task_connection(address, token, stop) as task:
                self._answer(task)

        def answer_or_log() -> None:
            try:
                answer()
            except Exception as error:  # an error of one task must not end the others
                _log_failure(error)

        if self._is_concurrent:
            # a daemon thread, because shutdown must not wait for a phone
            Thread(target=answer_or_log, name="task", daemon=True).start()
        else:
            answer()

    def _connect(self, address: str) -> RuntimeHttpClient:
        """Connect to the API that hands out tasks."""
        auth = SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=frozenset({_ACQUIRE})
        )
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        return RuntimeHttpClient.from_server_address(address, True, None, [version, auth])

    def _answer(self, client: RuntimeHttpClient) -> None:
        message, context, _, fab = _pull_message(client)
        start = time.monotonic()
        try:
            if fab.hash_str not in self._compared:
                self._compared.add(fab.hash_str)
                if difference := describe_difference(fab.content):
                    log.warning(
                        "the server's version of Samara differs from this one: %s", difference
                    )
            reply = self._app(message, context)
        except Exception as raised:
            text = str(raised) if isinstance(raised, SamaraError) else repr(raised)
            log.warning("%s: %s", message.metadata.message_type, text)
            reply = error_reply(raised, message)
        error = reply.error.reason or "" if reply.has_error() else ""
        push_message(client, reply, context)
        status = SubStatus.FAILED if error else SubStatus.COMPLETED
        push_task_output(client, context=context, sub_status=status, details=error)
        kind = message.metadata.message_type
        group = message.metadata.group_id
        level = logging.DEBUG if (kind, group) == self._last else logging.INFO
        self._last = (
            kind,
            group,
        )  # hellos arrive every few seconds, so repeated kinds are logged once
        is_query = kind.startswith(MessageType.QUERY)
        what = group if is_query else f"{kind}, round {group}"
        log.log(level, "answered: %s, %.2f s", what, time.monotonic() - start)


def _log_failure(error: Exception) -> None:
    log.warning("a task of the SuperNode could not be answered: %r", error)


def _pull_message(client: RuntimeHttpClient) -> tuple[Message, Context, Run, Fab]:
    """Return the message of a task.

    Several tries are made, because a SuperNode may offer a task before its message is stored.

    Raises:
        RuntimeError: if the SuperNode still has no message for the task after several tries.
    """
    for _ in range(_TRIES):
        try:
            return pull_task_input(client)
        except RuntimeError as error:
            if not str(error).startswith("No messages"):
                raise
            time.sleep(LEAST_PAUSE)
    return pull_task_input(client)


def _has_ended(error: Exception) -> bool:
    """Return whether a request failed because the SuperNode has ended the request's task.

    The task's token is then invalid. Flower would interrupt this process in that case.
    """
    return isinstance(error, httpx.HTTPStatusError) and (
        error.response.status_code == httpx.codes.UNAUTHORIZED
    )


@contextmanager
def _task_connection(address: str, token: str, stop: Event) -> Iterator[RuntimeHttpClient]:
    """Open a connection for one task, and send heartbeats to its SuperNode until the block ends.

    Unanswered requests are retried for a while, without Flower's log lines. The stop event also
    ends the retries, so that this process can end at once. After the SuperNode has ended the task,
    the next request raises an error.
    """
    retry = make_simple_http_retry_invoker()
    retry.max_time = _RETRY_SECONDS
    retry.on_backoff = retry.on_giveup = None
    is_vain = retry.should_giveup

    def wait(seconds: float) -> None:
        stop.wait(seconds)

    def should_give_up(error: Exception) -> bool:
        return stop.is_set() or _has_ended(error) or (is_vain is not None and is_vain(error))

    retry.wait_function = wait
    retry.should_giveup = should_give_up
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
        RuntimeTokenHttpInterceptor(token),
    ]
    with RuntimeHttpClient.from_server_address(
        address, True, None, interceptors, retry_invoker=retry
    ) as client:

        def beat() -> bool:
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError as error:
                if not _has_ended(error):
                    log.warning("the SuperNode does not answer heartbeats of its task")
            return True

        heartbeat = HeartbeatSender(beat)
        heartbeat.start()
        try:
            yield client
        finally:
            heartbeat.stop()
