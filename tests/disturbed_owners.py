"""A live run with every disturbance that owners of devices may meet.

Real processes run over TLS on this machine: `samara server up` and three `samara client up` with
keys. During the rounds, every owner asks the personal model again and again. Private rounds are
taken every five rounds. After round 5, questions of a new kind are appended to one owner's file.
After round 7, the server gets `kill -9` and is started again. After round 10, one client is
stopped. `samara client move` moves it to another home with another name, and its old home and key
are deleted. The private state must stay the same bit for bit.

At the end, every acknowledged round must be in the ledger, and every client must be at a state of
the ledger. The private rounds of every client are then repeated in this process, from the ledger's
states and the same examples. States, and accuracy before and after, must be equal.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accuracy.rows import Row
from benchmarks.faults.live_run import ROOT, LiveRun
from benchmarks.faults.ports import free_address
from samara.client.limits.device_settings import with_device_settings
from samara.client.personal.personalizations import Personalization, read_personalizations
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.protocol.joined_runs import JoinedRuns
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.questions.client_model import ClientModel
from samara.devices.live.client_folder import SOCKET
from samara.devices.live.owner.ask import ask
from samara.devices.live.settings import ClientSettings
from samara.server.store import replay_run
from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import digest
from samara.shared.results.result import RunResult
from samara.shared.settings.runs import client_folder
from samara.shared.terms.columns import GLOBAL, PERSONALIZED

NAMES = ("kitchen", "garden", "attic")
GROWING, MOVING = NAMES[0], NAMES[2]
MOVED = "cellar"
"""Name of the third client on its new device."""
APPENDED_AFTER, KILLED_AFTER, MOVED_AFTER = 5, 7, 10
NEW_KIND = 5
"""The label of the questions that ask for a number."""
QUESTION = "How many people live in Chile ?"
_SECONDS_BETWEEN = 0.5


class Scene(NamedTuple):
    """Model, data and sizes of a run.

    Attributes:
        model: folder of the base model.
        data: folder with train.jsonl and test.jsonl of the task trec6.
        rounds: rounds of the federation.
        examples: questions that each owner has.
        added: questions of a new kind that are appended.
        seed: seed of the draw and of the run.
        settings: further settings of the run, dotted keys.
    """

    model: Path
    data: Path
    rounds: int = 15
    examples: int = 100
    added: int = 60
    seed: int = 0
    settings: tuple[tuple[str, Any], ...] = ()


class Asking(threading.Thread):
    """An owner who asks the personal model again and again, in a thread.

    Args:
        home: folder of the client.

    Attributes:
        answers: seconds of each answer, and the sentence about the model that gave it.
        failures: errors.
    """

    def __init__(self, home: Path) -> None:
        super().__init__(name=f"asking {home.name}", daemon=True)
        self.home, self._end = home, threading.Event()
        self.answers: list[tuple[float, str]] = []
        self.failures: list[str] = []

    def run(self) -> None:
        """Ask until `stop`."""
        while not self._end.wait(_SECONDS_BETWEEN):
            begun = time.monotonic()
            try:
                about = ask(self.home / SOCKET, [QUESTION], lambda reply: None)
            except SamaraError as error:
                self.failures.append(str(error))
            else:
                self.answers.append((time.monotonic() - begun, about))

    def stop(self) -> None:
        """Stop after the present question."""
        self._end.set()
        self.join()


def draw(data: Path, seed: int, clients: int, examples: int, added: int) -> dict[str, list[Row]]:
    """Return the questions of each client, the questions that are appended, and the test questions.

    Args:
        data: folder with train.jsonl and test.jsonl, each row a text and a label.
        seed: seed of the draw.
        clients: number of clients.
        examples: number of questions that each has.
        added: number of appended questions, which are of a new kind.
    """
    rows = {name: _read(data / f"{name}.jsonl") for name in ("train", "test")}
    random = np.random.default_rng(seed)
    shuffled = [rows["train"][index] for index in random.permutation(len(rows["train"]))]
    known = [row for row in shuffled if row["label"] != NEW_KIND]
    new = [row for row in shuffled if row["label"] == NEW_KIND]
    tests = [row for row in rows["test"] if row["label"] == NEW_KIND]
    others = [row for row in rows["test"] if row["label"] != NEW_KIND]
    shares = {
        str(client): known[client * examples : (client + 1) * examples] for client in range(clients)
    }
    return shares | {"added": new[:added], "test": tests + others[: len(tests)]}


def accuracies(confusion: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the accuracies on examples of the new kind and of the others.

    Args:
        confusion: counts by true and predicted label.
    """
    counts = np.array(confusion)
    right = np.diag(counts)
    known = np.arange(len(counts)) != NEW_KIND
    return {
        "new": float(right[NEW_KIND] / counts[NEW_KIND].sum()),
        "known": float(right[known].sum() / counts[known].sum()),
    }


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def play(scene: Scene, folder: Path) -> dict[str, Any]:
    """Make the run, disturb it, check its end, and return figures.

    Args:
        scene: model, data and sizes.
        folder: empty folder for all files; its path must be short, because sockets lie in it.

    Raises: AssertionError: if something is lost or differs.
    """
    rows = draw(scene.data, scene.seed, len(NAMES), scene.examples, scene.added)
    for number, name in enumerate(NAMES):
        data = folder / f"data-{name}"
        data.mkdir(parents=True)
        _append(data / "train.jsonl", rows[str(number)])
        _append(data / "test.jsonl", rows["test"])
    settings = {
        "rounds": scene.rounds,
        "seed": scene.seed,
        "evaluate.every": 0,
        "cohort.available": len(NAMES),
        "cohort.minimum": len(NAMES),  # rounds wait for whoever is away
        "cohort.timeout": 900.0,
        "personal.when": "every 5 rounds",
        **dict(scene.settings),
    }
    address = free_address()
    with LiveRun(folder, settings, NAMES, address) as live:
        live.serve()
        for name in NAMES:
            live.start_client(name, None, *_options(scene, folder / f"data-{name}"))
        askers = {name: Asking(live.home(name)) for name in NAMES}
        live.wait_for_round(1, 900)
        for asker in askers.values():
            asker.start()
        live.wait_for_round(APPENDED_AFTER)
        _append(folder / f"data-{GROWING}" / "train.jsonl", rows["added"])
        live.wait_for_round(KILLED_AFTER)
        away = _kill_server(live)
        live.wait_for_round(MOVED_AFTER)
        askers[MOVING].stop()
        moved = _move(live, folder, scene)
        live.wait_for_report(MOVING, 900)
        askers[MOVED] = Asking(live.home(MOVED))
        askers[MOVED].start()
        live.wait_for_round(scene.rounds, 1800)
        for asker in askers.values():  # a client ends with its run
            asker.stop()
        live.wait(lambda: live.server is None or live.server.poll() is not None, "the end", 1800)
        assert live.server is not None
        assert live.server.returncode == 0, live.said()[-2000:]
        rounds = live.check()
        for name in live.names:
            assert live.clients[name].wait(60) == 0, f"{name}: {live.said(name)}"
    result = RunResult.read(live.run)
    repeated = {
        name: repeat_private_rounds(live.run, live.home(name), rows, folder / f"again-{name}")
        for name in live.names
    }
    owner = result.evaluations[-1].columns[PERSONALIZED].clients[live.devices[GROWING]]
    common = result.evaluations[-1].columns[GLOBAL].clients[live.devices[GROWING]]
    return {
        "model": scene.model.parent.name if scene.model.name == "model" else scene.model.name,
        "seed": scene.seed,
        "rounds": rounds,
        "digest": result.final_digest,
        "seconds without a server": round(away, 1),
        "moved": moved,
        "answers": {name: _describe(asker) for name, asker in askers.items()},
        "private states repeated": repeated,
        "examples": [
            one.clients[live.devices[GROWING]].examples
            for one in result.rounds
            if live.devices[GROWING] in one.clients
        ],
        "personal": accuracies(owner.confusion),
        "global": accuracies(common.confusion),
    }


