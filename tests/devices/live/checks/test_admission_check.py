"""Before a client loads its model, it asks the server whether the server would refuse it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from invitations import authority_of, new_run, no_flower, serve

from benchmarks.faults.ports import free_address
from samara.devices.live.checks.admission_check import ask_admission
from samara.devices.live.keys import create_key
from samara.devices.live.settings import ClientSettings
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.superlink import AccessFilter
from samara.shared.network.rejection import RejectionCode
from samara.shared.protocol.signing import SigningKey


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run")


@pytest.fixture
def settings_at(run: Path, tmp_path: Path) -> Callable[[str], ClientSettings]:
    create_key(tmp_path / "own.key")

    def at(address: str) -> ClientSettings:
        return ClientSettings(
            name="kitchen",
            folder=tmp_path,
            superlink=address,
            client_index=1,
            device_settings={},
            key=tmp_path / "own.key",
            certificates=authority_of(run),
        )

    return at


def test_a_server_says_whom_it_turns_away(
    run: Path,
    settings_at: Callable[[str], ClientSettings],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys, result = ClientKeys(run / KEYS_FOLDER), run / "result.json"
    with serve(AccessFilter(no_flower, 10_000, keys, result=result), run) as address:
        settings = settings_at(address)
        assert ask_admission(settings) is RejectionCode.UNREGISTERED
        keys.register("kitchen", SigningKey(tmp_path / "own.key").public, "a test")
        caplog.clear()
        assert ask_admission(settings) is None
        assert not caplog.records
        assert ask_admission(settings.model_copy(update={"key": None})) is None
        result.write_text("{}")
        assert ask_admission(settings) is RejectionCode.FINISHED
        keys.revoke("kitchen")
        assert ask_admission(settings) is RejectionCode.REVOKED


def test_who_does_not_answer_turns_nobody_away(
    run: Path, settings_at: Callable[[str], ClientSettings], tmp_path: Path
) -> None:
    assert ask_admission(settings_at(free_address())) is None
    with serve(no_flower, new_run(tmp_path / "other")) as address:
        assert ask_admission(settings_at(address)) is None  # of another authority
