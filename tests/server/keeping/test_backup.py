"""A run continues from a backup that was made while it was served, and so do its clients."""

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from federations import Settings, config_of, grid_of, ledger_of
from flwr.app import Message, MessageType
from helpers import tree_of
from typer.testing import CliRunner

from samara.server.app import serve
from samara.server.commands import app
from samara.server.keeping.backup import Backup, back_up
from samara.server.keeping.check import examine
from samara.server.keeping.restoring import restore
from samara.server.live.live_config import SCENARIO_FILE
from samara.server.live.run_lock import MOVED_FILE, lock_run
from samara.server.restored_run import RESTORED_FILE
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.server.store import METRICS_FILE, replay_run
from samara.shared.check_result import CheckResult, Outcome
from samara.shared.errors import ArchiveError, ConfigError, LedgerError, SamaraError
from samara.shared.network.certificates import CERTIFICATES_FOLDER, make_certificates
from samara.shared.protocol.ledger.reading import read_ledger, segment_paths
from samara.shared.results.result import RESULT_FILE, read_result
from samara.shared.settings.blobs import publish_blobs
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import SETTINGS_FILE
from samara.shared.storage.blob_store import BlobStore
from samara.shared.storage.events import is_part, read_whole_events
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.simulate import simulate


def serve_until(
    config: RunConfig, grid: InProcessGrid, messages: int, act: Callable[[int], object]
) -> None:
    """Serve a run whose process ends at a train message; call `act` before each train message."""
    plain, trained = grid._deliver, []

    def deliver(message: Message) -> Message:
        if message.metadata.message_type == MessageType.TRAIN:
            trained.append(message)
            if len(trained) == messages:
                raise KeyboardInterrupt
            act(len(trained))
        return plain(message)

    grid._deliver = deliver  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            serve(config, grid)
    finally:
        grid._deliver = plain  # type: ignore[method-assign]


@pytest.fixture
def begun(settings: Settings, tmp_path: Path) -> tuple[RunConfig, InProcessGrid, Path]:
    """A run of five rounds killed in its last round, its clients, and a backup of round 1."""
    config = config_of(settings, rounds=5, ledger__snapshot_every=2, cohort__empty_rounds=3)
    grid, file = grid_of(config), tmp_path / "backup"

    def take(message: int) -> None:
        if message == 5:
            assert back_up(Path(config.out), file).rounds == {".": 1}

    serve_until(config, grid, 14, take)
    return config, grid, file


def findings(run: Path, outcome: Outcome) -> list[str]:
    return [f"{c.subject}: {c.finding}" for c in examine(run) if c.outcome is outcome]


