"""`samara client status --report` writes technical facts, and nothing private."""

import json
import secrets
from pathlib import Path

import pytest
from federations import Settings
from residents import device_settings
from typer.testing import CliRunner

from samara.devices.live.client_folder import MESSAGES_FILE
from samara.devices.live.commands import app
from samara.devices.live.keys import create_key
from samara.devices.live.known_messages import HIDDEN, hide_insertions
from samara.devices.live.pause_log import PauseLog
from samara.devices.live.report import write_report
from samara.shared.errors import DeviceError

STAMP = "2026-11-23 10:00:00,123 samara.client: "


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (STAMP + "client 7 refuses: 91 °C", STAMP + f"client 7 refuses: {HIDDEN}"),
        ("kitchen: trainer ready after 3.1 s, 300 MiB, client 77",
         f"{HIDDEN}: trainer ready after 3.1 s, 300 MiB, client 77"),
        ("dear diary, nobody knows", "(24 characters)"),
        (STAMP + "dear diary", STAMP + "(10 characters)"),
        (STAMP + "client my diary refuses: it", STAMP + "(27 characters)"),
        ("", "(0 characters)"),
    ],
)  # fmt: skip
def test_of_a_message_the_codes_own_words_and_numbers_are_left(line: str, shown: str) -> None:
    assert hide_insertions(line) == shown


def test_a_message_in_a_message_is_shown_without_what_is_in_it() -> None:
    end = "does not know my.setting; install the server's version"
    inner = f"run config: this version of Samara {end}"
    shown = hide_insertions(f"{STAMP}client 7 refuses: {inner}")
    assert shown == STAMP + "client 7 refuses: " + inner.replace("my.setting", HIDDEN)
    deep = "client 7 refuses: " * 50 + "secret"
    assert "secret" not in hide_insertions(STAMP + deep)


@pytest.fixture
def kitchen(settings: Settings, tmp_path: Path) -> Path:
    """A client whose files all contain something private."""
    folder = tmp_path / "kitchen"
    folder.mkdir(mode=0o700)
    mine = device_settings(settings, 7, folder)
    create_key(folder / "own.key")
    private = {"name": "privatename", "key": folder / "own.key"}
    mine.model_copy(update=private).write()
    return folder


def test_nothing_of_the_owner_is_in_the_file(kitchen: Path, settings: Settings) -> None:
    data = Path(str(settings["data.path"]))
    examples = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    texts, labels = [e["text"] for e in examples], [str(e["label"]) for e in examples]
    secret = secrets.token_hex(16)
    (kitchen / "executor.secret").write_text(secret)
    ledger = kitchen / "runs" / "ab" / "clients" / "7" / "personal.ledger"
    ledger.parent.mkdir(parents=True)
    ledger.write_text(f"private {secret}")
    (kitchen / "examples.jsonl").write_text(json.dumps({"text": texts[0], "label": labels[0]}))
    PauseLog(kitchen).note(f"over the limit of {secret}")
    quoting = [f"{data}:3: label {label!r} is none of {labels}" for label in labels[:5]]
    pairs = zip(quoting, texts, strict=False)
    lines = [STAMP + f"client 7 refuses: {quote}: {text}" for quote, text in pairs]
    lines += texts[:5] + quoting + [secret, str(kitchen), STAMP + "trainer ready " + secret]
    (kitchen / MESSAGES_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = kitchen.parent / "report.json"
    asked = CliRunner().invoke(
        app, ["status", "--report", "--name", "privatename", f"--home={kitchen}", f"--out={out}"]
    )
    assert asked.exit_code == 0, asked.output
    written = out.read_text(encoding="utf-8")
    key = (kitchen / "own.key").read_text().splitlines()[1]
    for forbidden in (secret, key, str(kitchen.parent), str(data), "privatename", *texts):
        assert forbidden not in written, forbidden
    shown = json.loads(written)["messages"]
    assert len(shown) == len(lines)
    assert all(f"'{label}'" not in line for label in labels for line in shown)
    assert shown[0] == STAMP + f"client 7 refuses: {HIDDEN}"


def test_the_facts_that_help_are_there(kitchen: Path) -> None:
    report = write_report(kitchen, kitchen.parent / "report.json")
    assert report == json.loads((kitchen.parent / "report.json").read_text(encoding="utf-8"))
    assert report["versions"]["samara-fl"]
    assert report["versions"]["torch"]
    assert report["versions"]["protocol"] == 1
    assert report["device"]["memory"]["free"] > 0
    assert report["device"]["disk"]["free"] > 0
    assert report["settings"]["client"] == 7
    assert report["settings"]["has a key"]
    assert report["status"]["trainer"] == "not running"
    assert report["status"]["examples"]["train"] > 0
    assert report["messages"] == []


def test_a_client_that_cannot_be_read_is_said_to_be_so(kitchen: Path, tmp_path: Path) -> None:
    settings = json.loads((kitchen / "client.json").read_text())
    settings["device_settings"]["data.path"] = str(tmp_path / "secret-place.jsonl")
    (kitchen / "client.json").write_text(json.dumps(settings))
    report = write_report(kitchen, tmp_path / "report.json")
    assert report["status"]["examples"] is None
    assert report["status"]["problem"]
    assert "secret-place" not in (tmp_path / "report.json").read_text()
    with pytest.raises(DeviceError, match="no client was started here"):
        write_report(tmp_path / "none", tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
