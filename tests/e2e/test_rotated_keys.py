"""Keys of a board and of a phone that are replaced while a live run goes on."""

import pytest

from benchmarks.faults.rotated_keys import rotate_board, rotate_phone

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def test_a_board_goes_on_with_a_new_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    said = rotate_board(tmp_path_factory.mktemp("k"), rounds=1)
    assert "an undisturbed run with the same cohorts also ends in" in said


def test_a_phone_goes_on_with_a_new_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    said = rotate_phone(tmp_path_factory.mktemp("k"), rounds=1)
    assert "as the undisturbed run with the same cohorts does" in said
