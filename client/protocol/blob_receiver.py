"""The client's side of a blob transfer: it stores a part, and a receipt says how much it has."""

import logging
from collections.abc import Collection

from samara.shared.blob_store import MAX_BLOB_BYTES, BlobStore
from samara.shared.errors import BlobError, FrameError
from samara.shared.frames.blob import BlobPart, BlobReceipt
from samara.shared.frames.instructions import token_of

log = logging.getLogger("samara.client")

MOST_RUN_BYTES = 2 * MAX_BLOB_BYTES
"""The most bytes of the blobs of one run."""


def receive_part(frame: bytes, accepted: Collection[bytes], client: int, store: BlobStore) -> bytes:
    """Store a part of a blob, and return the receipt.

    Args:
        frame: blob part.
        accepted: hashes of the blobs that the run's settings name; no other is stored.
        client: client index.
        store: store of the client.

    Raises:
        FrameError: if the frame is not a part of one of these blobs.
        BlobError: if the content is not that of the blob, or cannot be stored, or the run's blobs
            are more than `MOST_RUN_BYTES`.
    """
    part = BlobPart.decode(frame)
    if part.blob not in accepted:
        raise FrameError(
            f"blob {part.blob.hex()[:12]} is none that the run's settings name; the server sends "
            "what was not asked for"
        )
    others = sum(store.held_bytes(blob) for blob in set(accepted) - {part.blob})
    if others + part.size > MOST_RUN_BYTES:
        raise BlobError(
            f"blob {part.blob.hex()[:12]} of {part.size} bytes is refused: this client keeps "
            f"{others} bytes of the run's other files, and at most {MOST_RUN_BYTES} of all"
        )
    received = store.receive(part.blob, part.size, part.offset, part.content)
    if received == part.size:
        log.info("received blob %s, %d bytes", part.blob.hex()[:12], part.size)
    return BlobReceipt(token_of(frame), client, part.blob, received).encode()
