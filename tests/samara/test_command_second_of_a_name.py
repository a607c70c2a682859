"""A second server, client or gateway of the same name is refused by name, and changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import tree_of
from typer.testing import CliRunner

from samara.devices.gateway import process as gateway_process
from samara.devices.gateway.settings import GatewaySettings
from samara.devices.live.client_folder import UP_LOCK
from samara.devices.live.client_supervisor import up
from samara.devices.live.processes import exclusive_lock
from samara.devices.live.settings import ClientSettings
from samara.server.commands import app as server_app
from samara.server.live.run_lock import lock_run
from samara.shared.errors import SamaraError


def second_server(run: Path) -> None:
    command = ["up", "--run", str(run), "--name", "other.example", "--set", "rounds=7"]
    result = CliRunner().invoke(server_app, command)
    assert isinstance(result.exception, SamaraError), result.output
    raise result.exception


def second_client(home: Path) -> None:
    up(
        ClientSettings(
            name="kitchen",
            folder=home,
            superlink="127.0.0.1:1",
            client_index=7,
            device_settings={},
            insecure=True,
        )
    )


def second_gateway(home: Path) -> None:
    gateway_process.up(
        GatewaySettings(
            folder=home,
            phones=None,
            listen="127.0.0.1:0",
            certificate=None,
            certificate_key=None,
            names=(),
            superlink="127.0.0.1:1",
            key=None,
            certificates=None,
            insecure=True,
        )
    )


@pytest.mark.parametrize(
    ("second", "name", "lock", "refusal"),
    [
        (second_server, "field", lock_run, "another `samara server up` is serving this run"),
        (
            second_client,
            "kitchen",
            lambda home: exclusive_lock(home / UP_LOCK, "test"),
            "another `samara client up`, `ask` or `serve` is using this client",
        ),
        (
            second_gateway,
            "gateway",
            lambda home: exclusive_lock(home / "gateway.lock", "test"),
            "another `samara gateway up` is running",
        ),
    ],
)
def test_the_second_of_a_name_is_refused_by_name_and_changes_nothing(
    second: Callable[[Path], None],
    name: str,
    lock: Callable[..., object],
    refusal: str,
    tmp_path: Path,
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "ledger").write_bytes(b"rounds")
    with lock(folder):  # type: ignore[attr-defined]
        before = tree_of(folder)
        with pytest.raises(SamaraError, match=rf"{name}: {refusal}"):
            second(folder)
        assert tree_of(folder) == before
