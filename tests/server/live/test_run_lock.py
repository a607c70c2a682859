"""The files of a server that fails before it serves."""

import os
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from helpers import tree_of
from typer.testing import CliRunner

from samara.server.commands import app as server_app
from samara.server.live.run_lock import check_not_moved, lock_run, restored_if_not_started
from samara.shared.errors import SamaraError
from samara.shared.network.certificates import make_certificates
from samara.shared.storage.files import write_secret


def test_a_server_that_cannot_start_leaves_no_new_files(tmp_path: Path) -> None:
    run, old = tmp_path / "new" / "run", tmp_path / "old"
    (old / "keys").mkdir(parents=True)
    (old / "keys" / "anna.pem").write_text("public key")
    before = tree_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for folder in (run, old):
            for options in (
                ["--port", port],
                ["--dashboard", "--dashboard-port", port],
                ["--cert", "missing.pem", "--key", "missing.key"],
            ):
                command = ["up", "--run", str(folder), "--host", "127.0.0.1", *options]
                result = CliRunner().invoke(server_app, command)
                assert isinstance(result.exception, SamaraError), result.output
                assert tree_of(tmp_path) == before
                assert not run.parent.exists()


def test_a_run_whose_server_cannot_start_again_keeps_its_files(tmp_path: Path) -> None:
    flower = tmp_path / "flower"
    flower.mkdir()
    (flower / "superlink.log").write_text("an earlier server")
    (tmp_path / "scenario.toml").write_text("rounds = 7\n")
    make_certificates(tmp_path / "certificates", ["earlier.example"])
    before = tree_of(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for options in (
            ["--port", port, "--name", "later.example"],
            ["--dashboard", "--dashboard-port", port],
            ["--cert", "missing.pem", "--key", "missing.key"],
        ):
            command = ["up", "--run", str(tmp_path), "--host", "127.0.0.1", *options]
            result = CliRunner().invoke(server_app, command)
            assert isinstance(result.exception, SamaraError), result.output
            assert {**tree_of(tmp_path), "server.lock": b""} == {**before, "server.lock": b""}


def test_a_private_key_that_is_restored_stays_private(tmp_path: Path) -> None:
    key, log = tmp_path / "server.key", tmp_path / "superlink.log"
    write_secret(key, b"earlier")
    usual = os.umask(0o022)
    try:
        with (
            suppress(SamaraError),
            restored_if_not_started(tmp_path, (key.name,), (key.name,), log),
        ):
            write_secret(key, b"later")
            raise SamaraError("fails")
    finally:
        os.umask(usual)
    assert key.read_bytes() == b"earlier"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_what_another_command_or_server_has_written_stays(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "run" / "superlink.log"

    def fail(other: str) -> set[str]:
        with suppress(SamaraError), restored_if_not_started(run, ("scenario.toml",), (), log):
            run.mkdir()
            (run / "scenario.toml").touch()
            (run / other).touch()
            raise SamaraError("fails")
        return {file.name for file in run.iterdir()} if run.exists() else set()

    assert fail("server.lock") == set()
    assert fail("invitation") == {"scenario.toml", "invitation"}
    shutil.rmtree(run)
    assert fail("superlink.log") == {"scenario.toml", "superlink.log"}
    shutil.rmtree(run)
    with ExitStack() as stack, suppress(SamaraError), restored_if_not_started(run, (), (), log):
        stack.enter_context(lock_run(run))  # as another server
        raise SamaraError("fails")
    assert (run / "server.lock").exists()


def test_a_run_that_another_process_serves_is_refused_until_that_dies(tmp_path: Path) -> None:
    code = (
        "import sys, time; from filelock import FileLock; "
        "lock = FileLock(sys.argv[1]).acquire(); print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "server.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(SamaraError, match="another `samara server up` is serving this run"):
            lock_run(tmp_path).__enter__()
        process.kill()
    with lock_run(tmp_path):
        pass


def test_a_folder_whose_name_is_too_long_has_not_moved(tmp_path: Path) -> None:
    check_not_moved(tmp_path / ("a" * 5000))
    (tmp_path / "moved.json").write_text("{")
    with pytest.raises(SamaraError, match="this run has moved"):
        check_not_moved(tmp_path)
