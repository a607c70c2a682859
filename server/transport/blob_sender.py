"""The transfer of a run's files (blobs) to clients that lack them, in parts, while rounds continue.

A client's refusal names a missing blob by the first bytes of the blob's hash. The server sends only
blobs that the run's settings name. Each receipt of a client contains the number of bytes that the
client has. The server therefore needs no state across restarts.
"""

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

from flwr.app import Message
from flwr.serverapp import Grid

from samara.server.transport.messages import BLOB_MESSAGE, LOST, make_message, read_frame
from samara.shared.errors import FrameError, RefusalCode, SamaraError
from samara.shared.protocol.frames.blob import PART_BYTES, BlobPart, BlobReceipt
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import BLOB_ACTION, Kind, kind_of
from samara.shared.settings.blobs import blob_settings
from samara.shared.settings.setting import Settings
from samara.shared.storage.blob_store import BlobStore, parse_reference, resolve_blob

log = logging.getLogger("samara.server")

PARTS_IN_FLIGHT = 16
"""Maximum number of parts in transit at the same time, over all clients."""
MAX_REPETITION = 4
"""Maximum amount of a blob's data that one client is sent, in multiples of the blob's size."""
PART_SECONDS = 300.0
"""Seconds after which a part without a receipt is sent again."""


@dataclass(frozen=True)
class _Blob:
    """A file of the run that clients may request by its hash."""

    hash: bytes
    file: Path
    size: int

    def part(self, offset: int) -> BlobPart:
        """Read the part that begins at an offset.

        Raises:
            SamaraError: if the file cannot be read.
        """
        try:
            with self.file.open("rb") as file:
                file.seek(offset)
                content = file.read(PART_BYTES)
        except OSError as error:
            raise SamaraError(f"{self.file}: cannot be read: {error.strerror}") from error
        return BlobPart(self.hash, self.size, offset, content)


@dataclass
class _Transfer:
    """The transfer of a blob to a client.

    Attributes:
        blob: the blob.
        client: client index.
        holder: public key of the client, or its node id if nodes have no keys.
        offset: position of the next part that the client needs, in bytes.
        message_id: id of the message with the part in transit; empty if no part is in transit.
        token: token of the part in transit.
        end: deadline for the receipt of this part, monotonic seconds.
        sent: bytes of the blob sent so far.
    """

    blob: _Blob
    client: int
    holder: bytes | int
    offset: int
    message_id: str = ""
    token: bytes = b""
    end: float = 0.0
    sent: int = 0


