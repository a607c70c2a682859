"""Messages of commands about folders that are files, full disks, readable keys and taken ports."""

import errno
import os
import re
import socket
from pathlib import Path

import pytest
import typer
from federations import config_of
from typer.testing import CliRunner

from samara.command import app, main, run
from samara.devices.live.checks.preflight import Outcome, check_key
from samara.server.app import clients_to_await
from samara.server.live.keys import ClientKeys
from samara.server.live.scenario_signing import create_operator_key
from samara.server.live.superlink_process import SuperLinkProcess
from samara.server.store import METRICS_FILE
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.network.addresses import check_host


def said_by(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    """Return the one-line message of a command that fails."""
    monkeypatch.setattr("sys.argv", ["samara", *words])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("words", [("up",), ("keys", "create", "kitchen")])
def test_a_run_whose_folder_is_a_file_is_refused(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "run").touch()
    line = said_by(capsys, monkeypatch, "server", *words, "--run", str(tmp_path / "run"))
    assert line == f"samara: {tmp_path / 'run'}: File exists; give another path"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOENT, "; correct the path, or restore the file"),
        (errno.EISDIR, "; give a file"),
        (errno.EACCES, "; give a path for which you have permission, or change its permissions"),
        (errno.EIO, ""),
    ],
)
def test_an_error_that_ends_with_a_system_error_has_a_remedy(
    number: int, remedy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, said = typer.Typer(), f"ledger: cannot be read: {os.strerror(number)}"

    @commands.command()
    def read() -> None:
        raise SamaraError(said) from OSError(number, os.strerror(number))

    monkeypatch.setattr("sys.argv", ["samara"])
    with pytest.raises(SystemExit):
        run(commands)
    assert capsys.readouterr().err == f"samara: {said}{remedy}\n"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space on this disk, or give a path on another disk"),
        (errno.EROFS, "give a path for which you have permission, or change its permissions"),
    ],
)
def test_a_disk_that_takes_nothing_is_named_with_a_remedy(
    number: int, remedy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = typer.Typer()

    @commands.command()
    def write() -> None:
        raise OSError(number, "cannot be written", "ledger")

    monkeypatch.setattr("sys.argv", ["samara"])
    with pytest.raises(SystemExit):
        run(commands)
    assert capsys.readouterr().err == f"samara: ledger: cannot be written; {remedy}\n"


def test_an_error_of_the_system_without_a_remedy_is_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = typer.Typer()

    @commands.command()
    def write() -> None:
        raise OSError(errno.EIO, "Input/output error", "ledger")

    monkeypatch.setattr("sys.argv", ["samara"])
    with pytest.raises(OSError, match="Input/output"):
        run(commands)


def test_a_key_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "kitchen.key"
    file.touch(0o600)
    assert check_key(file).outcome is Outcome.PASS
    file.chmod(0o640)
    check = check_key(file)
    assert (check.outcome, check.remedy) == (Outcome.WARN, f"run chmod 600 {file}")


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        superlink = SuperLinkProcess(tmp_path / "flower", "127.0.0.1", port, None, 100)
        with pytest.raises(SamaraError, match=rf"127.0.0.1:{port}: cannot be opened: .*--port"):
            superlink.start()
    assert not (tmp_path / "flower" / "superlink.log").exists()


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_another_machine_is_refused(host: str, tmp_path: Path) -> None:
    superlink = SuperLinkProcess(tmp_path / "flower", host, 8000, None, 100)
    message = rf"{re.escape(host)}:8000: cannot be opened: .*an address of this machine"
    with pytest.raises(SamaraError, match=message):
        superlink.start()


@pytest.mark.parametrize(
    "name", ["https://server.example", "server:8000", "my server", "", "-x", "münchen.example"]
)
def test_a_name_that_is_none_is_refused_before_a_certificate_is_made(
    name: str, tmp_path: Path
) -> None:
    command = ["server", "up", "--run", str(tmp_path / "run"), f"--name={name}"]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, ConfigError)
    assert "--name" in str(result.exception)
    assert "e.g. server.example" in str(result.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["server.example", "192.0.2.7", "2001:db8::7", "my_host", "a"])
