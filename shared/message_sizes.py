"""The most bytes of what a server sends a client, by kind of message. Pure.

Every transport of a client holds to these before it takes a message's bytes into memory, so that
the memory of its processes is bounded whatever is sent: it grows with the size of the state alone.
"""

from samara.shared.ledger.records import snapshot_bytes
from samara.shared.proto.trainer_pb2 import TaskKind

_KIB, _MIB = 2**10, 2**20
MOST_FRAME_BYTES = 64 * _KIB
"""An instruction, a refusal or nothing, with sealed shares of a neighbourhood and what Flower adds
for its records."""
MOST_BLOB_PART_BYTES = 4 * _MIB
"""The content of a part of a blob (`samara.shared.frames.blob`)."""
MOST_MASKING_BYTES = 4 * _MIB
"""A list of 100,000 clients with the digests of their keys."""
SHORT_RECORD_BYTES = 64 * _KIB
"""Records that servers of earlier versions send in place of a shorter state."""
INTERCEPT_RECORD_BYTES = 4 * _MIB
"""Records that they send where the last round is a common intercept."""
MOST_OF_CLIENT_BYTES = 16 * _KIB
"""The part of a message to a gateway that is there for each of its clients: an index, and sealed
shares of a neighbourhood."""
MOST_SETTINGS_BYTES = _MIB
"""Settings of a run, which come with the tasks of a gateway."""


def most_record_bytes(elements: int, has_intercept: bool = True) -> int:
    """Return the most bytes of the records of a catch-up.

    Args:
        elements: number of elements of the state, d.
        has_intercept: whether the run's last round is a common intercept.
    """
    short = INTERCEPT_RECORD_BYTES if has_intercept else SHORT_RECORD_BYTES
    return max(snapshot_bytes(elements), short)


def most_message_bytes(kind: TaskKind, elements: int) -> int:
    """Return the most bytes of a message to a client, without settings.

    Args:
        kind: kind of the message.
        elements: number of elements of the largest state of the client's runs, d; 0 before its
            first run, which begins with a hello.
    """
    catch_up = snapshot_bytes(elements) + most_record_bytes(elements)
    parts = {
        TaskKind.BLOB: MOST_BLOB_PART_BYTES,
        TaskKind.MASK: MOST_MASKING_BYTES,
        TaskKind.TRAIN: catch_up,
        TaskKind.EVALUATE: catch_up,
    }
    return MOST_FRAME_BYTES + parts.get(kind, 0)


def most_task_bytes(elements: int) -> int:
    """Return the most bytes of any message to a client, with settings.

    Args:
        elements: number of elements of the largest state of the client's runs, d.
    """
    kinds = TaskKind.values()
    return MOST_SETTINGS_BYTES + max(most_message_bytes(kind, elements) for kind in kinds)
