"""The process of Flower's SuperNode, which ends when its parent process ends.

If the server rejects the client, this process exits at once with a status that encodes the reason.
If the server does not answer, it logs one line. Without these changes, Flower would log unrelated
lines, or interrupt the process like Ctrl-C.
"""

import logging
import os
import sys
from pathlib import Path

import httpx
import uvicorn

from samara.devices.live.connection.certificate_errors import (
    certificate_error_in,
    explain_certificate_error,
)
from samara.devices.live.connection.introduced_clients import most_gateway_message_bytes
from samara.devices.live.connection.received_bytes import (
    ReceivedBytes,
    limit_received,
    most_client_message_bytes,
)
from samara.devices.live.processes import exit_with_parent, status_of_rejection
from samara.devices.live.server_contact import Reachability
from samara.shared.machine.process import log_to_stderr
from samara.shared.network.rejection import HEADER, rejection_in

log = logging.getLogger("samara.device")

FOR_GATEWAY = "--for-gateway"
"""Argument for a gateway's SuperNode, which passes on several messages at once."""
_LONGEST_PAUSE = 3.0
"""Maximum polling delay of a gateway's SuperNode, in seconds; other SuperNodes use Flower's."""
_FOREIGN_LINES = (
    *("EXPERIMENTAL", "Connection attempt failed", "Giving up reconnection"),
    "[/v1/runtime/",  # the task ended, because its request could not be fetched
)
_NOT_DELIVERED = "Failed to send message"
_NOT_FETCHED = "Failed to receive message"
_SERVER_ERROR = 500
"""Lowest HTTP status that reports a server error."""
_HEARTBEAT_PATH = "/v1/fleet/send-node-heartbeat"


def watch_requests(reachability: Reachability) -> None:
    """Log that the server does not answer, and end this process if the server rejects it."""
    handle = httpx.HTTPTransport.handle_request

    def watched(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        address = f"{request.url.host}:{request.url.port}"
        try:
            response = handle(transport, request)
        except httpx.TransportError as error:
            reachability.note(address, _describe(error))
            raise
        if (code := rejection_in(response.headers.get(HEADER))) is not None:
            os._exit(status_of_rejection(code))
        status = response.status_code
        reachability.note(address, f"HTTP status {status}" if status >= _SERVER_ERROR else "")
        return response

    httpx.HTTPTransport.handle_request = watched  # type: ignore[assignment, method-assign]


def outlast_server_errors() -> None:
    """Continue to send heartbeats after the server has answered a heartbeat with an error.

    Flower stops the heartbeats after a status of 500, which a server with a full disk may send. The
    server would then regard the client as disconnected, even though the client polls.
    """
    handle = httpx.HTTPTransport.handle_request

    def outlasting(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        response = handle(transport, request)
        if request.url.path == _HEARTBEAT_PATH and response.status_code >= _SERVER_ERROR:
            response.close()
            raise httpx.RemoteProtocolError(f"HTTP status {response.status_code}")
        return response

    httpx.HTTPTransport.handle_request = outlasting  # type: ignore[assignment, method-assign]


def _describe(error: httpx.TransportError) -> str:
    """Return the reason why a request was not answered."""
    if refused := certificate_error_in(error):
        return "; ".join(filter(None, explain_certificate_error(refused, "")))
    return str(error) or type(error).__name__


def silence_foreign_lines() -> None:
    """Drop the log lines of uvicorn and Flower about startup, reconnection and failed requests.

    Plain sentences without ids replace Flower's lines about messages that Flower could not send or
    receive.
    """

    def keep(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith(_NOT_DELIVERED):
            log.warning("an answer did not reach the server, which may ask for it again")
        if text.startswith(_NOT_FETCHED):
            log.warning(
                "a request of the server could not be fetched; the server asks again if necessary"
            )
        return not text.startswith((*_FOREIGN_LINES, _NOT_DELIVERED, _NOT_FETCHED))

    for settings in uvicorn.config.LOGGING_CONFIG["loggers"].values():
        settings["level"] = "WARNING"
    logging.getLogger("flwr").addFilter(keep)


def main() -> None:
    """Run ``flower-supernode``.

    The first argument is the process id of the parent, and the second is the folder of the client
    or gateway. `FOR_GATEWAY` may follow. All further arguments are passed to ``flower-supernode``.
    """
    parent, folder, *arguments = sys.argv[1:]
    exit_with_parent(int(parent))
    log_to_stderr()
    logging.getLogger("flwr").propagate = False  # flwr has its own handler
    outlast_server_errors()
    watch_requests(Reachability(Path(folder)))
    is_for_gateway = FOR_GATEWAY in arguments
    most_bytes = most_gateway_message_bytes if is_for_gateway else most_client_message_bytes
    received = ReceivedBytes(lambda kind: most_bytes(kind, Path(folder)))
    limit_received(received)
    silence_foreign_lines()
    from samara.shared.flower_compat import (
        discard_replies_to_lost_messages,
        end_tasks_of_lost_messages,
        flower_supernode,
        leave_in_spite_of_repeated_signals,
        note_messages,
        pass_on_many_messages_at_once,
        transfer_parts_together,
    )

    leave_in_spite_of_repeated_signals()
    end_tasks_of_lost_messages()
    transfer_parts_together()
    note_messages(received.begin)
    if is_for_gateway:
        arguments.remove(FOR_GATEWAY)
        pass_on_many_messages_at_once(_LONGEST_PAUSE)
    else:
        discard_replies_to_lost_messages()
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    main()
