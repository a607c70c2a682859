"""A client moves to another device as one file, and deletes files at its owner's request."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import instruction_with, report_to, tree_of
from typer.testing import CliRunner

from samara.client.limits.answer_log import AnswerLog
from samara.devices.live.client_folder import MOVED_FILE, SETTINGS_FILE, check_not_moved
from samara.devices.live.client_supervisor import load_client_index
from samara.devices.live.client_supervisor import up as client_up
from samara.devices.live.commands import app as client_app
from samara.devices.live.keys import create_key, read_client_index
from samara.devices.live.owner import sealed_archive
from samara.devices.live.owner.forgetting import Forgotten, describe_rest, find_files, forget
from samara.devices.live.owner.moving import import_client, move_client
from samara.devices.live.owner.sealed_archive import write_archive
from samara.devices.live.processes import exclusive_lock
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import ArchiveError, ConfigError, DeviceError, SamaraError, TrainerError
from samara.shared.storage.archive import ArchivedFile

PASSPHRASE = "correct horse"
RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
CARRIED = {
    f"runs/{RUN}/session": b"session",
    f"runs/{RUN}/run.json": b"{}",
    f"runs/{RUN}/answered.json": b"answered",
    f"runs/{RUN}/validation.json": b"{}",
    f"runs/{RUN}/clients/7/personal.ledger/0000000001.seg": b"rounds",
    f"runs/{OTHER}/answered.json": b"other",
    f"runs/{OTHER}/clients/7/personal.ledger/0000000001.seg": b"older",
    "answers.jsonl": b"{}\n",
    "scalars.json": b"{}",
    "passes.json": b"{}",
    "examples.jsonl": b"{}\n",
    "blobs/" + 64 * "a": b"basis",
    "scenarios/operator.pem": b"operator",
}
LEFT = {
    f"runs/{RUN}/schedule-{RUN}.json",
    f"runs/{RUN}/clients/7/personal.ledger/lock",
    f"runs/{RUN}/session.new",
    "blobs/" + 64 * "b" + ".part",
    "up.lock",
    "trainer.sock",
    "executor.secret",
}


@pytest.fixture(scope="module", autouse=True)
def cheap_key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_archive, "SCRYPT_COST", 2)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a stopped client, whose key is in another folder."""
    home = tmp_path / "old"
    key, certificate = tmp_path / "kitchen.key", tmp_path / "server.pem"
    create_key(key)
    certificate.write_text("a certificate")
    for path, content in [*CARRIED.items(), *((path, b"x") for path in LEFT)]:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_bytes(content)
    ClientSettings(
        name="kitchen",
        folder=home,
        superlink="127.0.0.1:1",
        client_index=read_client_index(key),
        device_settings={"model.path": "embedded"},
        key=key,
        certificates=certificate,
    ).write()
    return home


def test_a_client_goes_on_elsewhere_with_all_that_it_was(home: Path, tmp_path: Path) -> None:
    (home / "link").symlink_to(home / "scalars.json")
    (home / ".hidden").write_text("x")
    os.utime(home / f"runs/{RUN}/session", ns=(3, 3))
    moved = move_client(home, tmp_path / "moved", PASSPHRASE)
    assert moved.left_out == [".hidden", "link"]
    new = tmp_path / "new" / "home"
    settings = import_client(tmp_path / "moved", new, "cellar", PASSPHRASE)
    found = tree_of(new)
    kept = json.loads(found.pop(SETTINGS_FILE))
    assert found.pop("client.key") == (tmp_path / "kitchen.key").read_bytes()
    assert found.pop("ca.pem") == b"a certificate"
    assert found == CARRIED
    assert (new / f"runs/{RUN}/session").stat().st_mtime_ns == 3
    assert new.stat().st_mode & 0o777 == 0o700
    assert ClientSettings.read(new) == settings
    assert (kept["name"], kept["folder"]) == ("cellar", str(new))
    assert (settings.key, settings.certificates) == (new / "client.key", new / "ca.pem")
    assert load_client_index(new, settings.key) == ClientSettings.read(home).client_index
    assert not list(tmp_path.glob("new/*.importing"))
    again = move_client(new, tmp_path / "again", PASSPHRASE)
    assert again.files == moved.files
    import_client(tmp_path / "again", tmp_path / "third", "", PASSPHRASE)
    assert tree_of(tmp_path / "third").keys() == {*CARRIED, SETTINGS_FILE, "client.key", "ca.pem"}
    assert ClientSettings.read(tmp_path / "third").name == "cellar"


