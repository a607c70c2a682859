"""A rehearsal: real processes limited like devices, a fault, and no leftovers."""

import json
import os
from pathlib import Path

import pytest
from scenarios import SCENARIO, write_rehearsal
from typer.testing import CliRunner

from samara.command import app
from samara.devices.hardware.leftovers import find_groups, find_namespaces
from samara.shared.errors import ConfigError


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return write_rehearsal(tmp_path)


@pytest.mark.slow
def test_devices_that_are_too_fast_are_refused_with_the_dilation_that_would_do(
    scenario: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    many = SCENARIO.replace("clients = 2", "clients = 24").replace(
        "available = 2", "available = 24"
    )
    scenario.write_text(many)  # more than any machine's cores hold to their devices' speed
    out = tmp_path_factory.mktemp("r") / "o"
    done = CliRunner().invoke(app, ["rehearse", str(scenario), "--out", str(out)])
    assert isinstance(done.exception, ConfigError)
    assert "or more (seconds on this machine per second on the devices)" in str(done.exception)
    assert not out.exists()


@pytest.mark.exhaustive
def test_two_clients_of_different_devices_reach_one_digest_though_a_link_is_cut(
    scenario: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("r") / "o"
    arguments = ["rehearse", str(scenario), "--dilation", "10", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output + str(done.exception)
    report = json.loads((out / "rehearsal.json").read_text())
    assert report["rounds"] == 3
    assert report["finished"]
    clients = report["clients"]
    assert [client["device"] for client in clients] == ["orin-nano-8gb", "laptop"]
    assert len({client["digest"] for client in clients}) == 1
    assert all(client["round"] == 3 and client["seconds"] > 0 for client in clients)
    (fault,) = report["faults"]
    assert (fault["kind"], fault["client"]) == ("link-cut", "1-laptop")
    assert fault["began_after"] >= 1
    assert "reported again in round" in done.output
    own = os.getpid()
    left = [*find_groups().items(), *find_namespaces().items()]
    assert [name for name, owner in left if owner == own] == []
