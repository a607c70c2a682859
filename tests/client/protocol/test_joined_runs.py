"""A client's stored runs, whose models can be used without a server."""

import json
import os
from pathlib import Path

import pytest
from helpers import layout_of

from samara.client.protocol.joined_runs import RUN_FILE, JoinedRuns
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.shared.errors import TrainerError
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.settings.config import RunConfig

LAYOUT, MODEL = layout_of(6), bytes(range(32))


def joined(folder: Path, seed: int = 0) -> bytes:
    """The id of a stored run that also has a session."""
    run_id = JoinedRuns(folder).write(RunConfig.of({"seed": seed}, "test"), LAYOUT, MODEL)
    session = Session.begin(LedgerHeader(0, run_id, LAYOUT.hash), LAYOUT)
    SessionFolder(folder).write_session(run_id, session)
    return run_id


def test_a_run_is_found_by_the_beginning_of_its_id_or_as_the_latest(tmp_path: Path) -> None:
    first, second = (joined(tmp_path, seed) for seed in (1, 2))
    sessions = SessionFolder(tmp_path)
    os.utime(sessions.folder_of(first) / "session", ns=(2, 2))
    os.utime(sessions.folder_of(second) / "session", ns=(1, 1))
    runs = JoinedRuns(tmp_path)
    assert runs.find().run_id == first
    found = runs.find(second.hex()[:6])
    assert (found.run_id, found.config.seed) == (second, 2)
    assert (found.layout.hash, found.model_id) == (LAYOUT.hash, MODEL)
    with pytest.raises(TrainerError, match="no run whose id begins with 'zz'"):
        runs.find("zz")
    with pytest.raises(TrainerError, match="no run yet"):
        JoinedRuns(tmp_path / "other").find()


def test_a_kept_run_is_not_written_again(tmp_path: Path) -> None:
    run_id = joined(tmp_path)
    file = SessionFolder(tmp_path).folder_of(run_id) / RUN_FILE
    before = file.stat()
    assert joined(tmp_path) == run_id
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["settings"].update(seed=5), "belongs to another run"),
        (lambda content: content.update(model_id="00" * 32), "belongs to another run"),
        (lambda content: content.update(layout="{}"), "cannot be read"),
        (lambda content: content.pop("settings"), "cannot be read"),
        (lambda content: content["settings"].update(unknown=5), "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: object, message: str) -> None:
    run_id = joined(tmp_path)
    file = SessionFolder(tmp_path).folder_of(run_id) / RUN_FILE
    content = json.loads(file.read_text())
    change(content)  # type: ignore[operator]
    file.write_text(json.dumps(content))
    with pytest.raises(TrainerError, match=message):
        JoinedRuns(tmp_path).read(run_id)
    file.unlink()
    with pytest.raises(TrainerError, match="there is no such file"):
        JoinedRuns(tmp_path).find()