def test_the_old_folder_serves_no_more_unless_it_was_a_copy(home: Path, tmp_path: Path) -> None:
    settings = ClientSettings.read(home)
    move_client(home, tmp_path / "copy", PASSPHRASE, is_copy=True)
    check_not_moved(home)
    move_client(home, tmp_path / "moved", PASSPHRASE)
    for refused in (
        lambda: client_up(settings),
        lambda: move_client(home, tmp_path / "twice", PASSPHRASE),
    ):
        with pytest.raises(DeviceError, match=r"has moved on .* to .*/moved.*Delete .*moved\.json"):
            refused()
    assert not (tmp_path / "twice").exists()
    shown = run_command("learn", "hi", "--label", "1", "--home", str(home))
    assert "has moved on" in str(shown.exception)
    (home / MOVED_FILE).write_text("rubbish")
    with pytest.raises(DeviceError, match="has moved to another device"):
        check_not_moved(home)
    (home / MOVED_FILE).unlink()
    check_not_moved(home)


def test_a_move_that_fails_leaves_the_client_as_it_was(home: Path, tmp_path: Path) -> None:
    before = tree_of(home)
    (tmp_path / "there").write_text("something else")
    for file, message in (
        (tmp_path / "there", "exists; name a new file"),
        (tmp_path / "no" / "folder", "cannot be written"),
        (home / "inside", "this file would be in the client's folder"),
    ):
        with pytest.raises(SamaraError, match=message):
            move_client(home, file, PASSPHRASE)
    with pytest.raises(DeviceError, match="must have at least 8 characters"):
        move_client(home, tmp_path / "moved", "short")
    for lock in ("up.lock", "trainer.lock"):
        with (
            exclusive_lock(home / lock, "test"),
            pytest.raises(DeviceError, match="this client is running"),
        ):
            move_client(home, tmp_path / "moved", PASSPHRASE)
    assert (tmp_path / "there").read_text() == "something else"
    assert not (tmp_path / "moved").exists()
    (home / "trainer.lock").unlink()
    assert tree_of(home) == before


def test_nothing_is_half_imported(home: Path, tmp_path: Path) -> None:
    move_client(home, tmp_path / "moved", PASSPHRASE)
    whole = (tmp_path / "moved").read_bytes()
    damaged = tmp_path / "damaged"
    for content in (whole[:-1], whole[:40], b"", whole[:-9] + bytes(9), bytes(100)):
        damaged.write_bytes(content)
        with pytest.raises(ArchiveError):
            import_client(damaged, tmp_path / "new", "a", PASSPHRASE)
    with pytest.raises(ArchiveError, match="the passphrase is wrong"):
        import_client(tmp_path / "moved", tmp_path / "new", "a", "incorrect horse")
    assert {path.name for path in tmp_path.iterdir()} == {
        *("old", "moved", "damaged", "kitchen.key", "server.pem")
    }
    before = tree_of(home)
    with pytest.raises(DeviceError, match="is not empty; import under another --name"):
        import_client(tmp_path / "moved", home, "a", PASSPHRASE)
    assert tree_of(home) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({SETTINGS_FILE: b"{}"}, "this file does not contain a client"),
        ({SETTINGS_FILE: None}, "this file does not contain a client"),
        ({"client.key": None}, "this file does not contain a client"),
        ({"client.key": b"no key"}, "not an OpenSSH private key"),
        ({MOVED_FILE: b"{}"}, "this file does not contain a client"),
        ({"other key": b""}, "the key in this file belongs to another client"),
        ({"key outside": b""}, "this file does not contain a client"),
    ],
)
def test_a_file_without_a_sound_client_is_refused(
    changes: dict[str, bytes | None], message: str, home: Path, tmp_path: Path
) -> None:
    """The file is made by someone who knows the passphrase, so only its content can be wrong."""
    settings = ClientSettings.read(home)
    if "other key" in changes:
        settings = settings.model_copy(update={"client_index": settings.client_index ^ 1})
    inside: dict[str, Any] = {"key": Path("client.key"), "certificates": None}
    if "key outside" in changes:
        inside["key"] = tmp_path / "kitchen.key"
    content: dict[str, bytes | None] = {
        SETTINGS_FILE: settings.model_copy(update=inside).model_dump_json().encode(),
        "client.key": (tmp_path / "kitchen.key").read_bytes(),
    }
    content |= {path: value for path, value in changes.items() if " " not in path}
    files = [ArchivedFile(path, value) for path, value in content.items() if value is not None]
    write_archive(tmp_path / "forged", files, PASSPHRASE)
    with pytest.raises(DeviceError, match=message):
        import_client(tmp_path / "forged", tmp_path / "new", "a", PASSPHRASE)
    assert not list(tmp_path.glob("new*"))