def repeat_private_rounds(
    run: Path, home: Path, rows: dict[str, list[dict[str, Any]]], place: Path
) -> int:
    """Repeat the private rounds of a client, and return the number of repeated personalizations.

    Args:
        run: folder of the run on the server, whose ledger gives the states.
        home: folder of the client.
        rows: rows of `draw`; the added rows are used from the time at which the client had them.
        place: folder for the repetition, which does not exist yet.

    Raises:
        AssertionError: if a private state, or an accuracy before or after, differs.
    """
    settings, joined = ClientSettings.read(home), JoinedRuns(home).find()
    data, again = place / "data", place / "home"
    data.mkdir(parents=True)
    again.mkdir()
    for schedule in home.glob("schedule-*.json"):  # how this device groups its passes
        shutil.copy(schedule, again)
    _append(
        data / "train.jsonl", rows[str(NAMES.index(MOVING if home.name == MOVED else home.name))]
    )
    _append(data / "test.jsonl", rows["test"])
    own = settings.config.with_values({"data.path": str(data)})
    trainer = ResidentTrainer.load(own, settings.client_index, again)
    trainer.client_under(joined.config)
    # as the client had done before its data grew: the model reads new ones alone
    for split in Split:
        trainer.data.tokenized(split)
    out = again / "runs" / joined.run_id.hex()
    config = with_device_settings(joined.config, own).with_values({"out": str(out)})
    personalizer = Personalizer(
        RuntimeLearner(trainer.runtime, trainer.data),
        config.terms,
        joined.run_id,
        client_folder(config, joined.run_id, settings.client_index),
        config.ledger.snapshot_every,
    )
    states = {step.round: step.state for step in replay_run(run)}
    taken = _personalizations(home)
    for one in taken:
        if one.data != trainer.data.hash_of(Split.TRAIN):
            _append(data / "train.jsonl", rows["added"])
            trainer.refresh_data()
        state, known = states[one.global_round], bytes.fromhex(one.global_digest)
        private = personalizer.private_state(one.global_round, state, known)
        found = digest(joined.layout.hash, private).hex()
        assert found == one.digest, f"{home.name}: round {one.global_round} gives another p"
    assert _personalizations(again) == taken, f"{home.name}: another accuracy"
    return len(taken)


