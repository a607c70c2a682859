"""Toy devices that use Flower's protocol with a real SuperLink, all in one process.

    python -m benchmarks.faults.toy_clients --superlink 127.0.0.1:8000 --devices 4 \\
        [--ca CA --keys FOLDER]

The devices do the work of a SuperNode and its ClientApp without separate processes. Every device is
a thread that fetches messages, lets `toy_client.app` answer them, and sends the answers. Device i
has the key FOLDER/device-i.key. A device continues after a restart of the SuperLink, until the run
is finished.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict, UserConfig

from benchmarks.arguments import arguments
from benchmarks.faults.toy_client import app
from samara.client.limits.device_settings import CLIENT_INDEX
from samara.devices.live.connection.supernode import outlast_server_errors
from samara.devices.live.keys import read_client_index
from samara.shared.flower_compat import (
    ObjectPullError,
    ObjectTree,
    RunNotRunningException,
    get_all_nested_objects,
    get_object_tree,
    http_request_response,
    inflate_object_from_contents,
    iterate_object_tree,
    no_object_id_recompute,
    pull_objects,
    set_message_id,
)
from samara.shared.network.rejection import HEADER, RejectionCode, rejection_in

_POLL_SECONDS = 0.3


class Device(threading.Thread):
    """A thread with one device, which ends with the process or on request."""

    def __init__(
        self, number: int, devices: int, superlink: str, ca: Path | None, key: Path | None
    ) -> None:
        super().__init__(daemon=True)
        self._number, self._devices, self._superlink = number, devices, superlink
        self._ca = ca.read_bytes() if ca else None
        self._keys = _keys(key) if key else None
        self._device = read_client_index(key) if key else number
        self._state = RecordDict()
        self._ended = threading.Event()

    def end(self) -> None:
        """End the device after the current message."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Answer messages until the run is finished, and try again while the SuperLink is down."""
        host, port = self._superlink.rsplit(":", 1)
        while not _listens(host, int(port)):
            if self._ended.wait(_POLL_SECONDS):
                return
        stack = ExitStack()
        connection = stack.enter_context(
            http_request_response(
                self._superlink, self._ca is None, self._ca, self._keys, max_retries=0
            )
        )
        node, receive, *_ = connection
        while not self._ended.is_set():
            try:
                if received := receive():
                    self._answer(node, *received, connection)
                    continue
            except (httpx.HTTPError, ObjectPullError, RunNotRunningException) as error:
                if isinstance(error, httpx.HTTPStatusError) and _is_finished(error.response):
                    break
                # the SuperLink is down, or the run of the message is over
                logging.warning("device %d: %r", self._number, error)
            self._ended.wait(_POLL_SECONDS)
        with suppress(httpx.HTTPError):  # the SuperLink may stay down
            stack.close()

    def reply(self, message: Message, context: Context) -> Message:
        """Return the device's reply to a message."""
        return app(message, context)

    def _answer(self, node: int, message: Message, tree: ObjectTree, connection: tuple) -> None:  # type: ignore[type-arg]
        _, _, send, _, _, pull_object, push_object, confirm = connection
        run, asked = message.metadata.run_id, message.metadata.message_id
        contents = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            pull_object_fn=lambda object_id: pull_object(run, object_id),
        )
        confirm(run, asked)
        whole = inflate_object_from_contents(asked, contents)
        assert isinstance(whole, Message), "a SuperLink delivers messages"
        set_message_id(whole, asked)
        where: UserConfig = {"partition-id": self._number, "num-partitions": self._devices}
        where |= {CLIENT_INDEX: self._device}
        reply = self.reply(whole, Context(run, node, where, self._state, {}))
        with no_object_id_recompute():
            set_message_id(reply, reply.object_id)
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            for object_id, part in get_all_nested_objects(reply).items():
                if object_id in wanted:
                    push_object(run, session, object_id, part.deflate())


@contextmanager
def heartbeats_end_with_the_run() -> Iterator[None]:
    """Hide errors of heartbeats that are in transit when the run is finished.

    Flower sends heartbeats in a thread, which raises an error at the end of the run. Other errors
    of threads go to the earlier hook.
    """
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value
        if not (isinstance(error, httpx.HTTPStatusError) and _is_finished(error.response)):
            before(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _is_finished(response: httpx.Response) -> bool:
    return rejection_in(response.headers.get(HEADER)) is RejectionCode.FINISHED


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def _keys(file: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    private = load_ssh_private_key(file.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), "device keys are on elliptic curves"
    return private, private.public_key()


def main() -> None:
    given = arguments(__doc__, superlink=str, devices=4, ca=Path | None, keys=Path | None)
    logging.basicConfig(level=logging.WARNING)
    outlast_server_errors()
    for number in range(given.devices):
        key = given.keys / f"device-{number}.key" if given.keys else None
        Device(number, given.devices, given.superlink, given.ca, key).start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
