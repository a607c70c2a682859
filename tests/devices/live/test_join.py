"""A device joins a run by one line over TLS; a wrong code or a man in the middle is refused."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from forked import LOADED
from golden.golden_scenario import golden_scenario
from invitations import access_to, authority_of, invite, names, new_run, post, request_of, serve
from typer.testing import CliRunner

from samara.command import app as samara
from samara.devices.live.client_folder import JOINED_FILE, UP_LOCK
from samara.devices.live.join import AUTHORITY_FILE, _read_names, join_run, read_joined_server
from samara.devices.live.keys import OWN_KEY_FILE, read_client_index
from samara.server.commands import app as server_commands
from samara.server.live.invitations import INVITATIONS_FOLDER, Invitations, invite_client
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.live_config import SCENARIO_FILE
from samara.server.live.run_supervisor import FLOWER_FOLDER
from samara.server.live.server_port import note_port
from samara.shared.errors import (
    DeviceError,
    InvitationError,
    SamaraError,
    ScenarioError,
    TrainerError,
)
from samara.shared.network.certificates import CERTIFICATES_FOLDER, make_certificates
from samara.shared.network.invitation import (
    MAX_WELCOME_BYTES,
    InvitationCode,
    Welcome,
)
from samara.shared.protocol.signing import SigningKey


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with serve(access_to(run), run) as served:
        yield served


def test_a_device_joins_by_one_line_and_its_key_stays_there(
    run: Path, address: str, tmp_path: Path
) -> None:
    scenario = tmp_path / "field.signed"
    scenario.write_bytes(golden_scenario().encode())
    runner = CliRunner()
    shown = runner.invoke(
        server_commands,
        [
            "invite",
            "kitchen",
            f"--run={run}",
            f"--address={address}",
            f"--scenario={scenario}",
            "--qr",
        ],
    )
    assert shown.exit_code == 0, shown.output
    line, picture = shown.stdout.split("\n", 1)
    assert picture.count("█") > 100
    assert not any(line.split()[4] in f.read_text() for f in run.rglob("*.json"))
    program, *words = line.split()
    assert program == "samara"
    home = tmp_path / "device"
    joined = runner.invoke(samara, [*words, "--home", str(home)])
    assert joined.exit_code == 0, joined.output
    assert "signed by operator" in joined.output
    (key,) = ClientKeys(run / KEYS_FOLDER).read_all()
    assert (key.name, key.public_key.encode()) == (
        "kitchen",
        SigningKey(home / OWN_KEY_FILE).public,
    )
    assert f"client {key.client} of {address}" in joined.output
    assert read_client_index(home / OWN_KEY_FILE) == key.client
    assert (home / AUTHORITY_FILE).read_text() == authority_of(run).read_text()
    assert list((home / "scenarios").glob("*.signed"))
    server = read_joined_server(home)
    assert server is not None
    assert server[:4] == (address, home / OWN_KEY_FILE, home / AUTHORITY_FILE, "")
    secret_line = (home / OWN_KEY_FILE).read_text().splitlines()[1]
    assert not any(secret_line in file.read_text() for file in run.rglob("*") if file.is_file())
    assert home.stat().st_mode & 0o077 == 0
    assert (run / INVITATIONS_FOLDER).stat().st_mode & 0o077 == 0


def served_as(run: Path, scenario: str) -> None:
    (run / SCENARIO_FILE).write_text(scenario)


@pytest.mark.parametrize(
    ("scenario", "what", "command"),
    [
        ("", "DATA: your examples", "--model MODEL --data DATA --task TASK"),
        ('task = "messages"\n[model]\npath = "embedded"', "client ", ""),
        (
            'task = "sst2"\n[model]\npath = "owner/model"',
            "DATA: your examples",
            "--model owner/model --data DATA --task sst2",
        ),
        (
            'task = "/home/op/films/task.toml"\n[model]\npath = "/home/op/model"',
            "TASK: the operator's task file task.toml",
            "--model MODEL --data DATA --task TASK",
        ),
        (
            'task = "sst2"\n[model]\npath = "embedded"',
            "MODEL: the run's model",
            "--model MODEL --data DATA --task sst2",
        ),
    ],
)
def test_joining_ends_with_the_command_that_starts_the_client(
    scenario: str, what: str, command: str, run: Path, address: str, tmp_path: Path
) -> None:
    """The command has all options that the server can know, but no path of the operator's."""
    if scenario:
        served_as(run, scenario)
    home = tmp_path / "my device"
    arguments = ["client", "join", address, str(invite(run)), "--name", "kitchen"]
    joined = CliRunner().invoke(samara, [*arguments, "--home", str(home)])
    *_, before, last = joined.output.splitlines()
    assert what in before
    assert last == f"samara client up --name kitchen --home '{home}' {command}".rstrip()
    assert "/home/op" not in joined.output