def _options(scene: Scene, data: Path) -> list[str]:
    given = "threads=1", "data.watch=true", f"data.seed={scene.seed}"
    options = ["--model", str(scene.model), "--data", str(data), "--task", "trec6"]
    return [*options, *(part for one in given for part in ("--set", one))]


def _kill_server(live: LiveRun) -> float:
    """Kill the server, start it again, and return the seconds until the next round's end."""
    assert live.server is not None
    os.kill(live.server.pid, signal.SIGKILL)
    live.server.wait()
    begun, last = time.monotonic(), live.last()
    live.start_server()
    live.wait_for_round(last + 1, 900)
    return time.monotonic() - begun


def _move(live: LiveRun, folder: Path, scene: Scene) -> dict[str, Any]:
    """Move a client to another home, where it continues, and delete the old one; return figures."""
    old, new, file = live.home(MOVING), live.home(MOVED), folder / "moved"
    passphrase = folder / "passphrase"
    passphrase.write_text("correct horse battery\n")
    live.wait(lambda: _personalizations(old), "private rounds of the client that moves")
    client = live.clients.pop(MOVING)
    client.terminate()
    assert client.wait(120) == 0
    before, begun = private_digest(old), time.monotonic()
    secret = ["--passphrase-file", str(passphrase)]
    _samara("move", str(file), "--home", str(old), *secret)
    shutil.rmtree(old)
    live.key(MOVING).unlink()
    _samara("move", "--here", str(file), "--home", str(new), "--name", MOVED, *secret)
    assert private_digest(new) == before, "the private state is another one"
    live.names[live.names.index(MOVING)] = MOVED
    key = ["--key", str(new / "client.key")]
    live.start_client(MOVED, None, *_options(scene, folder / f"data-{MOVING}"), *key)
    seconds = round(time.monotonic() - begun, 1)
    return {"private state": before.hex()[:16], "bytes": file.stat().st_size, "seconds": seconds}


def private_digest(home: Path) -> bytes:
    """Return the digest of the private state of a client that has one, 32 bytes."""
    settings = ClientSettings.read(home)
    model = ClientModel.read(home, settings.config, settings.client_index)
    assert model.private is not None
    return digest(model.run.layout.hash, model.private)


def _samara(*arguments: str) -> None:
    command = [sys.executable, "-m", "samara", "client", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _personalizations(home: Path) -> list[Personalization]:
    return [one for own in home.glob("runs/*/clients/*") for one in read_personalizations(own)]


def _describe(asker: Asking) -> dict[str, Any]:
    seconds = [one for one, _ in asker.answers]
    assert seconds, f"{asker.home.name} never answered: {asker.failures[:3]}"
    return {
        "answers": len(seconds),
        "by different models": len({about for _, about in asker.answers}),
        "errors": asker.failures,
        "median ms": round(1000 * float(np.median(seconds))),
        "95 % ms": round(1000 * float(np.quantile(seconds, 0.95))),
    }


def _append(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
