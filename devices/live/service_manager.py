"""Notifications to systemd from a service that it runs (sd_notify(3))."""

import os
import socket
from contextlib import suppress

READY = "READY=1"
ALIVE = "WATCHDOG=1"
_ADDRESS = "NOTIFY_SOCKET"


def notify_service_manager(state: str) -> None:
    """Report a state to the service manager; do nothing if none started this process.

    A notification that cannot be delivered is dropped.

    Args:
        state: `READY` or `ALIVE`. `ALIVE` must be repeated within the unit's ``WatchdogSec``.
    """
    if address := os.environ.get(_ADDRESS):
        abstract = address.startswith("@")
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)