@pytest.mark.parametrize("name", ["-x", "a; rm b", "$(b)", "/etc/task", "a/b/c", "", "x" * 129, 7])
def test_a_server_puts_nothing_but_names_into_the_command(name: Any) -> None:
    assert _read_names(json.dumps({"task": name, "model": "owner/model"}).encode()) == {
        "model": "owner/model"
    }
    assert _read_names(b"[]") == _read_names(b"\xff") == {}


def test_a_client_that_joined_and_was_not_started_is_told_what_starts_it(
    run: Path, address: str, tmp_path: Path
) -> None:
    join_run(address, invite(run), tmp_path / "home")
    status = ["client", "status", "--home", str(tmp_path / "home")]
    shown = CliRunner().invoke(samara, status)
    assert re.search(
        "has joined a run but was never started.*`samara client up`", str(shown.exception)
    )


def test_a_folder_too_long_for_a_socket_is_refused_before_a_key_is_made(
    run: Path, address: str, tmp_path: Path
) -> None:
    home = tmp_path / ("long" * 30)
    with pytest.raises(TrainerError, match=r"may have 107 bytes.*give a client a shorter --home"):
        join_run(address, invite(run), home)
    assert not home.exists()
    assert names(run) == []


def test_client_up_takes_server_key_and_authority_from_the_folder(tmp_path: Path) -> None:
    up = ["client", "up", "--name", "kitchen", "--home", str(tmp_path / "home")]
    missing = CliRunner().invoke(samara, up)
    assert "samara server invite" in str(missing.exception)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / JOINED_FILE).write_text('{"superlink": "nowhere"}')
    damaged = CliRunner().invoke(samara, up)
    assert "join again" in str(damaged.exception)


def test_wrong_and_broken_codes(run: Path, address: str, tmp_path: Path) -> None:
    code = invite(run)
    for text in ("", "a" * 56, str(code)[:-1], str(code)[::-1], f"{code}{code}", "é" * 56):
        with pytest.raises(InvitationError, match="incomplete"):
            InvitationCode.parse(text)
    assert InvitationCode.parse(f" {str(code).upper()}\n") == code
    other = InvitationCode(code.trusted, bytes(16))
    with pytest.raises(InvitationError, match="no such invitation"):
        join_run(address, other, tmp_path / "home")
    assert post(address, request_of(other, tmp_path / "key").encode()) == 404
    assert names(run) == []


def test_a_code_is_for_one_device_and_that_one_may_repeat_it(
    run: Path, address: str, tmp_path: Path
) -> None:
    code = invite(run)
    for _ in range(2):
        join_run(address, code, tmp_path / "first")
    with pytest.raises(InvitationError, match="used with another key"):
        join_run(address, code, tmp_path / "second")
    assert not (tmp_path / "second" / JOINED_FILE).exists()
    (key,) = ClientKeys(run / KEYS_FOLDER).read_all()
    assert key.public_key.encode() == SigningKey(tmp_path / "first" / OWN_KEY_FILE).public
    with pytest.raises(SamaraError, match="already has this name"):
        invite(run)
    ClientKeys(run / KEYS_FOLDER).revoke("kitchen")
    with pytest.raises(InvitationError, match="was revoked"):
        join_run(address, code, tmp_path / "first")


