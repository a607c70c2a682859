"""The protocol of a gateway and its phones: version, largest message, status of the end."""

import grpc

from samara.shared.wire import MAX_FRAME_BYTES

PROTOCOL = 1
"""Version of the stream's messages, which the challenge names."""
MAX_TASK_BYTES = 2 * MAX_FRAME_BYTES + 2**20
"""Largest message that a gateway sends: a catch-up's snapshot and tail, and an instruction. Who
receives it takes less (`samara.shared.message_sizes`)."""
FINISHED = grpc.StatusCode.OUT_OF_RANGE
"""Status code of streams that end because the run is finished."""
_TIMEOUT = ("grpc.keepalive_timeout_ms", 20_000)
GATEWAY_KEEPALIVE = (("grpc.keepalive_time_ms", 240_000), _TIMEOUT)
"""Options of a gateway's end: mobile networks drop an idle connection after some minutes."""
KEEPALIVE = (("grpc.keepalive_time_ms", 300_000), _TIMEOUT)
"""Options of the other end, which pings only a gateway that does not: what it hears from one counts
as an answer. A gateway allows a ping a minute."""
