"""A live client in a run that splits by text divides its own file like a simulation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import train_task
from data_rows import write_jsonl
from federations import Settings, config_of, loaded
from helpers import instruction_with

from samara.client.limits.device_settings import with_device_settings
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.protocol.client import Client, Guard, Participation
from samara.client.protocol.joined_runs import latest_data_settings
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.protocol.session import Session
from samara.client.training.client_data import ClientData
from samara.client.training.own_examples import OwnExamples
from samara.shared.errors import DataError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.growing import split_of
from samara.shared.tasks.messages import writers

USERS = ("ann", "bob", "cy")


def rows_of(user: str) -> list[dict[str, Any]]:
    """Rows of one user's own texts, and of texts that all users have."""
    common = [f"the film was {'good' if n % 2 else 'bad'} " + "very " * (n // 2) for n in range(30)]
    own = [f"the meal was good {user} " + "so " * n for n in range(10)]
    return [{"text": text, "label": n % 2, "user": user} for n, text in enumerate([*common, *own])]


@pytest.fixture
def run(settings: Settings, tmp_path: Path) -> RunConfig:
    everything = [row for user in USERS for row in rows_of(user)]
    data = write_jsonl(tmp_path / "all.jsonl", everything)
    by_text = {"data.split": "text", "data.partition": "user", "data.path": data}
    return config_of(settings | by_text, seed=7)


def resident(run: RunConfig, path: str, folder: Path, index: int, **own: Any) -> ResidentTrainer:
    """A live client whose owner has set no split."""
    flat = run.flat() | {"data.path": path, "data.clients": 1, "data.split": "random"}
    return ResidentTrainer.load(
        RunConfig.of(flat | {"data.seed": 0} | own, "device"), index, folder
    )


def examples_of(data: ClientData) -> dict[str, list[tuple[str, int]]]:
    return {s.name: [(e.text, e.label) for e in data.in_split(s)] for s in Split}


def report_of(client: Client, run: RunConfig, loaded_run: Any) -> Report:
    layout = loaded_run.layout
    run_id = run_id_of(run, layout, loaded_run.model_id)
    start = Session.begin(LedgerHeader(0, run_id, layout.hash), layout).digest
    instruction = instruction_with(run_id=run_id, layout_hash=layout.hash, start_digest=start)
    return Report.decode(client.answer(train_task(instruction.encode())))


class _Memory:
    """Sessions of a simulated client."""

    def read_session(self, run_id: bytes) -> Session | None:
        return None

    def write_session(self, run_id: bytes, session: Session) -> None:
        pass


def test_live_clients_divide_their_files_as_a_simulation_divides_all(
    run: RunConfig, settings: Settings, tmp_path: Path
) -> None:
    simulated = loaded(run.flat())
    for index, user in enumerate(USERS):
        path = write_jsonl(tmp_path / f"{user}.jsonl", rows_of(user))
        trainer = resident(run, path, tmp_path / user, index)
        before = examples_of(trainer.data)
        client = trainer.client_for(json.dumps(run.flat()).encode())
        share = simulated.data.share_of(index, len(USERS))
        assert examples_of(trainer.data) == examples_of(share) != before
        runtime = simulated.runtime
        run_id = run_id_of(run, runtime.layout, runtime.model_id)
        part = Participation(run.terms, run_id, tmp_path, 0)
        theirs = Client(RuntimeLearner(runtime, share), _Memory(), Guard(), part)
        one, same = (
            report_of(client, run, trainer.runtime),
            report_of(theirs, run, simulated.runtime),
        )
        np.testing.assert_array_equal(one.gradients, same.gradients)


def test_each_run_has_its_own_split_and_what_is_taught_follows(
    run: RunConfig, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "ann.jsonl", rows_of("ann"))
    trainer = resident(run, path, tmp_path / "home", 0)
    at_first = examples_of(trainer.data)
    found = {}
    for name, changes in {
        "seven": {},
        "random": {"data.split": "random"},
        "eight": {"seed": 8, "data.seed": 8},
        "seven again": {},
    }.items():
        trainer.client_for(json.dumps(run.flat() | changes).encode())
        found[name] = examples_of(trainer.data)
    assert found["seven"] == found["seven again"] != found["eight"]
    assert found["random"] == at_first, "the owner's own settings count in other runs"
    task = load_task(run.task)
    OwnExamples(tmp_path / "home").learn([{"text": "A KIND  walk", "label": 1}], task)
    trainer.client_for(json.dumps(run.flat()).encode())
    [split] = [s for s, own in examples_of(trainer.data).items() if ("A KIND  walk", 1) in own]
    data = latest_data_settings(tmp_path / "home", trainer.config)
    [row] = OwnExamples(tmp_path / "home").read()[0][0].rows(task)
    assert split == "TEST"  # by hashlib, of "split\n7\na kind walk"
    assert (data.split, data.seed) in {("text", 7), ("text", 8), ("random", 0)}
    assert split_of(row, 7, "text") == "test"


def test_watched_data_follow_the_run(run: RunConfig, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "ann.jsonl", rows_of("ann"))
    trainer = resident(run, path, tmp_path / "home", 0, **{"data.watch": True})
    trainer.client_for(json.dumps(run.flat()).encode())
    share = loaded(run.flat()).data.share_of(0, len(USERS))
    found = {s: set(own) for s, own in examples_of(trainer.data).items()}
    assert found == {s: set(own) for s, own in examples_of(share).items()}


def test_data_that_are_gone_stay_as_they_were_and_the_run_is_refused(
    run: RunConfig, tmp_path: Path
) -> None:
    path = Path(write_jsonl(tmp_path / "ann.jsonl", rows_of("ann")))
    trainer = resident(run, str(path), tmp_path / "home", 0)
    before = examples_of(trainer.data)
    path.unlink()
    with pytest.raises(DataError, match="no such file"):
        trainer.client_for(json.dumps(run.flat()).encode())
    assert examples_of(trainer.data) == before


def test_generated_messages_stay_those_of_their_writer() -> None:
    """A generated text already has a split, and the device's seed decides the writers."""
    assert len({writer.user for writer in writers(2, 3)}) == 2
    server = RunConfig.of({"data.split": "text", "seed": 7}, "run")
    device = RunConfig.of({"data.seed": 4}, "device")
    data = with_device_settings(server, device).data
    assert (data.split, data.seed) == ("random", 4)
