"""`samara client status` and the dashboard show a client's state, even while it runs."""

import os
import pty
import re
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from federations import Settings, config_of
from live import QUIET
from residents import Unhurried, device_settings, is_idle, resident
from rich.console import Console
from typer.testing import CliRunner

from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.checks.kept_checks import CHECKS_FILE, keep_checks
from samara.devices.live.client_folder import MESSAGES_FILE
from samara.devices.live.client_status import ClientStatus, StatusReader
from samara.devices.live.commands import app as client_app
from samara.devices.live.dashboard import last_lines
from samara.devices.live.pause_log import PauseLog
from samara.devices.live.status_display import SHARES_ENERGY, render_status
from samara.server.app import serve
from samara.shared.check_result import CheckResult, Outcome
from samara.shared.results.result import read_result


def shown(status: ClientStatus, *messages: str, width: int = 200) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render_status(status, messages))
    console.file.close()
    return console.export_text()


def test_the_status_of_a_running_client_is_that_of_its_run(
    settings: Settings, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    own = {"rounds": 3, "personal.rounds": 2, "personal.learning-rate": 0.1, "evaluate.every": 0}
    when = {"personal.when": "every 2 rounds", "out": str(tmp_path / "run")}
    config = config_of(settings | theirs | own | when, cohort__available=1)
    folder = short / "kitchen"
    mine = device_settings(settings, 7, folder)
    folder.mkdir(mode=0o700)
    mine.write()
    reader = StatusReader(folder)
    before = reader.read()
    assert (before.trainer, before.runs, before.pauses) == ("not running", (), ())
    assert "no run yet: a run begins when the server first asks" in shown(before)
    assert "answers" not in shown(before)
    assert before.examples is not None
    trainer, day = resident(settings, 7, folder), iter([100.0, 160.0, 300.0])
    joules = iter(range(10**9))
    pauses = PauseLog(folder, lambda: next(day))
    for reason in ("91 °C is over 85 °C", "", "this machine is not on mains power"):
        pauses.note(reason)
    with serve_trainer(lambda: trainer, mine.socket, lambda: "", lambda: float(next(joules))):
        out = serve(config, Unhurried([mine.socket], config, lambda: is_idle(folder)))
        status = reader.read()
        result = read_result(out)
        [run] = status.runs
        assert status.trainer.startswith("running, ")
        assert (run.round, run.digest) == (result["final_round"], result["final_digest"])
        assert run.rounds == config.federated_rounds == 3
        assert run.report is not None
        assert (run.report.round, run.refusal) == (3, None)
        assert run.passes > 0
        assert run.cost.rounds == 3
        assert run.cost.joules > 0
        [[name, done, since, *accuracies, waiting]] = status.personal
        assert (name, done, since, waiting) == (run.run, "4", "3", "")
        assert all("%" in accuracy for accuracy in accuracies)
        assert [pause.seconds for pause in status.pauses] == [60.0, None]
        text = shown(status, "a message of [bold]the trainer")
        expected = (
            "91 °C is over 85 °C",
            "no end recorded",
            run.digest[:16],
            "round 3, ",
            *accuracies,
        )
        for part in (*expected, "3 of 3", "a message of [bold]the trainer", "joules"):
            assert part in text
        narrow = shown(status, width=80)
        assert "…" not in narrow
        began = datetime.fromtimestamp(100, UTC)
        for time in (run.report.time, began.timestamp()):
            assert f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}" in narrow
        assert narrow.count(run.run) == 3 + ("model in use" in narrow)
        hot = replace(run.report, refused="hot")
        refused = replace(status, runs=(run._replace(refusal=hot),))
        assert f"run {run.run} refused last: round 3: hot" in shown(refused, width=80)
        monkeypatch.setenv("COLUMNS", "200")
        command = CliRunner().invoke(client_app, ["status", "--name", "a", "--home", str(folder)])
        assert command.exit_code == 0
        assert run.digest[:16] in command.output
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(mine.socket))
    assert mine.socket.exists()
    assert StatusReader(folder).read().trainer == "not running"
    session = folder / "runs" / run.run / "session"
    session.write_bytes(b"rubbish")
    [damaged] = reader.read().runs
    assert (damaged.round, damaged.digest, damaged.report) == (None, "", run.report)
    assert "- of 3" in shown(reader.read())
    assert SHARES_ENERGY not in shown(reader.read())
    mine.model_copy(update={"share_energy": True}).write()
    assert SHARES_ENERGY in shown(StatusReader(folder).read())
    audit = CliRunner().invoke(client_app, ["audit", "--home", str(folder)])
    assert SHARES_ENERGY in " ".join(audit.output.split())


