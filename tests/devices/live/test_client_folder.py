"""A board and a phone of the same name on one machine do not share a folder."""

from pathlib import Path

import pytest

from samara.devices.live.client_folder import (
    PHONE_LOCK,
    UP_LOCK,
    check_is_no_boards,
    check_is_no_phones,
)
from samara.devices.live.join import join_run as join_as_board
from samara.devices.phone.reference_client.joining import join_run as join_as_phone
from samara.shared.errors import DeviceError
from samara.shared.network.invitation import InvitationCode

ADDRESS = "127.0.0.1:1"


def test_neither_joins_in_the_folder_of_the_other(tmp_path: Path) -> None:
    code = InvitationCode(bytes(16), bytes(16))
    phone, board = tmp_path / "phone", tmp_path / "board"
    for folder, lock in ((phone, PHONE_LOCK), (board, UP_LOCK)):
        folder.mkdir()
        (folder / lock).touch()
    with pytest.raises(DeviceError, match="is the folder of a phone; give another --name"):
        join_as_board(ADDRESS, code, phone)
    with pytest.raises(DeviceError, match="is the folder of a client of `samara client`; give"):
        join_as_phone(ADDRESS, code, board)
    assert [len(list(folder.iterdir())) for folder in (phone, board)] == [1, 1]


def test_each_goes_on_in_its_own(tmp_path: Path) -> None:
    (tmp_path / PHONE_LOCK).touch()
    check_is_no_boards(tmp_path)
    (tmp_path / PHONE_LOCK).rename(tmp_path / UP_LOCK)
    check_is_no_phones(tmp_path)