def run_command(*arguments: str, typed: str = "") -> Any:
    return CliRunner().invoke(client_app, list(arguments), input=typed)


def test_the_commands_move_and_import(home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "passphrase"
    secret.write_text(PASSPHRASE + "\nsecond line\n")
    file, new = str(tmp_path / "moved"), tmp_path / "new"
    typed = f"{PASSPHRASE}\n{PASSPHRASE}\n"
    shown = run_command("move", file, "--home", str(home), "--copy", typed=typed)
    assert shown.exit_code == 0, shown.output
    assert "will not start here again" not in shown.output
    (tmp_path / "moved").unlink()
    shown = run_command("move", file, "--home", str(home), "--passphrase-file", str(secret))
    assert "will not start here again" in shown.output
    shown = run_command(
        *("move", "--here", file, "--home", str(new), "--name", "b"),
        *("--passphrase-file", str(secret)),
    )
    assert shown.exit_code == 0, shown.output
    assert f"client up --superlink 127.0.0.1:1 --name b --home {new} --key {new}/client.key" in (
        shown.output
    )
    missing = str(tmp_path / "none")
    shown = run_command("move", "--here", file, "--home", str(new), "--passphrase-file", missing)
    assert isinstance(shown.exception, ConfigError)


@pytest.mark.parametrize(
    ("what", "run", "left"),
    [
        (
            Forgotten.RUN,
            "01",
            CARRIED.keys() - {path for path in CARRIED if path.startswith(f"runs/{RUN}")}
            | {f"runs/{RUN}/answered.json"},
        ),
        (
            Forgotten.PRIVATE,
            "",
            {
                path
                for path in CARRIED
                if "clients" not in path
                and not path.endswith(("examples.jsonl", "validation.json"))
            },
        ),
        (
            Forgotten.ALL,
            "",
            {path for path in CARRIED if path.endswith("answered.json")}
            | {"answers.jsonl", "scalars.json", "scenarios/operator.pem"},
        ),
    ],
)
def test_what_is_forgotten_is_gone_and_limits_remain(
    what: Forgotten, run: str, left: set[str], home: Path
) -> None:
    for path in LEFT:
        (home / path).unlink()
    files = find_files(home, what, run)
    assert {file.path for file in files} == CARRIED.keys() - left
    assert sum(file.bytes for file in files) == sum(len(CARRIED[file.path]) for file in files)
    assert tree_of(home).keys() == CARRIED.keys() | {SETTINGS_FILE}
    forget(home, files)
    found = tree_of(home)
    assert {path for path in found if not path.endswith(".lock")} == left | {SETTINGS_FILE}
    assert all(found[path] == CARRIED[path] for path in left)
    assert not list(home.rglob("personal.ledger")) or what is Forgotten.RUN
    forget(home, files)


def test_the_command_forget_asks_first_and_says_what_remains(home: Path) -> None:
    (home / "answers.jsonl").unlink()
    options = ("forget", "--home", str(home), "--private")
    before = tree_of(home)
    shown = run_command(*options, typed="n\n")
    assert shown.exit_code == 1
    assert "to be deleted: examples.jsonl, 3 bytes" in shown.output
    assert tree_of(home) == before
    with exclusive_lock(home / "up.lock", "test"):
        shown = run_command(*options, "--yes")
        assert isinstance(shown.exception, DeviceError)
    shown = run_command(*options, "--yes")
    assert shown.exit_code == 0, shown.output
    assert "scalars.json: 2 bytes" in shown.output
    assert "personal.ledger" not in shown.output.partition("What remains")[2].replace("lock", "")
    assert "there is no such data to delete" not in shown.output
    for wrong in ((), ("--private", "--all"), ("--run", RUN, "--all")):
        shown = run_command("forget", "--home", str(home), *wrong)
        assert isinstance(shown.exception, ConfigError)
    shown = run_command("forget", "--home", str(home), "--run", "77")
    assert isinstance(shown.exception, TrainerError)


def test_what_has_left_the_device_is_said(tmp_path: Path) -> None:
    instruction = instruction_with()
    report = report_to(instruction, 7)
    AnswerLog(tmp_path).add(instruction.encode(), report.encode(), False, 20)
    *_, last = describe_rest(tmp_path)
    assert f"{report.gradients.size} scalars" in last
    assert "they remain with their receivers and in the global model" in last