def test_the_status_says_what_the_preflight_said(
    settings: Settings, short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = short / "kitchen"
    folder.mkdir(mode=0o700)
    device_settings(settings, 7, folder).write()
    assert StatusReader(folder).read().checks == ()
    checks = [
        CheckResult(Outcome.PASS, "disk", "room enough"),
        CheckResult(Outcome.FAIL, "clock", "an hour behind", "set it"),
    ]
    keep_checks(folder, checks)
    text = shown(StatusReader(folder).read())
    assert re.search(r"preflight of 20.* UTC: 1 of 2 checks passed\n", text)
    assert "fail  clock         an hour behind" in text
    assert "→ set it" in text
    assert "room enough" not in text
    (folder / CHECKS_FILE).write_text("{}")
    assert StatusReader(folder).read().checks == ()
    assert "the results of the last preflight are left out" in caplog.text


def test_a_pause_log_stays_short_and_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from samara.devices.live.pause_log import PAUSES_FILE, read_pauses

    assert read_pauses(tmp_path) == []
    log = PauseLog(tmp_path, lambda: 1.0)
    for _ in range(1200):
        log.note("91 °C is over 85 °C")
        log.note("")
    assert 300 < len(read_pauses(tmp_path)) < 1200
    with (tmp_path / PAUSES_FILE).open("a") as file:
        file.write('{"time": "soon"}\n[]\n{"time": 5, "reason": "ho')
    assert {pause.seconds for pause in read_pauses(tmp_path)} == {0.0}
    (tmp_path / "file").touch()
    PauseLog(tmp_path / "file").note("hot")
    assert "cannot be written" in caplog.text


DRAWING = """
import subprocess, sys
from pathlib import Path
from samara.devices.live import dashboard
dashboard._SECONDS_BETWEEN = 0.05
folder = Path(sys.argv[1])
with dashboard.dashboard(folder):
    print("from this process", flush=True)
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    sys.stdin.read()
print("after it")
"""


def test_a_dashboard_draws_the_status_and_keeps_messages_in_a_file(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "kitchen"
    mine = device_settings(settings, 7, folder)
    folder.mkdir()
    mine.write()
    terminal, inner = pty.openpty()
    environment = {**os.environ, **QUIET, "TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, "-c", DRAWING, str(folder)],
        stdin=subprocess.PIPE,
        stdout=inner,
        stderr=inner,
        env=environment,
    )
    os.close(inner)
    drawn = b""
    while b"not running" not in drawn or b"from a child" not in drawn:
        drawn += os.read(terminal, 4096)
    assert process.stdin is not None
    process.stdin.close()
    while b"after it" not in drawn:
        drawn += os.read(terminal, 4096)
    assert process.wait(60) == 0
    os.close(terminal)
    assert "messages are in" in drawn.decode()
    assert drawn.index(b"messages are in") < drawn.index(b"after it")
    assert last_lines(folder / MESSAGES_FILE, 5) == ["from this process", "from a child"]
    assert last_lines(folder / MESSAGES_FILE, 1) == ["from a child"]
    assert last_lines(folder / "none", 1) == []
    (folder / "coloured").write_bytes(b"\x1b[93mWARNING \x1b[0m: \x1b[2Jslow\x07\n\xff")
    assert last_lines(folder / "coloured", 2) == ["WARNING : slow", "\N{REPLACEMENT CHARACTER}"]
    assert (folder / MESSAGES_FILE).stat().st_mode & 0o777 == 0o600
