"""Network namespaces behind shaped links: real interfaces, loopback of this machine only."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from samara.devices.hardware.link_shaping import check_shaping, shape_link
from samara.devices.hardware.profile import LinkProfile, load_link
from samara.shared.errors import DeviceError

SENT = 400_000
SEND = (
    "import socket, sys\n"
    "with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as s:\n"
    f"    s.sendall(bytes({SENT}))\n"
    "    s.shutdown(socket.SHUT_WR)\n"
    "    assert s.recv(1) == b'k'\n"
)


@pytest.fixture
def link() -> LinkProfile:
    try:
        check_shaping()
    except DeviceError as error:
        pytest.skip(str(error))
    return load_link("lte").model_copy(update={"jitter": 0.0, "loss": 0.0, "up": 2e5, "down": 1e6})


def _namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_bytes_pass_a_link_that_the_kernel_holds_to_its_rates(link: LinkProfile) -> None:
    with shape_link(link) as place, socket.create_server((place.address, 0)) as server:
        port = str(server.getsockname()[1])
        received = []

        def take() -> None:
            connection, _ = server.accept()
            with connection:
                while block := connection.recv(65_536):
                    received.append(len(block))
                connection.sendall(b"k")

        thread = threading.Thread(target=take)
        thread.start()
        sender = place.command([sys.executable, "-c", SEND, place.address, port])
        subprocess.run(sender, check=True, timeout=60)
        thread.join()
        shown = place.command(["tc", "-json", "qdisc"])
        inside = json.loads(subprocess.run(shown, capture_output=True, check=True).stdout)
        outside = json.loads(
            subprocess.run(["tc", "-json", "qdisc"], capture_output=True, check=True).stdout
        )
    assert sum(received) == SENT
    assert [q["options"]["rate"] for q in inside if q["kind"] == "tbf"] == [2e5]
    assert 1e6 in [q["options"]["rate"] for q in outside if q["kind"] == "tbf"]
    assert any(q["kind"] == "netem" for q in inside) == place.has_netem


def test_nothing_is_left_after_an_error(link: LinkProfile) -> None:
    before = _namespaces()
    with suppress(ZeroDivisionError), shape_link(link) as place:
        during = _namespaces()
        raise ZeroDivisionError
    assert place.namespace in during
    assert _namespaces() == before
    links = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout
    assert not [entry for entry in json.loads(links) if entry["ifname"].startswith("sm")]


def test_two_links_exist_side_by_side(link: LinkProfile) -> None:
    with shape_link(link) as one, shape_link(link) as other:
        assert one.address != other.address
        assert one.namespace != other.namespace


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samara.devices.hardware.link_shaping.shutil.which", lambda tool: None)
    with pytest.raises(DeviceError, match="install iproute2"):
        check_shaping()