class BlobSender:
    """A sender of a run's blobs to the clients that lack them.

    Args:
        files: files of the run's blobs, by SHA-256, 32 bytes.
    """

    def __init__(self, files: Mapping[bytes, Path]) -> None:
        self._blobs = {
            int.from_bytes(blob[:4]): _Blob(blob, file, file.stat().st_size)
            for blob, file in files.items()
        }
        self._transfers: dict[int, _Transfer] = {}  # by node; the longest wait comes first
        self._sent: dict[tuple[bytes | int, bytes], int] = {}  # sent bytes by holder and blob

    @classmethod
    def for_run(cls, config: Settings, store: BlobStore) -> Self | None:
        """Return the sender of the blobs that a run's settings name by hash; None without blobs.

        Raises:
            SamaraError: if the store lacks one of these blobs.
        """
        files = {}
        for key, value in blob_settings(config).items():
            if blob := parse_reference(value):
                files[blob] = resolve_blob(value, store, key)
        return cls(files) if files else None

    @property
    def nodes(self) -> Set[int]:
        """The nodes that are receiving blobs."""
        return self._transfers.keys()

    def begin(self, node: int, public_key: bytes, refusal: Refusal) -> None:
        """Begin to send a node the blob that the node's refusal names.

        Raises:
            SamaraError: if the run has no such blob, or if the server has already sent too many
                bytes of the blob to the client.
        """
        prefix, received = refusal.numbers
        blob = self._blobs.get(prefix)
        if refusal.code != RefusalCode.MISSING_BLOB or blob is None or received > blob.size:
            raise SamaraError(f"client {refusal.client}: {refusal.description}")
        transfer = _Transfer(blob, refusal.client, public_key or node, received)
        self._check_amount(transfer)
        self._transfers[node] = transfer
        log.info(
            "client %d lacks blob %s: %d of %d bytes are left to send",
            *(refusal.client, blob.hash.hex()[:12], blob.size - received, blob.size),
        )

    def advance(self, grid: Grid, connected: Container[int]) -> dict[int, str]:
        """Process arrived receipts and send the next parts, without waiting.

        Args:
            grid: Flower's grid.
            connected: the connected nodes.

        Returns:
            The reason for each failed transfer, by node.
        """
        if not self._transfers:
            return {}
        for node in [node for node in self._transfers if node not in connected]:
            del self._transfers[node]
        return self._receive_receipts(grid) | self._send_parts(grid)

    def _receive_receipts(self, grid: Grid) -> dict[int, str]:
        nodes = {t.message_id: node for node, t in self._transfers.items() if t.message_id}
        failed = {}
        for reply in _pull(grid, nodes):
            node = nodes[reply.metadata.reply_to_message_id]
            transfer = self._transfers.pop(node)
            transfer.message_id = ""
            try:
                if not (reply.has_error() and reply.error.code in LOST):
                    transfer.offset = _received_bytes(reply, transfer)
            except SamaraError as error:
                failed[node] = f"client {transfer.client}: {error}"
                continue
            if transfer.offset < transfer.blob.size:
                self._transfers[node] = transfer  # now behind transfers that wait longer
            else:
                name = transfer.blob.hash.hex()[:12]
                log.info("sent %d bytes of %s to client %d", transfer.sent, name, transfer.client)
        return failed

    def _send_parts(self, grid: Grid) -> dict[int, str]:
        now = monotonic()
        failed = {}
        messages = {}
        for transfer in self._transfers.values():
            if now >= transfer.end:
                transfer.message_id = ""
        room = PARTS_IN_FLIGHT - sum(bool(t.message_id) for t in self._transfers.values())
        waiting = [(node, t) for node, t in self._transfers.items() if not t.message_id]
        for node, transfer in waiting[:room]:
            try:
                self._check_amount(transfer)
                part = transfer.blob.part(transfer.offset)
            except SamaraError as error:
                del self._transfers[node]
                failed[node] = f"client {transfer.client}: {error}"
                continue
            frame = part.encode()
            size = len(part.content)
            transfer.token, transfer.end = token_of(frame), now + PART_SECONDS
            transfer.sent += size
            amount = transfer.holder, transfer.blob.hash
            self._sent[amount] = self._sent.get(amount, 0) + size
            messages[node] = _part_message(node, frame)
        for node, message_id in zip(messages, _push(grid, messages.values()), strict=True):
            self._transfers[node].message_id = message_id
        return failed

    def _check_amount(self, transfer: _Transfer) -> None:
        """Check that a client has been sent less than `MAX_REPETITION` times the blob's size.

        Raises:
            SamaraError: if the client has been sent more, for example because it discards parts.
        """
        sent = self._sent.get((transfer.holder, transfer.blob.hash), 0)
        if sent >= MAX_REPETITION * transfer.blob.size:
            raise SamaraError(
                f"it was sent {sent} bytes of blob {transfer.blob.hash.hex()[:12]}, which has only "
                f"{transfer.blob.size} bytes; the server sends it no more before the server's next "
                "start. Look for the reason in the client's log"
            )


def _received_bytes(reply: Message, transfer: _Transfer) -> int:
    """Return the number of bytes of a blob that a client has, according to its receipt for a part.

    Raises:
        SamaraError: if the client refuses the part, or the reply holds no valid receipt.
    """
    frame = read_frame(reply)
    if kind_of(frame) is Kind.REFUSAL:
        raise SamaraError(Refusal.decode(frame).description)
    receipt = BlobReceipt.decode(frame)
    if (receipt.token, receipt.client, receipt.blob) != (
        transfer.token,
        transfer.client,
        transfer.blob.hash,
    ):
        raise FrameError("its receipt is for a part that was not sent to it")
    if receipt.received > transfer.blob.size:
        raise FrameError("its receipt names more bytes than the blob has")
    return receipt.received


def _part_message(node: int, frame: bytes) -> Message:
    return make_message(node, BLOB_MESSAGE, BLOB_ACTION, frame, CatchUp(), PART_SECONDS)


def _push(grid: Grid, messages: Iterable[Message]) -> list[str]:
    messages = list(messages)
    return list(grid.push_messages(messages)) if messages else []


def _pull(grid: Grid, message_ids: Collection[str]) -> list[Message]:
    return list(grid.pull_messages(list(message_ids))) if message_ids else []
