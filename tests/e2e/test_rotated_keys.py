"""Live runs in which the keys of a board and of a phone are replaced during the rounds.

*Board*: `samara server up` and two `samara client up` over TLS with the embedded model. After a few
rounds, the operator rotates the key of one client. The client's process continues with the earlier
key, like a thief's process, and is restarted later with the new key. *Phone*: a phone behind
`samara gateway up`, and two toy devices. The phone creates its next key itself, and the process
with the earlier key continues. The earlier key must be refused within seconds, and rounds must
continue. The client must keep its index and its session. The run must end in the same digest as a
run with the same cohorts and without rotation.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import UserConfig

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.faults.signed_requests import is_refused
from benchmarks.faults.toy_clients import Device, heartbeats_end_with_the_run
from benchmarks.faults.toy_phone import ToyPhone
from benchmarks.faults.toy_run import check as check_toy_run
from benchmarks.faults.toy_run import settings_of as toy_settings
from benchmarks.scale.mixed_run import GATEWAY, OPEN, samara, start_gateway
from samara.client.limits.device_settings import CLIENT_INDEX
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.live.keys import read_client_index
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.errors import DeviceError
from samara.shared.protocol.signing import SigningKey
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.simulations.simulate import simulate

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
BOARD, OTHER, PHONE = "kitchen", "garden", "phone"
FIRST_ROUNDS = 3
"""Rounds before the rotation."""
MOST_ROUNDS = 100_000
"""More rounds than a run reaches, because a signal ends the run."""


def rotate_board(folder: Path, rounds: int) -> str:
    """Rotate the key of a real client in a live run, and return a description of the outcome.

    Args:
        folder: empty folder of the run.
        rounds: number of rounds after the first report under the new key.

    Raises:
        AssertionError: if the earlier key still works, or the client differs afterwards.
    """
    settings: dict[str, Scalar] = {"rounds": MOST_ROUNDS, "steps": 1, "queries": 4, "batch": 16}
    settings |= {"personal.rounds": 0, "evaluate.every": 0, "cohort.available": 2}
    settings |= {"cohort.timeout": 60.0, "ledger.snapshot-every": 0}
    address = free_address()
    with LiveRun(folder, settings, [BOARD, OTHER], address) as live:
        live.serve()
        for name in live.names:
            own = folder / f"{name}.key"
            shutil.move(live.key(name), own)  # as an operator does, who leaves no copy of the key
            live.start_client(name, None, "--key", str(own), "--set", "threads=1")
        live.wait_for_round(FIRST_ROUNDS, 900)
        [session] = live.home(BOARD).glob("runs/*/session")
        own, client = folder / f"{BOARD}.key", live.devices[BOARD]
        stolen = folder / "stolen.key"
        shutil.copy(own, stolen)
        assert not _is_refused(live, stolen), "the key does not work before the rotation"
        samara(folder, "server", "keys", "rotate", BOARD, "--run", str(live.run))
        refused = live.wait(lambda: _is_refused(live, stolen), "the refusal")
        last = live.last()
        live.wait_for_round(live.last() + 2)  # the process with the earlier key still runs
        between = [BOARD in live.reporters(n) for n in range(last + 2, live.last() + 1)]
        assert between, "no round ended before the client had its new key"
        assert not any(between), "a report under the earlier key counts"
        live.clients[BOARD].terminate()
        live.clients[BOARD].wait()
        before = session.stat().st_mtime_ns
        shutil.move(live.key(BOARD), own)
        assert read_client_index(own) == client
        live.start_client(BOARD, None, "--key", str(own), "--set", "threads=1")
        live.wait_for_report(BOARD)
        live.wait_for_round(live.last() + rounds)
        assert list(live.home(BOARD).glob("runs/*/session")) == [session]
        assert session.stat().st_mtime_ns > before, "the session did not continue"
        assert {key.name: key.client for key in ClientKeys(live.run / KEYS_FOLDER).read_all()} == (
            live.devices
        )
        number = live.end_server()
        reports = [len(event["clients"]) for event in live.rounds.values()]
    end = again(live, settings, number)
    return (
        f"board: the earlier key was refused {refused:.1f} s after `keys rotate`, in round {last}; "
        f"reports by round {reports}; the client continued as {client} with its session, and {end}"
    )


def again(live: LiveRun, settings: Mapping[str, Scalar], rounds: int) -> str:
    """Repeat the run in process with the same cohorts, and check that it ends in the same digest.

    Raises:
        AssertionError: if the digests differ.
    """
    out = live.folder / "again"
    config = RunConfig.of(dict(settings) | {"out": str(out)}, "again")
    homes = [live.home(name) for name in live.names]
    repeated = read_result(simulate(config, cohorts_from=live.run, homes=homes))
    expected = live.digests()[rounds]
    assert repeated["final_digest"] == expected, "another end"
    return f"an undisturbed run with the same cohorts also ends in {expected[:16]}"


def rotate_phone(folder: Path, rounds: int) -> str:
    """Rotate the key of a phone behind a real gateway, and return a description of the outcome.

    Args:
        folder: empty folder of the run.
        rounds: number of rounds after the first report under the new key.

    Raises:
        AssertionError: if the earlier key still works, or the phone differs afterwards.
    """
    names = ["device-0", "device-1"]
    address, door = free_address(), free_address()
    settings = toy_settings(folder / "run", MOST_ROUNDS, 30.0) | {"cohort.fraction": 1.0}
    settings |= {"cohort.available": 3, "data.clients": 3}
    del settings["out"]
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    admitted = folder / "phones"
    admitted.mkdir()
    _write_phone_key(folder, "first")
    run = str(folder / "run")
    samara(folder, "server", "keys", "create", PHONE, "first.pem", "--run", run)
    (admitted / "first.pem").write_bytes((folder / "first.pem").read_bytes())
    client = read_client_index(folder / "first.key")
    live_run = LiveRun(folder, settings, [*names, GATEWAY], address)
    with heartbeats_end_with_the_run(), _Threads() as threads, live_run as live:
        live.serve()
        start_gateway(live, address, door)
        live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")
        endpoint = GatewayEndpoint(door, live.home(GATEWAY) / "certificates" / "ca.pem")
        thief, phone = ToyPhone(client, 3), ToyPhone(client, 3)
        threads.attach(thief, folder / "first.key", endpoint)
        ca = live.run / "certificates" / "ca.pem"
        for number, name in enumerate(names):
            threads.start(Device(number, 3, address, ca, live.key(name)))
        live.wait_for_round(FIRST_ROUNDS)
        assert PHONE in live.reporters(live.last()), "the phone takes part"
        phone.session = thief.session  # the phone's own state; the thief has a copy of the key
        _write_phone_key(folder, "second", "--client", str(client))
        samara(folder, "server", "keys", "rotate", PHONE, "second.pem", "--run", run)
        begun, last = live.last(), live.last()
        refused = live.wait(lambda: _lacks_phone(live, begun), "a round without the earlier key")
        live.wait_for_round(live.last() + 1)  # the thief is still attached
        assert PHONE not in live.reporters(live.last()), "a report under the earlier key counts"
        shutil.copy(folder / "second.pem", admitted / "second.pem")
        (admitted / "first.pem").unlink()
        threads.attach(phone, folder / "second.key", endpoint)
        live.wait_for_report(PHONE)
        live.wait_for_round(live.last() + rounds)
        live.end_server()
        reports = [PHONE in live.reporters(number) for number in live.rounds]
        assert phone.session is not None, "the phone took part"
        number = phone.session.position.round
        assert phone.session.digest.hex() == live.digests()[number], "the phone has another state"
    nodes: list[UserConfig] = [{CLIENT_INDEX: live.devices[n]} for n in (*names, PHONE)]
    acknowledged = {number: event["digest"] for number, event in live.rounds.items()}
    end = check_toy_run(folder, settings, acknowledged, "phone", nodes)
    return (
        f"{end}; the first round without the earlier key ended {refused:.1f} s after `keys rotate` "
        f"in round {last}; rounds with its report: {reports}"
    )


def _write_phone_key(folder: Path, name: str, *options: str) -> None:
    public = samara(folder, "phone", "key", f"{name}.key", *options)
    (folder / f"{name}.pem").write_text(public)


def _lacks_phone(live: LiveRun, since: int) -> bool:
    live.last()
    return any(PHONE not in live.reporters(n) for n in live.rounds if n > since)


def _is_refused(live: LiveRun, key: Path) -> bool:
    private = load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), "client keys are on elliptic curves"
    return is_refused(live.address, live.run / "certificates" / "ca.pem", private)


class _Threads:
    """The threads of toy devices and attached phones, which end with the block."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._ends: list[Callable[[], object]] = []

    def __enter__(self) -> "_Threads":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for end in self._ends:
            end()

    def start(self, device: Device) -> None:
        """Start a toy device."""
        device.start()
        self._ends.append(device.end)

    def attach(self, phone: ToyPhone, key: Path, endpoint: GatewayEndpoint) -> None:
        """Attach a phone to a gateway until the block ends or the gateway rejects it."""

        def stay() -> None:
            try:
                attach(phone, SigningKey(key), endpoint, self._stop)
            except DeviceError as error:
                logging.info("%s", error)

        thread = threading.Thread(target=stay, daemon=True)
        thread.start()
        self._ends.append(thread.join)


def test_a_board_goes_on_with_a_new_key(short: Path) -> None:
    said = rotate_board(short, rounds=1)
    print(said)
    assert "an undisturbed run with the same cohorts also ends in" in said


def test_a_phone_goes_on_with_a_new_key(short: Path) -> None:
    said = rotate_phone(short, rounds=1)
    print(said)
    assert "as the undisturbed run with the same cohorts does" in said