def test_clients_go_on_elsewhere_to_the_digest_of_the_original(
    begun: tuple[RunConfig, InProcessGrid, Path],
    settings: Settings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The clients have later rounds of the original, so they restart from the backup."""
    config, grid, file = begun
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    out = tmp_path / "elsewhere"
    assert restore(file, out).round == 1
    assert not findings(out, Outcome.FAIL)
    serve(config.with_values({"out": str(out)}), grid)
    whole = simulate(config.with_values({"out": str(tmp_path / "whole")}))
    assert ledger_of(out) == ledger_of(whole)
    result = read_result(out)
    assert result["final_digest"] == read_result(whole)["final_digest"]
    assert [event["round"] for event in result["rounds"]] == [1, 2, 3, 4, 5]
    assert all(event["refused"] == {} for event in result["rounds"])
    assert "this run was restored from a backup without that round" in caplog.text
    assert not findings(out, Outcome.FAIL)


def test_a_second_server_is_told_from_a_client_that_is_ahead(
    begun: tuple[RunConfig, InProcessGrid, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, grid, file = begun
    copy = tmp_path / "copy"
    restore(file, copy)
    (copy / RESTORED_FILE).unlink()  # as of a folder that was copied by hand
    with pytest.raises(SamaraError, match="3 rounds in a row had no usable report"):
        serve(config.with_values({"out": str(copy)}), grid)
    assert "another server continues this run, or this folder is an older copy" in caplog.text
    assert "restored from a backup without that round" not in caplog.text


def test_a_backup_of_any_moment_can_be_restored(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backups are made at every message, and between a round's record, event and snapshot."""
    monkeypatch.setattr("samara.shared.storage.events.PART_BYTES", 3_000)
    config = config_of(settings, rounds=4, ledger__snapshot_every=1, evaluate__every=1)
    grid, run = grid_of(config), Path(config.out)
    plain, taken = grid._deliver, dict[int, Backup]()

    def deliver(message: Message) -> Message:
        if (run / "layout.json").exists():
            taken[len(taken)] = back_up(run, tmp_path / str(len(taken)))
        return plain(message)

    grid._deliver = deliver  # type: ignore[method-assign]
    serve(config, grid)
    back_up(run, tmp_path / "end")
    rounds = [one.rounds["."] for one in taken.values()]
    assert rounds == sorted(rounds)
    assert set(rounds) == {0, 1, 2, 3, 4}
    for number, one in taken.items():
        out = tmp_path / f"out-{number}"
        restore(one.file, out)
        assert not findings(out, Outcome.FAIL), number
        events = read_whole_events(out / METRICS_FILE)
        recorded = [event["round"] for event in events if event["event"] == "round"]
        assert recorded == list(range(1, one.rounds["."] + 1))
    restore(tmp_path / "end", tmp_path / "out")
    left = {RESTORED_FILE: b"", "ledger/lock": b""}
    parts = {path.name for path in run.iterdir() if is_part(path)}
    assert "metrics.00001.jsonl.gz" in parts  # whose lines the copied file has
    assert (tree_of(tmp_path / "out") | left).keys() == (tree_of(run) | left).keys() - parts
    *_, last = replay_run(tmp_path / "out")
    assert last.round == 4


def test_a_run_that_moves_serves_in_one_place(
    begun: tuple[RunConfig, InProcessGrid, Path], settings: Settings, tmp_path: Path
) -> None:
    config, grid, _ = begun
    run = Path(config.out)
    with lock_run(run), pytest.raises(SamaraError, match="is serving this run"):
        back_up(run, tmp_path / "moved", moves=True)
    with pytest.raises(ArchiveError, match="cannot be written"):
        back_up(run, tmp_path / "none" / "moved", moves=True)
    assert not (run / MOVED_FILE).exists()
    back_up(run, tmp_path / "moved", moves=True)
    with pytest.raises(SamaraError, match=r"has moved on .* to .*/moved.*delete .*moved\.json"):
        back_up(run, tmp_path / "again")
    assert any("has moved on" in finding for finding in findings(run, Outcome.FAIL))
    refused = CliRunner().invoke(app, ["up", "--run", str(run)])
    assert isinstance(refused.exception, SamaraError)
    assert restore(tmp_path / "moved", tmp_path / "new").moved
    serve(config.with_values({"out": str(tmp_path / "new")}), grid)
    whole = simulate(config.with_values({"out": str(tmp_path / "whole")}))
    assert ledger_of(tmp_path / "new") == ledger_of(whole)


def test_files_that_clients_need_travel_along(
    readout: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = simulate(config_of(readout, rounds=1, out=str(tmp_path / "first")))
    config = config_of(readout, rounds=2, adapter__start=str(begun / "start.safetensors"))
    run = simulate(publish_blobs(config, BlobStore()))
    back_up(run, tmp_path / "file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another host"))
    assert any(
        "adapter.start: this machine lacks the file" in one for one in findings(run, Outcome.FAIL)
    )
    restore(tmp_path / "file", tmp_path / "out")
    assert not (tmp_path / "out" / "blobs").exists()
    assert "files: the file of adapter.start is on this machine" in findings(
        tmp_path / "out", Outcome.PASS
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a third"))
    assert set(back_up(run, tmp_path / "poorer").missing) == {"adapter.start"}


def private(settings: Settings, **changes: Any) -> RunConfig:
    own = {"privacy__mode": "central", "privacy__epsilon": 8.0, "privacy__clip": 1.0, "rounds": 6}
    own |= {"seed_policy": "shared", "aggregation__rule": "mean", "cohort__empty_rounds": 3}
    own |= {"evaluate__every": 0, "evaluate__test": False, "cohort__minimum": 2}
    return config_of(settings, **own | changes)


def test_no_privacy_is_spent_twice(settings: Settings, tmp_path: Path) -> None:
    """Rounds that the earlier server may have released stay empty and are charged."""
    config = private(settings)
    grid, run, file = grid_of(config), Path(config.out), tmp_path / "backup"
    serve_until(config, grid, 11, lambda n: n == 5 and back_up(run, file))  # in rounds 4 and 2
    before = read_releases(run / RELEASES_FILE)
    out, moved = tmp_path / "out", {"out": str(tmp_path / "out")}
    with pytest.raises(ConfigError, match="ends at round 1, and its server continued after that"):
        restore(file, out)
    with pytest.raises(ConfigError, match="its backup ends at round 1"):
        restore(file, out, reached=0)
    assert not list(tmp_path.glob("out*"))
    restore(file, out, reached=3)
    assert not findings(out, Outcome.FAIL)
    serve(config.with_values(moved), grid)
    rounds = read_result(out)["rounds"]
    assert [event["reports"] > 0 for event in rounds] == [True, *[False] * 4, True]
    assert "the round is not repeated" in rounds[1]["problem"]
    after = read_releases(out / RELEASES_FILE)
    assert "it cannot catch up" in rounds[4]["refused"]["0"]  # and then begins again
    assert [release.round for release in after] == [1, 2, 3, 4, 6]
    assert len({release.token for release in [*before, *after]}) == 3 + 4  # the first is the same
    assert rounds[-1]["epsilon"] < config.terms.privacy.epsilon  # type: ignore[union-attr]
    assert not findings(out, Outcome.FAIL)
    back_up(run, tmp_path / "moved", moves=True)
    with pytest.raises(ConfigError, match="--reached is only for a run with differential privacy"):
        restore(tmp_path / "moved", tmp_path / "third", reached=3)
    restore(tmp_path / "moved", tmp_path / "third")
    (tmp_path / "third" / RELEASES_FILE).unlink()
    [finding] = findings(tmp_path / "third", Outcome.FAIL)
    assert "privacy: round 1 is in the ledger but not in" in finding


def test_a_client_beyond_what_was_told_is_not_taken_back(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = private(settings)
    grid, run, file = grid_of(config), Path(config.out), tmp_path / "backup"
    serve_until(config, grid, 11, lambda n: n == 5 and back_up(run, file))
    restore(file, tmp_path / "out", reached=1)
    with pytest.raises(SamaraError, match="in a row had no usable report"):
        serve(config.with_values({"out": str(tmp_path / "out")}), grid)
    assert "round 1, the value of --reached in `samara server restore`" in caplog.text


def damage_segment(run: Path) -> None:
    path = list(segment_paths(run / "ledger").values())[-1]
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)


def tear_segment(run: Path) -> None:
    path = list(segment_paths(run / "ledger").values())[-1]
    path.write_bytes(path.read_bytes() + b"SMLR" + bytes(3))


def later_settings(run: Path) -> None:
    settings = json.loads((run / SETTINGS_FILE).read_text())
    (run / SETTINGS_FILE).write_text(json.dumps(settings | {"later.setting": 1}))


def lose_round(run: Path) -> None:
    *_, last = read_ledger(run / "ledger")
    path = list(segment_paths(run / "ledger").values())[-1]
    path.write_bytes(path.read_bytes()[: -last.size])


@pytest.mark.parametrize(
    ("damage", "outcome", "finding", "remedy"),
    [
        (damage_segment, Outcome.FAIL, "ledger: .*round 3", "restore the newest backup"),
        (tear_segment, Outcome.WARN, "ledger: .*dropped 7 bytes of round 4", "repairs it"),
        (
            later_settings,
            Outcome.FAIL,
            "settings: this version does not know later.setting",
            "update Samara",
        ),
        (lose_round, Outcome.FAIL, "events: .*rounds were lost", "restore the newest backup"),
        (
            lambda run: (run / "step_size.jsonl").unlink(),
            Outcome.FAIL,
            "events: step_size.jsonl lacks step 1",
            "restore the newest backup",
        ),
        (
            lambda run: (run / "layout.json").write_text("{}"),
            Outcome.FAIL,
            "ledger: .*layout.json",
            "restore the newest backup",
        ),
        (
            lambda run: (run / CERTIFICATES_FOLDER / "ca.pem").unlink(),
            Outcome.FAIL,
            "certificate: .*, with which clients verify the server, is missing",
            "copy ca.pem from the folder of any client",
        ),
        (
            lambda run: (run / CERTIFICATES_FOLDER / "ca.key").unlink(),
            Outcome.WARN,
            "certificate: .*ca.key is missing, so that no certificate can be renewed",
            "restore the file from a backup before",
        ),
        (
            lambda run: (run / CERTIFICATES_FOLDER / "server.key").unlink(),
            Outcome.FAIL,
            "certificate: .*server.key is missing",
            "keys rotate",
        ),
        (
            lambda run: (run / CERTIFICATES_FOLDER / "ca.key").chmod(0o644),
            Outcome.FAIL,
            "permissions: other users .* can read .*ca.key",
            "chmod 600",
        ),
        (lambda run: run.chmod(0o755), Outcome.WARN, "permissions: other users", "chmod 700"),
        (
            lambda run: (run / RESULT_FILE).write_text('{"final_round": 9}'),
            Outcome.FAIL,
            "result: .*does not belong to the ledger's last round, 3",
            "writes a new one",
        ),
    ],
)
def test_a_check_finds_what_is_wrong_and_changes_nothing(
    damage: Callable[[Path], object],
    outcome: Outcome,
    finding: str,
    remedy: str,
    finished: Path,
    tmp_path: Path,
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    damage(run)
    before = tree_of(run)
    found: list[CheckResult] = [check for check in examine(run) if check.outcome is outcome]
    [match] = [c for c in found if re.search(finding, f"{c.subject}: {c.finding}")]
    assert remedy in match.remedy
    assert tree_of(run) == before
    shown = CliRunner().invoke(app, ["check", str(run)])
    assert shown.exit_code == (outcome is Outcome.FAIL)
    assert remedy in shown.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model_folder: Any, data_file: Path) -> Path:
    """A finished run of three rounds with certificates."""
    settings = {
        "model.path": str(model_folder("causal")),
        "data.path": str(data_file),
        "data.clients": 2,
        "task": "sst2",
        "objective": "cross-entropy",
        "adapter.layers": "top:1",
        "personal.rounds": 0,
        "rounds": 3,
        "steps": 1,
        "queries": 2,
        "batch": 2,
        "threads": 1,
        "evaluate.every": 0,
        "out": str(tmp_path_factory.mktemp("finished") / "run"),
    }
    run = simulate(RunConfig.of(settings, "test"))
    make_certificates(run / CERTIFICATES_FOLDER, [])
    run.chmod(0o700)
    assert not findings(run, Outcome.FAIL)
    return run


def test_the_commands_say_what_they_did(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "backups").mkdir()
    taken = CliRunner().invoke(app, ["backup", str(run), str(tmp_path / "backups")])
    assert taken.exit_code == 0, taken.output
    file = tmp_path / "backups" / "run-round-3.backup"
    assert f"{file}: round 3" in taken.output
    assert "the backup contains 2 private keys or secrets and is not encrypted" in taken.output
    out = tmp_path / "out"
    made = CliRunner().invoke(app, ["restore", str(file), "--out", str(out)])
    assert "samara server up" not in made.output  # no server has served this run
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    again = CliRunner().invoke(app, ["restore", str(file), "--out", str(out)])
    assert "is not empty; restore into another folder" in str(again.exception)
    for message, arguments in {
        "exists; name a new file": ["backup", run, file],
        "lies in the run's folder": ["backup", run, run / "x"],
        "holds no run that has begun": ["backup", tmp_path, tmp_path / "x"],
        "was not written by `samara server backup`": ["restore", run / "layout.json", "--out", "x"],
        "does not exist; name the folder of a run": ["check", tmp_path / "none"],
    }.items():
        refused = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert message in str(refused.exception)
    assert not list(tmp_path.glob("*.new"))


def test_a_restored_run_shows_the_command_that_serves_it(finished: Path, tmp_path: Path) -> None:
    run, out = shutil.copytree(finished, tmp_path / "run"), tmp_path / "a run"
    (run / SCENARIO_FILE).write_text("rounds = 3\n")
    CliRunner().invoke(app, ["backup", str(run), str(tmp_path / "file")])
    made = CliRunner().invoke(app, ["restore", str(tmp_path / "file"), "--out", str(out)])
    command = f"samara server up --run '{out}' '{out / SCENARIO_FILE}'"
    assert command in made.output.replace("\n", " ")


def test_a_ledger_of_another_user_needs_no_backup(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise LedgerError("ledger: cannot be read") from PermissionError(13, "Permission denied")

    monkeypatch.setattr("samara.server.keeping.check.copy_ledger", closed)
    [check] = [check for check in examine(finished) if check.outcome is Outcome.FAIL]
    assert check.remedy == "run the command as the owner of the run's folder"


def test_a_damaged_ledger_is_not_backed_up(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    damage_segment(run)
    with pytest.raises(LedgerError, match="round 3"):
        back_up(run, tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
