"""What `samara server status` says before the first round."""

import json
from pathlib import Path

import pytest

from server.live.server_log import LOG_FILE, REFUSED_EVENT
from server.live.status import read_status
from shared.errors import SamaraError


def test_the_latest_refusals_and_the_last_line_are_shown(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"message": "waiting for 3 clients; 0 are connected"},
        {"message": "refused: client 4: another model", "event": REFUSED_EVENT},
        {"message": "waiting for 3 clients; 2 are connected"},
    ]
    (tmp_path / LOG_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SamaraError, match="there is no ledger") as error:
        read_status(tmp_path)
    assert str(error.value).splitlines()[1:] == [
        "  refused: client 4: another model",
        "  waiting for 3 clients; 2 are connected",
    ]


def test_a_run_whose_last_line_is_a_refusal_shows_it_once(tmp_path: Path) -> None:
    line = {"message": "refused: client 4: another model", "event": REFUSED_EVENT}
    (tmp_path / LOG_FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(SamaraError) as error:
        read_status(tmp_path)
    assert str(error.value).count("another model") == 1


def test_a_folder_without_a_log_has_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match="there is no ledger; it begins when the clients have"):
        read_status(tmp_path)
