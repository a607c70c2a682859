"""Real links: a network namespace whose only way out is shaped by the kernel's traffic control.

Rates are held by ``tbf``; latency, jitter and loss by ``netem`` where the kernel has it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count

from devices.hardware.profile import LinkProfile
from shared.errors import DeviceError

_NUMBERS = count()
_SMALLEST_BURST = 16_000
_LONGEST_QUEUE = "400ms"


@dataclass(frozen=True)
class ShapedLink:
    """A namespace behind a link.

    Attributes:
        namespace: its name.
        address: of this machine, as programs in the namespace reach it.
        delayed: whether the kernel has netem; without it there are only rates.
    """

    namespace: str
    address: str
    delayed: bool

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command behind the link."""
        return ["ip", "netns", "exec", self.namespace, *command]


def check_shaping() -> None:
    """Make sure that links can be shaped here.

    Raises:
        DeviceError: saying what is missing.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise DeviceError(f"links are shaped with {' and '.join(missing)}: install iproute2")
    name = f"samara-try-{os.getpid()}"
    with ExitStack() as undo:
        _make_namespace(name, undo)


@contextmanager
def shape_link(link: LinkProfile) -> Iterator[ShapedLink]:
    """A namespace behind a link, gone when the block is left, however that happens.

    What the device sends passes at the link's rate up, what it gets at its rate down.

    Raises:
        DeviceError: if it is not permitted here.
    """
    check_shaping()
    number = next(_NUMBERS)
    name = f"samara-{os.getpid()}-{number}"
    outer, inner = f"sm{os.getpid()}o{number}"[:15], f"sm{os.getpid()}i{number}"[:15]
    with ExitStack() as undo:
        _make_namespace(name, undo)
        here, there = _free_addresses()
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        undo.callback(_run_ignoring_errors, "ip", "link", "del", outer)
        inside = ("ip", "netns", "exec", name)
        _run("ip", "address", "add", f"{here}/30", "dev", outer)
        _run("ip", "link", "set", outer, "up")
        _run(*inside, "ip", "address", "add", f"{there}/30", "dev", inner)
        _run(*inside, "ip", "link", "set", inner, "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        delayed = _shape_interface((), outer, link.down, link)
        _shape_interface(inside, inner, link.up, link)
        yield ShapedLink(name, here, delayed)


def _make_namespace(name: str, undo: ExitStack) -> None:
    _run("ip", "netns", "add", name)
    undo.callback(_run_ignoring_errors, "ip", "netns", "del", name)


def _shape_interface(inside: Sequence[str], device: str, rate: float, link: LinkProfile) -> bool:
    """Shape what leaves an interface; whether it is delayed too."""
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


def _free_addresses() -> tuple[str, str]:
    """Two neighbours in 10.203.0.0/16 that no interface here has."""
    taken = {
        address["local"]
        for interface in json.loads(_run("ip", "-json", "address"))
        for address in interface["addr_info"]
    }
    for block in range(0, 2**16, 4):
        here, there = (f"10.203.{(block + i) // 256}.{(block + i) % 256}" for i in (1, 2))
        if not {here, there} & taken:
            return here, there
    raise DeviceError("no free addresses for another shaped link in 10.203.0.0/16")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise DeviceError(
            f"a link cannot be shaped here: {' '.join(command)}: {said[0] if said else 'failed'}; "
            "it takes root and a kernel with network namespaces, veth and tbf"
        )
    return done.stdout


def _run_ignoring_errors(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
