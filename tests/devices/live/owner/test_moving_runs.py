"""A client that moves to another device in the middle of a run continues without a difference."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from federations import Live, Settings, config_of, ledger_of
from helpers import tree_of
from residents import device_settings

from samara.client.app import TRAINER
from samara.client.limits.answer_log import read_answers
from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.live.keys import OWN_KEY_FILE, create_key, read_client_index
from samara.devices.live.owner import sealed_archive
from samara.devices.live.owner.moving import import_client, move_client
from samara.devices.live.settings import ClientSettings
from samara.server.app import serve

PASSPHRASE = "correct horse"


def private_files(home: Path) -> dict[str, bytes]:
    """The files of the private model, by path in the folder of runs."""
    found = tree_of(home / "runs")
    return {
        path: content
        for path, content in found.items()
        if path.endswith((".seg", ".snap", "session", "answered.json"))
    }


def answers(home: Path) -> list[tuple[str, int, str]]:
    return [(one.asked, one.round, one.token) for one in read_answers(home).answers]


def test_a_run_does_not_notice_the_move(
    settings: Settings,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealed_archive, "SCRYPT_COST", 2)
    place = tmp_path_factory.mktemp("m")
    first = place / "first"
    first.mkdir()
    create_key(first / OWN_KEY_FILE)
    client = read_client_index(first / OWN_KEY_FILE)
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    few: dict[str, Any] = {"cohort.available": 1, "personal.rounds": 2, "evaluate.every": 1}
    config = config_of(settings | theirs | few, out=str(tmp_path / "moved"))

    def trainer_at(home: Path) -> ResidentTrainer:
        device_settings(settings, client, home).write()
        config = ClientSettings.read(home).config
        return ResidentTrainer.load(config, client, home)

    with ExitStack() as serving:
        homes, counts = [first], {"train": 0}

        def begin(home: Path) -> None:
            mine = trainer_at(home)
            serving.enter_context(serve_trainer(lambda: mine, home / "a.sock"))

        def move_after_two_rounds(kind: str, partition: int) -> None:
            counts[kind] = counts.get(kind, 0) + 1
            if kind != "train" or counts[kind] != 2:
                return
            serving.close()
            move_client(first, place / "file", PASSPHRASE)
            homes.append(place / "second")
            import_client(place / "file", homes[-1], "", PASSPHRASE)
            begin(homes[-1])
            for context in grid._contexts.values():
                context.node_config[TRAINER] = str(homes[-1] / "a.sock")

        begin(first)
        grid = Live([first / "a.sock"], config, move_after_two_rounds)
        moved = serve(config, grid)
    assert len(homes) == 2
    second = homes[-1]

    undisturbed = place / "undisturbed"
    undisturbed.mkdir()
    with serve_trainer(lambda: trainer_at(undisturbed), undisturbed / "a.sock"):
        again = config_of(config.flat(), out=str(tmp_path / "again"))
        expected = serve(again, Live([undisturbed / "a.sock"], again))
    assert ledger_of(moved) == ledger_of(expected)
    assert private_files(second) == private_files(undisturbed)
    assert any(path.endswith(".seg") for path in private_files(second))
    assert not any(path.endswith(".seg") for path in private_files(first))
    assert answers(second) == answers(undisturbed)
    trained = [(round_, token) for asked, round_, token in answers(second) if asked == "train"]
    assert [round_ for round_, _ in trained] == [1, 2, 3]
    assert len(set(trained)) == 3
    assert answers(first) == answers(second)[: len(answers(first))]
