"""Clients in separate processes mask their reports; the model equals that without masks."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from federations import Live, Settings, config_of
from known_noise import AT_START, add_known_noise
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import ROOT, LiveRun, Place
from benchmarks.faults.ports import free_address
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.settings import ClientSettings, resolve_device_settings
from samara.server.app import serve
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import RunResult

pytestmark = pytest.mark.slow

NAMES = ["attic", "cellar", "garden", "kitchen"]
LEAVES = "kitchen"
PRIVATE: Settings = {
    **ONE_SMALL_STEP,
    "rounds": 1,
    "seed-policy": "shared",
    "aggregation.rule": "mean",
    "method": "global",
    "cohort.minimum": 3,
    "privacy.mode": "distributed",
    "privacy.clip": 2.0,
    "privacy.noise-multiplier": 0.5,
    "privacy.honest-share": 0.7,
}


def masked_run(folder: Path, settings: Settings, clients: dict[str, list[str]]) -> LiveRun:
    """Serve a run with masks and known noise to its end, check its clients, and return the run."""
    (folder / "first").mkdir()
    (folder / "first" / "sitecustomize.py").write_text(AT_START)
    paths = map(str, (folder / "first", ROOT, ROOT / "tests"))
    place = Place(environment={"PYTHONPATH": os.pathsep.join(paths)})
    address = free_address()
    with LiveRun(folder, settings, [*clients], address) as live:
        live.serve()
        for name, options in clients.items():
            live.start_client(name, place, *options)
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server is not None
        assert live.server.returncode == 0, live.said()[-2000:]
        live.check()
    return live


def groups_of(folder: Path) -> list[list[bytes]]:
    """The encoded groups of every round, which contain the coefficients."""
    records = read_ledger(folder / "ledger")
    return [[group.encode() for group in record.delta.groups] for record in records]


def test_the_ledger_is_that_of_the_survivors_without_masks(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four clients leaves between its shares and its report: its privacy budget is spent."""
    folder = tmp_path_factory.mktemp("k")  # short: sockets lie in it
    model, data, task = (str(settings[key]) for key in ("model.path", "data.path", "task"))
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    asked = settings | theirs | PRIVATE
    options = ["--model", model, "--data", data, "--task", task, "--set", "threads=1"]
    clients = {name: list(options) for name in NAMES}
    clients[LEAVES] += ["--set", "data.epsilon-limit=0.001"]
    masks = asked | {"cohort.available": len(NAMES), "privacy.secure-aggregation": True}
    live = masked_run(folder, masks, clients)
    masked = RunResult.read(live.run)
    survivors = {name: index for name, index in live.devices.items() if name != LEAVES}
    assert [set(event.clients) for event in masked.rounds] == [set(survivors.values())]
    (event,) = masked.rounds
    assert event.reports == 3
    assert "data.epsilon-limit" in live.said(LEAVES)

    add_known_noise(monkeypatch)
    own = resolve_device_settings(model, data, task, "cpu", ["threads=1"])
    with ExitStack() as stack:
        sockets = []
        for name, index in survivors.items():
            socket, place = folder / f"{name}.sock", folder / f"plain-{name}"
            device = ClientSettings(
                name=name,
                folder=place,
                superlink="127.0.0.1:1",
                client_index=index,
                device_settings=own,
                insecure=True,
            )

            def load(device: ClientSettings = device) -> ResidentTrainer:
                return ResidentTrainer.load(device.config, device.client_index, device.folder)

            stack.enter_context(serve_trainer(load, socket))
            sockets.append(socket)
        config = config_of(asked, out=str(folder / "plain"), cohort__available=3)
        plain_folder = serve(config, Live(sockets, config))
    plain = RunResult.read(plain_folder)
    assert [event.reports for event in plain.rounds] == [3]
    assert groups_of(plain_folder) == groups_of(live.run) != [[]]
    assert plain.final_digest == masked.final_digest
