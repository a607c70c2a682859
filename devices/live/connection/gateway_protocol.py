"""Constants of the protocol between a gateway and its phones: version, sizes, status codes."""

import grpc

from samara.shared.protocol.wire import MAX_FRAME_BYTES

PROTOCOL = 1
"""Version of the stream's messages; the gateway's challenge states it."""
MAX_TASK_BYTES = 2 * MAX_FRAME_BYTES + 2**20
"""Size limit in bytes of a message from a gateway.

It allows a catch-up's snapshot and tail, plus an instruction. Receivers set a lower limit
(`samara.shared.protocol.message_sizes`).
"""
FINISHED = grpc.StatusCode.OUT_OF_RANGE
"""Status code of a stream that ends because the run has finished."""
_TIMEOUT = ("grpc.keepalive_timeout_ms", 20_000)
GATEWAY_KEEPALIVE = (("grpc.keepalive_time_ms", 240_000), _TIMEOUT)
"""Keepalive options of the gateway. Mobile networks drop a connection after some idle minutes."""
KEEPALIVE = (("grpc.keepalive_time_ms", 300_000), _TIMEOUT)
"""Keepalive options of phones and boards.

They ping only a gateway that does not ping them, because received data counts as an answer. A
gateway allows one ping a minute.
"""
