"""Messages to systemd from a service that it runs (sd_notify(3))."""

import os
import socket
from contextlib import suppress

READY = "READY=1"
ALIVE = "WATCHDOG=1"
_ADDRESS = "NOTIFY_SOCKET"


def notify_service_manager(state: str) -> None:
    """Tell the service manager a state; do nothing if none has started this process.

    A message that cannot be sent is dropped: the service manager will act as if there were none.

    Args:
        state: `READY`, or `ALIVE`, which is expected again within the unit's ``WatchdogSec``.
    """
    if address := os.environ.get(_ADDRESS):
        abstract = address.startswith("@")
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)
