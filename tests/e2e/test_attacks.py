"""The rows of the table of attacks that take only a few seconds each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.attacked_superlink import (
    RunningSuperLink,
    damaged_key_file,
    endless_bodies,
    file_modes,
    flood_of_requests,
    running_superlink,
    start_run_through_a_tunnel,
    stolen_key,
    strict_client,
    unfinished_handshakes,
)
from benchmarks.faults.attacks import half_a_line

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuperLink]:
    with running_superlink(tmp_path_factory.mktemp("s") / "run") as link:
        yield link


def test_a_superlink_withstands_strangers(link: RunningSuperLink) -> None:
    assert flood_of_requests(link).endswith("status 415")
    assert start_run_through_a_tunnel(link) == "refused with status 403"
    assert file_modes(link) == "folder 0700, database 0600"
    assert strict_client(link).startswith("accepted")
    assert "all ended within" in unfinished_handshakes(link)


def test_a_superlink_withstands_holders_of_keys(link: RunningSuperLink) -> None:
    assert "the client keeps its index" in stolen_key(link)
    assert damaged_key_file(link).startswith("1 key refused")


@pytest.mark.exhaustive
def test_bodies_that_never_end_are_ended(link: RunningSuperLink) -> None:
    assert "all ended within" in endless_bodies(link)


def test_an_observation_that_was_cut_off_is_recovered(tmp_path: Path) -> None:
    assert half_a_line(tmp_path).endswith("after step 5")
