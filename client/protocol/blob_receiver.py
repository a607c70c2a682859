"""The client's side of a blob transfer: storage of parts, and receipts for them."""

import logging
from collections.abc import Collection

from samara.shared.errors import BlobError, FrameError
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.protocol.frames.instructions import token_of
from samara.shared.storage.blob_store import MAX_BLOB_BYTES, BlobStore

log = logging.getLogger("samara.client")

MOST_RUN_BYTES = 2 * MAX_BLOB_BYTES
"""Maximum total size of the blobs of one run, in bytes."""


def receive_part(frame: bytes, accepted: Collection[bytes], client: int, store: BlobStore) -> bytes:
    """Store a part of a blob, and return the receipt.

    Args:
        frame: blob part.
        accepted: hashes of the blobs that the run's settings name; other blobs are not stored.
        client: client index.
        store: store of the client.

    Raises:
        FrameError: if the frame is not a part of an accepted blob.
        BlobError: if the content has another hash or cannot be stored, or the run's blobs exceed
            `MOST_RUN_BYTES`.
    """
    part = BlobPart.decode(frame)
    if part.blob not in accepted:
        raise FrameError(
            f"blob {part.blob.hex()[:12]} is not named by the run's settings; the server must send "
            "only files that the settings name"
        )
    others = sum(store.held_bytes(blob) for blob in set(accepted) - {part.blob})
    if others + part.size > MOST_RUN_BYTES:
        raise BlobError(
            f"blob {part.blob.hex()[:12]} of {part.size} bytes is refused: with the "
            f"{others} bytes of the run's other files it exceeds the limit of {MOST_RUN_BYTES} "
            "bytes; use smaller files in the run"
        )
    received = store.receive(part.blob, part.size, part.offset, part.content)
    if received == part.size:
        log.info("received blob %s, %d bytes", part.blob.hex()[:12], part.size)
    return BlobReceipt(token_of(frame), client, part.blob, received).encode()