def test_an_invitation_ends_and_a_later_one_takes_its_place(
    run: Path, address: str, tmp_path: Path
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    ended = invite_client(run, "kitchen", authority_of(run), None, before)
    with pytest.raises(InvitationError, match="has ended"):
        join_run(address, ended, tmp_path / "home")
    first, second = invite(run), invite(run)
    for code in (ended, first):
        with pytest.raises(InvitationError, match="no such invitation"):
            join_run(address, code, tmp_path / "home")
    assert len(list((run / INVITATIONS_FOLDER).iterdir())) == 1
    join_run(address, second, tmp_path / "home")


def test_nothing_is_told_to_another_server(run: Path, tmp_path: Path) -> None:
    """A man in the middle answers with all public data, and with his own certificate."""
    code = invite(run)
    welcome = Invitations(run).welcome(code.identifier)
    got: list[tuple[str, str]] = []
    answers = {
        "what is public": welcome,
        "his own": Welcome("mine").encode(),
        "too much": b"x" * (MAX_WELCOME_BYTES + 2),
        "nothing": b"",
    }

    def impostor(answer: bytes) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            got.append((scope["method"], scope["path"]))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": answer})

        return app

    messages = {}
    for what, answer in answers.items():
        with (
            serve(impostor(answer), tmp_path / "impostor") as address,
            pytest.raises(InvitationError) as error,
        ):
            join_run(address, code, tmp_path / "home")
        messages[what] = str(error.value)
    assert "is not verified by the authority" in messages["what is public"]
    assert "was changed on the way" in messages["his own"]
    assert "was changed on the way" in messages["nothing"]
    assert "the answer is longer than an invitation" in messages["too much"]
    assert {method for method, _ in got} == {"GET"}
    assert all(code.secret.hex() not in path for _, path in got)
    assert sorted(p.name for p in (tmp_path / "home").iterdir() if p.name != UP_LOCK) == [
        OWN_KEY_FILE
    ]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        silent = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(InvitationError, match="no answer by TLS"):
        join_run(silent, code, tmp_path / "home")


def test_a_scenario_of_another_operator_is_not_taken(
    run: Path, address: str, tmp_path: Path
) -> None:
    scenario = tmp_path / "field.signed"
    scenario.write_bytes(golden_scenario().encode())
    (tmp_path / "home" / "scenarios").mkdir(parents=True)
    (tmp_path / "home" / "scenarios" / "operator.pem").write_text("another")
    with pytest.raises(ScenarioError, match="this client accepts"):
        join_run(address, invite(run, scenario=scenario), tmp_path / "home")
    assert not (tmp_path / "home" / JOINED_FILE).exists()


KILLED = """
import os, signal, sys
from pathlib import Path
import samara.shared.storage.files as files
count, at = 0, int(sys.argv[1])
def killing(function):
    def call(*arguments):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call
os.fsync, os.replace = killing(os.fsync), killing(os.replace)
from samara.devices.live.join import join_run
from samara.shared.network.invitation import InvitationCode
join_run(sys.argv[2], InvitationCode.parse(sys.argv[3]), Path(sys.argv[4]))
print(count)
"""


def test_a_join_that_is_killed_anywhere_goes_on(run: Path, address: str, tmp_path: Path) -> None:
    code, home = invite(run), tmp_path / "home"

    def start(at: int) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", LOADED + KILLED, str(at), address, str(code), str(home)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    keys = set()
    at = 1
    while (done := start(at)).returncode == -signal.SIGKILL:
        keys |= {key.public_key for key in ClientKeys(run / KEYS_FOLDER).read_all()}
        at += 1
    assert done.returncode == 0, done.stderr
    assert at > 6
    (key,) = ClientKeys(run / KEYS_FOLDER).read_all()
    assert keys <= {key.public_key}
    assert SigningKey(home / OWN_KEY_FILE).public == key.public_key.encode()
    assert read_joined_server(home) is not None


def test_invitations_that_cannot_be_made(run: Path, tmp_path: Path) -> None:
    def message(*arguments: str) -> str:
        shown = CliRunner().invoke(server_commands, ["invite", *arguments])
        assert shown.exit_code
        return str(shown.exception)

    on = ("--run", str(run))
    assert "not a client's name" in message("../x", *on)
    assert "and not for example.org" in message("kitchen", *on, "--address", "example.org:8000")
    assert "this is not host:port" in message("kitchen", *on, "--address", "localhost")
    assert "does not exist yet" in message("kitchen", "--run", str(tmp_path / "none"))
    assert "no such" in message("kitchen", *on, "--scenario", str(tmp_path / "none")).lower()
    make_certificates(run / CERTIFICATES_FOLDER, ["a.example", "b.example"])
    assert "a.example, b.example; choose one" in message("kitchen", *on)
    assert not (run / INVITATIONS_FOLDER).exists()


def test_an_invitation_names_the_port_of_its_server(run: Path) -> None:
    def line() -> str:
        shown = CliRunner().invoke(server_commands, ["invite", "kitchen", "--run", str(run)])
        assert shown.exit_code == 0
        return shown.stdout

    assert f"samara client join {socket.gethostname()}:8000 " in line()
    (run / FLOWER_FOLDER).mkdir()
    note_port(run / FLOWER_FOLDER, 8123)
    assert f"samara client join {socket.gethostname()}:8123 " in line()


def test_a_client_that_runs_is_not_joined_beside_it(
    run: Path, address: str, tmp_path: Path
) -> None:
    from filelock import FileLock

    (tmp_path / "home").mkdir()
    with FileLock(tmp_path / "home" / UP_LOCK), pytest.raises(DeviceError):
        join_run(address, invite(run), tmp_path / "home")


def test_a_board_that_is_invited_to_a_gateway_keeps_it_and_what_verifies_it(
    run: Path, address: str, tmp_path: Path
) -> None:
    (tmp_path / "gateway-ca.pem").write_text("PEM of the gateway")
    shown = CliRunner().invoke(
        server_commands,
        [
            *("invite", "kitchen", f"--run={run}", f"--address={address}"),
            *("--gateway=gateway.example:9100", f"--gateway-ca={tmp_path / 'gateway-ca.pem'}"),
        ],
    )
    assert shown.exit_code == 0, shown.output
    line, home = shown.stdout.splitlines()[0], tmp_path / "device"
    assert line.startswith("samara client join ")
    joined = CliRunner().invoke(samara, [*line.split()[1:], "--home", str(home)])
    assert joined.exit_code == 0, joined.output
    assert f"of {address}, by gateway.example:9100" in joined.output
    server = read_joined_server(home)
    assert server is not None
    assert server.gateway == "gateway.example:9100"
    assert server.gateway_authority.read_text() == "PEM of the gateway"
    lacking = ["invite", "attic", f"--run={run}", "--gateway=gateway.example:9100"]
    refused = CliRunner().invoke(server_commands, [*lacking, f"--address={address}"])
    assert "a board that attaches to a gateway needs --gateway and --gateway-ca" in str(
        refused.exception
    )
