"""Short runs on live servers; the scripts in benchmarks/ make the same runs at length."""

import os
import sqlite3
import stat
from pathlib import Path

import httpx
import pytest

from benchmarks.faults import malformed_messages
from benchmarks.faults.attacked_run import attack
from benchmarks.faults.hostile_clients import HostileDevice
from benchmarks.faults.hostile_frames import attack_decoders, attack_strategy
from benchmarks.faults.ports import free_port
from benchmarks.faults.server_kill import kill_in_process, kill_live
from samara.server.live.superlink_process import SuperLinkProcess
from samara.server.store import METRICS_FILE
from samara.shared.errors import SamaraError
from samara.shared.flower_compat import (
    AcquireTaskRequest,
    ControlHttpClient,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    TaskType,
)
from samara.shared.network.certificates import make_certificates, renew_certificate

pytestmark = pytest.mark.slow


def test_forged_frames_are_refused_and_none_is_folded(tmp_path: Path) -> None:
    assert attack_decoders(2_000, seed=1)["refused"] > 1_500
    ways, rounds, _ = attack_strategy(300, 1, tmp_path)
    assert sum(ways.values()) >= 300
    assert rounds == 7


def test_malformed_messages_of_flowers_end_nothing_and_store_nothing(short: Path) -> None:
    [footprint] = attack(short, 2, 1, malformed_messages.MalformedDevice)
    assert "its reply is broken: KeyError" in (short / "run" / METRICS_FILE).read_text()
    assert malformed_messages.MalformedDevice.sent.total() == 2 * (malformed_messages.PUSHES + 1)
    assert footprint.database < 8 * 1024
    assert footprint.logs < 64


def test_only_the_server_itself_starts_runs_and_fetches_tasks(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "certificates", [])
    port = free_port()
    (tmp_path / "keys").mkdir()
    folder = tmp_path / "flower"
    superlink = SuperLinkProcess(folder, "127.0.0.1", port, tls, 2**20, tmp_path / "keys")
    before = os.umask(0o077)
    try:
        superlink.start()
        assert superlink.missing_process() == ""
        assert superlink.list_nodes() == []
        authority = tls.authority.read_bytes()
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        with (
            ControlHttpClient.from_server_address(
                f"127.0.0.1:{port}", False, authority, [version]
            ) as control,
            pytest.raises(httpx.HTTPStatusError, match="403"),
        ):
            control.StartRun(StartRunRequest())
        with (
            RuntimeHttpClient.from_server_address(
                f"127.0.0.1:{port}", False, authority, [version]
            ) as runtime,
            pytest.raises(httpx.HTTPStatusError, match="401"),
        ):
            runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        renew_certificate(tmp_path / "certificates")
        assert superlink.has_new_certificate()
        superlink.start()
        assert superlink.list_nodes() == []
        assert not superlink.has_new_certificate()
    finally:
        os.umask(before)
        superlink.stop()
    database = folder / "superlink.db"
    assert stat.S_IMODE(database.stat().st_mode) == stat.S_IMODE(superlink.log_file.stat().st_mode)
    assert stat.S_IMODE(database.stat().st_mode) == 0o600


def test_a_database_that_was_being_made_stands_in_the_way_once_only(tmp_path: Path) -> None:
    port = free_port()
    folder = tmp_path / "flower"
    folder.mkdir()
    with sqlite3.connect(folder / "superlink.db") as database:
        database.execute("CREATE TABLE node (node_id INTEGER)")
    database.close()
    superlink = SuperLinkProcess(folder, "127.0.0.1", port, None, 2**20, None)
    try:
        with pytest.raises(SamaraError, match="did not start"):
            superlink.start()
        superlink.start()
        assert superlink.list_nodes() == []
    finally:
        superlink.stop()


def test_a_server_that_is_killed_loses_no_round(tmp_path: Path) -> None:
    assert "none lost" in kill_in_process(2, 1, tmp_path)


@pytest.mark.exhaustive
def test_killed_processes_of_a_live_server_are_replaced(tmp_path: Path) -> None:
    assert "none lost" in kill_live(1, 2, tmp_path)


@pytest.mark.exhaustive
def test_a_live_server_folds_nothing_of_hostile_devices(short: Path) -> None:
    attack(short, 3, 1, HostileDevice)
    assert HostileDevice.ways.total() == 3
