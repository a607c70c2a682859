"""The address that an invitation prints is the name with which the server was started."""

from pathlib import Path

import pytest

from samara.server.live.certificates import server_address
from samara.shared.errors import SamaraError
from samara.shared.network.certificates import make_certificates


@pytest.mark.parametrize("name", ["server.example", "127.0.0.1", "localhost"])
def test_a_server_is_invited_to_by_its_name(name: str, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["earlier.example"])
    tls = make_certificates(tmp_path, [name])
    assert server_address(tmp_path, 8000) == (tls.authority, f"{name}:8000")
    make_certificates(tmp_path, [])  # a start without --name changes nothing
    assert server_address(tmp_path, 8000) == (tls.authority, f"{name}:8000")


def test_of_several_names_one_has_to_be_chosen(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["one.example", "two.example"])
    with pytest.raises(SamaraError, match=r"one\.example, two\.example; choose one with --address"):
        server_address(tmp_path, 8000)


def test_names_of_earlier_versions_are_those_of_the_certificate(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["server.example"])
    (tmp_path / "names.txt").unlink()
    assert server_address(tmp_path, 8000)[1] == "server.example:8000"
