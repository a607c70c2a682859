"""The protocol of a gateway and its phones: version, largest message, status of the end."""

import grpc

from shared.wire import MAX_FRAME_BYTES

PROTOCOL = 1
"""Version of the stream's messages, which the challenge names."""
MAX_TASK_BYTES = 2 * MAX_FRAME_BYTES + 2**20
"""Largest message to a phone, in bytes: a catch-up's snapshot and tail, and an instruction."""
FINISHED = grpc.StatusCode.OUT_OF_RANGE
"""Status code of streams that end because the run is finished."""
KEEPALIVE = (
    # mobile networks drop an idle connection after some minutes: ping before that, and not more
    # often than once a minute, as a gateway allows
    ("grpc.keepalive_time_ms", 240_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
"""Options of both ends of a connection."""
