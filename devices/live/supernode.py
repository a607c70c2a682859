"""The process of Flower's SuperNode, which ends when its parent process ends.

If the server turns it away, it ends at once with a status that says why; if the server does not
answer, one line says so. Flower would log lines of its own that do not, or interrupt itself as if a
person had.
"""

import logging
import os
import sys
from pathlib import Path

import httpx
import uvicorn

from samara.devices.live.certificate_errors import certificate_error_in, explain_certificate_error
from samara.devices.live.introduced_clients import most_gateway_message_bytes
from samara.devices.live.processes import exit_with_parent, status_of_rejection
from samara.devices.live.received_bytes import (
    ReceivedBytes,
    limit_received,
    most_client_message_bytes,
)
from samara.devices.live.server_contact import Reachability
from samara.shared.rejection import HEADER, rejection_in

log = logging.getLogger("samara.device")

FOR_GATEWAY = "--for-gateway"
"""Argument of a SuperNode that passes on several messages at once."""
_LONGEST_PAUSE = 3.0
"""Seconds after which a gateway's SuperNode asks for messages again; of others Flower decides."""
_FOREIGN_LINES = (
    *("EXPERIMENTAL", "Connection attempt failed", "Giving up reconnection"),
    "[/v1/runtime/",  # of a task that was ended, as its request could not be fetched
)
_NOT_DELIVERED, _NOT_FETCHED = "Failed to send message", "Failed to receive message"
_SERVER_ERROR = 500
"""The least status of HTTP with which a server says that it cannot answer now."""
_HEARTBEAT_PATH = "/v1/fleet/send-node-heartbeat"


def watch_requests(reachability: Reachability) -> None:
    """Have this process say when the server does not answer, and end when it is turned away."""
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
    """Have heartbeats of this process go on after a server that could not answer one.

    Flower sends none any more after a status of 500, as of a server whose disk is full. The client
    would count as away from then on, whatever it asks for.
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
    """Return why a request was not answered."""
    if refused := certificate_error_in(error):
        return "; ".join(filter(None, explain_certificate_error(refused, "")))
    return str(error) or type(error).__name__


def silence_foreign_lines() -> None:
    """Leave out the lines in which libraries tell that they start and what they try out.

    A message that was not delivered, which Flower names by its ids, is said in our words.
    """

    def keep(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith(_NOT_DELIVERED):
            log.warning("an answer did not reach the server, which may ask for it again")
        if text.startswith(_NOT_FETCHED):
            log.warning("a request of the server could not be fetched; it asks again if it has to")
        return not text.startswith((*_FOREIGN_LINES, _NOT_DELIVERED, _NOT_FETCHED))

    for settings in uvicorn.config.LOGGING_CONFIG["loggers"].values():
        settings["level"] = "WARNING"
    logging.getLogger("flwr").addFilter(keep)


def main() -> None:
    """Run ``flower-supernode`` with the arguments after the parent's process id and the folder.

    Before them may be `FOR_GATEWAY`.
    """
    parent, folder, *arguments = sys.argv[1:]
    exit_with_parent(int(parent))
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    logging.getLogger("flwr").propagate = False  # it has a handler of its own
    outlast_server_errors()
    watch_requests(Reachability(Path(folder)))
    is_for_gateway = FOR_GATEWAY in arguments
    most_bytes = most_gateway_message_bytes if is_for_gateway else most_client_message_bytes
    received = ReceivedBytes(lambda kind: most_bytes(kind, Path(folder)))
    limit_received(received)
    silence_foreign_lines()
    from samara.shared.flower_compat import (
        end_tasks_of_lost_messages,
        flower_supernode,
        note_messages,
        pass_on_many_messages_at_once,
        transfer_parts_together,
    )

    end_tasks_of_lost_messages()
    transfer_parts_together()
    note_messages(received.begin)
    if is_for_gateway:
        arguments.remove(FOR_GATEWAY)
        pass_on_many_messages_at_once(_LONGEST_PAUSE)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


if __name__ == "__main__":
    main()