def test_host_names_and_addresses_are_names(name: str) -> None:
    check_host(name, "--name")


def test_a_run_that_goes_on_waits_for_no_revoked_client(tmp_path: Path) -> None:
    keys = ClientKeys(tmp_path / "keys")
    keys.create("gateway", gateway=True)
    for name in ("kitchen", "garden", "hall"):
        keys.create(name)
    keys.revoke("hall")
    config = config_of({"out": str(tmp_path), "data.clients": 3}, cohort__available=3)
    # Before the first round the operator may still register others.
    assert clients_to_await(config, keys) == 3
    (tmp_path / METRICS_FILE).touch()
    assert clients_to_await(config, keys) == 2
    assert clients_to_await(config, None) == 3
    keys.revoke("kitchen")
    keys.revoke("garden")
    assert clients_to_await(config, keys) == 1


def test_a_full_disk_leaves_neither_a_key_nor_a_part_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("samara.shared.storage.files.os.fsync", full)
    monkeypatch.setattr("samara.shared.storage.files.sync_folder", lambda folder: None)
    with pytest.raises(OSError, match="No space left") as error:
        ClientKeys(tmp_path).create("kitchen")
    assert error.value.filename == str(tmp_path / "kitchen.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("server", "backup", "loop", "b"),
            "Symlink loop from .*; symbolic links refer",
        ),
        (("simulate", "/dev/zero"), "/dev/zero: is larger than 1 MiB, so it is not a scenario"),
        (("server", "status", "a" * 5000), "File name too long; give a shorter path"),
        (("new", "mine", "--data", "a" * 5000), "File name too long; give a shorter path"),
        (
            ("simulate", "laptop-8", "--cohorts-from", "texts.csv"),
            "texts.csv/ledger: cannot be read: Not a directory; a part of the path is a file",
        ),
        (("compare", "none"), "^samara: none: does not exist; give the folder of a run"),
        (("compare", "."), "has the run ended. Repeat its command until it has, or give"),
        (("server", "check", "texts.csv"), "texts.csv: is a file; name the folder of a run"),
        (("simulate", "sst2", "--seeds", ""), "--seeds : not a list of seeds; give integers"),
        (("tune", "--seeds", ""), "--seeds : not a list of seeds; give integers"),
        (("phone", "check", "none.pte"), "^samara: none.pte: cannot be read: No such file"),
        (("phone", "check", "texts.csv"), "texts.json: the manifest of texts.csv cannot be read"),
        (("client", "move", "f", "--home", "none"), "none: no client was started here; check"),
        (("new", "mine", "--data", "texts.csv"), "the only column is 'text', but a task needs a"),
    ],
)
def test_an_unlikely_path_is_named_with_a_remedy(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "texts.csv").write_text("text\na\nb\n")
    monkeypatch.setattr("sys.argv", ["samara", *words])
    with pytest.raises(SystemExit):
        run(app)
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    [
        "device calibrate",
        "adapter damping sst2",
        "adapter basis sst2 --set model.path=embedded",
        "server sign --key operator.key --set model.path=embedded --set task=messages",
        "phone rows --program model.pte",
        "phone export --batch 1 --seq 32",
    ],
)
def test_an_output_file_does_not_replace_the_users_data(
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    create_operator_key(Path("operator.key"))
    data = Path("reviews.csv")
    data.write_text("text,label\na warm film,1\n")
    capsys.readouterr()
    line = said_by(capsys, monkeypatch, *words.split(), "--out", str(data))
    assert line == "samara: reviews.csv: exists, and is another kind of file; name a new file"
    assert data.read_text() == "text,label\na warm film,1\n"
    assert sorted(os.listdir()) == ["operator.key", "reviews.csv"]


def test_a_deleted_current_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("sys.argv", ["samara", "demo"])
    with pytest.raises(SystemExit, match="the current folder was deleted"):
        main()
