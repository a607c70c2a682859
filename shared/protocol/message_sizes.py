"""Size limits of messages from a server to a client, by kind of message.

Every transport of a client checks a message's size before it reads the message into memory. So no
server can exhaust a client's memory. The limits grow only with the size of the state.
"""

from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.ledger.records import snapshot_bytes

_KIB, _MIB = 2**10, 2**20
MOST_FRAME_BYTES = 64 * _KIB
"""Largest size in bytes of an instruction, a refusal or an empty message.

It includes the sealed shares of a neighbourhood and Flower's overhead.
"""
MOST_BLOB_PART_BYTES = 4 * _MIB
"""Largest content of a blob part in bytes (`samara.shared.protocol.frames.blob`)."""
MOST_MASKING_BYTES = 4 * _MIB
"""Size in bytes of the longest list of clients and key digests: 100,000 clients."""
SHORT_RECORD_BYTES = 64 * _KIB
"""Size in bytes up to which an earlier server sends records even if the state is shorter."""
INTERCEPT_RECORD_BYTES = 4 * _MIB
"""The same size as `SHORT_RECORD_BYTES`, for runs whose last round is a common intercept."""
MOST_OF_CLIENT_BYTES = 16 * _KIB
"""Largest number of bytes per client in a message to a gateway: the client's index and sealed
shares."""
MOST_SETTINGS_BYTES = _MIB
"""Largest size in bytes of a run's settings, which are sent with the tasks of a gateway."""


def most_record_bytes(elements: int, has_intercept: bool = True) -> int:
    """Return the largest size of a catch-up's records in bytes.

    Args:
        elements: number of elements of the state, d.
        has_intercept: whether the run's last round fits a common intercept.
    """
    short = INTERCEPT_RECORD_BYTES if has_intercept else SHORT_RECORD_BYTES
    return max(snapshot_bytes(elements), short)


def most_message_bytes(kind: TaskKind, elements: int) -> int:
    """Return the largest size of a message to a client in bytes, without settings.

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
    """Return the largest size of any message to a client in bytes, with settings.

    Args:
        elements: number of elements of the largest state of the client's runs, d.
    """
    kinds = TaskKind.values()
    return MOST_SETTINGS_BYTES + max(most_message_bytes(kind, elements) for kind in kinds)
