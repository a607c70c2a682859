"""Clients of a finished run by their users' names, or by number."""

import pytest
from results import result_of

from samara.shared.errors import SamaraError
from samara.shared.results.result import RunResult


def result_with(names: dict[str, str]) -> RunResult:
    return RunResult.model_validate(result_of(clients=3) | {"names": names})


def test_a_client_has_its_users_name_and_a_number_stays_an_alias() -> None:
    result = result_with({"0": "anna", "1": "bo", "2": "0"})
    assert [result.name_of(client) for client in range(3)] == ["anna", "bo", "0"]
    assert [result.client_of(name) for name in ("anna", "bo", "1")] == [0, 1, 1]
    assert result.client_of("0") == 2, "a name comes before a number"


def test_clients_without_users_have_their_numbers() -> None:
    result = result_with({})
    assert result.name_of(2) == "2"
    assert result.client_of("2") == 2


@pytest.mark.parametrize("name", ["dora", "3", "", "-1", "²"])
def test_a_name_of_nobody_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(SamaraError, match=r"there is no client .*; the run has anna, bo, 2"):
        result_with({"0": "anna", "1": "bo"}).client_of(name)
