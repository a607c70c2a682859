"""Questions go to a running client's trainer, even if it is slow; otherwise to a new trainer."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from superlinks import Time

from samara.devices.live import local_trainer
from samara.devices.live.client_folder import SETTINGS_FILE, SOCKET, UP_LOCK
from samara.devices.live.local_trainer import find_or_start_trainer, keep_trainer
from samara.devices.live.processes import exclusive_lock
from samara.shared.errors import DeviceError, TrainerError


class Trainer:
    """A trainer that answers after some polls; it counts the trainers started in its place."""

    def __init__(self, looks: int) -> None:
        self.looks, self.started, self.ended = looks, 0, 0
        self.has_started = threading.Event()

    def answers(self, socket: Path, seconds: float) -> bool:
        self.looks -= 1
        return self.looks < 0

    @contextmanager
    def start(self, folder: Path, socket: Path) -> Iterator[None]:
        self.started, self.looks = self.started + 1, 0
        self.has_started.set()
        yield
        self.ended += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / SETTINGS_FILE).touch()
    (tmp_path / SOCKET).touch()
    return tmp_path


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer(3)
    monkeypatch.setattr(local_trainer, "_answers", made.answers)
    monkeypatch.setattr(local_trainer, "_started", made.start)
    monkeypatch.setattr(local_trainer, "_POLL_SECONDS", 0.01)
    return made


def test_the_busy_trainer_of_a_running_client_is_waited_for(folder: Path, trainer: Trainer) -> None:
    with exclusive_lock(folder / UP_LOCK, "test"), find_or_start_trainer(folder) as socket:
        assert socket == folder / SOCKET
        assert (trainer.looks, trainer.started) == (-1, 0)


def test_a_running_client_whose_trainer_never_answers_gets_no_second_one(
    folder: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_trainer, "_START_SECONDS", 0.0)
    with (
        exclusive_lock(folder / UP_LOCK, "test"),
        pytest.raises(TrainerError, match="does not answer"),
        find_or_start_trainer(folder),
    ):
        pass
    assert not trainer.started


def test_without_a_client_a_trainer_is_started_and_no_client_may_run(
    folder: Path, trainer: Trainer
) -> None:
    with find_or_start_trainer(folder):
        assert trainer.started == 1
        with (
            pytest.raises(DeviceError, match="ask"),
            exclusive_lock(folder / UP_LOCK, local_trainer.ANOTHER_SERVES),
        ):
            pass
    with exclusive_lock(folder / UP_LOCK, "test"):
        pass


def test_a_trainer_that_is_gone_is_replaced_while_its_models_are_served(
    folder: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client and its trainer have ended, because the run is finished."""
    for name in ("_WATCH_SECONDS", "_ABSENCE_SECONDS"):
        monkeypatch.setattr(local_trainer, name, 0.01)
    trainer.looks = 0
    with keep_trainer(folder) as socket:
        assert (socket, trainer.started) == (folder / SOCKET, 0)
        trainer.looks = 10**6
        assert trainer.has_started.wait(60)
    assert (trainer.started, trainer.ended) == (1, 1)
    with exclusive_lock(folder / UP_LOCK, "test"):
        pass


def test_a_new_trainer_is_noticed_soon_after_it_begins_to_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Time()

    class Process:
        def __init__(self, *_: object, **__: object) -> None:
            self.has_ended = False

        def wait(self, seconds: float) -> int:
            clock.sleep(seconds)
            if self.has_ended:
                return 0
            raise subprocess.TimeoutExpired("a trainer", seconds)

        def terminate(self) -> None:
            self.has_ended = True

    monkeypatch.setattr(local_trainer, "time", clock)
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(local_trainer, "_answers", lambda *_: clock.seconds >= 1.1)
    with find_or_start_trainer(folder):
        assert 1.1 <= clock.seconds < 1.2
