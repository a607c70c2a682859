"""Link shaping: a network namespace whose only route is limited by the kernel's traffic control.

``tbf`` limits the rates. ``netem`` adds latency, jitter and loss, if the kernel has ``netem``.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from samara.devices.hardware.profile import LinkProfile
from samara.shared.errors import DeviceError

_NUMBERS = count()
_SMALLEST_BURST = 16_000
_LONGEST_QUEUE = "400ms"


@dataclass(frozen=True)
class ShapedLink:
    """A network namespace behind a shaped link.

    Attributes:
        namespace: name of the namespace.
        address: address at which programs in the namespace reach this machine.
        has_netem: whether latency, jitter and loss are applied; otherwise only rates are limited.
        interface: name of this machine's end of the link.
    """

    namespace: str
    address: str
    has_netem: bool
    interface: str

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the given command wrapped to run in the namespace."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def cut(self) -> None:
        """Disconnect the link."""
        _run("ip", "link", "set", self.interface, "down")

    def mend(self) -> None:
        """Reconnect the link."""
        _run("ip", "link", "set", self.interface, "up")

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that the namespace has sent and received, Ethernet headers included."""
        counters = Path("/sys/class/net") / self.interface / "statistics"
        up, down = (int((counters / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
        return up, down


def slow_link(link: LinkProfile, factor: float) -> LinkProfile:
    """Return a link on which every duration is multiplied by a factor."""
    changes = {"down": link.down / factor, "up": link.up / factor}
    longer = {"latency": link.latency * factor, "jitter": link.jitter * factor}
    return link.model_copy(update=changes | longer)


def check_shaping() -> None:
    """Check that links can be shaped on this machine.

    Raises:
        DeviceError: if a program or a permission is missing.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise DeviceError(f"link shaping needs {' and '.join(missing)}; install iproute2")
    name = f"samara-try-{os.getpid()}"
    with ExitStack() as undo:
        _make_namespace(name, undo)


@contextmanager
def shape_link(link: LinkProfile) -> Iterator[ShapedLink]:
    """Create a namespace behind a link for a ``with`` block, and remove it afterwards.

    Traffic from the namespace has the link's upload rate; traffic to it has the download rate.

    Raises:
        DeviceError: if this process may not shape links.
    """
    check_shaping()
    number = next(_NUMBERS)
    name = f"samara-{os.getpid()}-{number}"
    outer = f"sm{os.getpid()}o{number}"[:15]
    inner = f"sm{os.getpid()}i{number}"[:15]
    with ExitStack() as undo:
        _make_namespace(name, undo)
        outside, inside_address = _find_free_addresses()
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        undo.callback(_run_ignoring_errors, "ip", "link", "del", outer)
        inside = ("ip", "netns", "exec", name)
        _run("ip", "address", "add", f"{outside}/30", "dev", outer)
        _run("ip", "link", "set", outer, "up")
        _run(*inside, "ip", "address", "add", f"{inside_address}/30", "dev", inner)
        _run(*inside, "ip", "link", "set", inner, "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "route", "add", "default", "via", outside)
        has_netem = _shape_interface((), outer, link.down, link)
        _shape_interface(inside, inner, link.up, link)
        yield ShapedLink(name, outside, has_netem, outer)


def _make_namespace(name: str, undo: ExitStack) -> None:
    _run("ip", "netns", "add", name)
    undo.callback(_run_ignoring_errors, "ip", "netns", "del", name)


def _shape_interface(inside: Sequence[str], device: str, rate: float, link: LinkProfile) -> bool:
    """Shape the traffic that leaves an interface; return whether netem is applied too."""
    burst = max(_SMALLEST_BURST, round(rate / 100))
    tbf = ["tbf", "rate", f"{round(rate * 8)}bit", "burst", f"{burst}b", "latency", _LONGEST_QUEUE]
    _run(*inside, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", *tbf)
    netem = ["netem", "delay", f"{link.latency * 1e3:g}ms", f"{link.jitter * 1e3:g}ms"]
    netem += ["loss", f"{link.loss * 100:g}%"]
    try:
        _run(*inside, "tc", "qdisc", "add", "dev", device, "parent", "1:", "handle", "10:", *netem)
    except DeviceError:
        return False
    return True


def _find_free_addresses() -> tuple[str, str]:
    """Return two adjacent addresses in 10.203.0.0/16 that no interface of this machine uses."""
    used = {
        address["local"]
        for interface in json.loads(_run("ip", "-json", "address"))
        for address in interface["addr_info"]
    }
    for block in range(0, 2**16, 4):
        pair = tuple(f"10.203.{(block + i) // 256}.{(block + i) % 256}" for i in (1, 2))
        if used.isdisjoint(pair):
            return pair[0], pair[1]
    raise DeviceError(
        "10.203.0.0/16 has no free addresses for another shaped link; end a command that uses one"
    )


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise DeviceError(
            f"`{' '.join(command)}` failed: {lines[0] if lines else result.returncode}; shaping a "
            "link needs root and a kernel with network namespaces, veth and tbf"
        )
    return result.stdout


def _run_ignoring_errors(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
