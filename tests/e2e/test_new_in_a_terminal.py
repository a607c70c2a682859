"""`samara new` in a terminal: its questions, its replies to wrong answers, the end of the input."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
END_OF_INPUT, INTERRUPT = "\x04", "\x03"


def talk(answers: Sequence[str], folder: Path) -> tuple[int, str]:
    """Answer question after question of `samara new mine`; return exit status and all text."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, sys.executable, "-m", "samara", "new", "mine"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "200"},
        start_new_session=True,
    )
    os.close(theirs)
    text, left = "", list(answers)
    while True:
        try:
            text += os.read(ours, 4096).decode()
        except OSError:  # the other side is closed
            break
        if left and ESCAPES.sub("", text).rstrip(" ").endswith(":"):
            answer = left.pop(0)
            text += f"[{answer!r}]"
            keys = answer if answer in (END_OF_INPUT, INTERRUPT) else f"{answer}\n"
            os.write(ours, keys.encode())
    os.close(ours)
    assert not left
    return process.wait(timeout=60), ESCAPES.sub("", text)


LEADER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Script that becomes the command, with the terminal as its own, so that Ctrl-C reaches it."""


@pytest.fixture
def data(tmp_path: Path) -> str:
    rows = [f"the day was {('bad', 'good')[i % 2]} {i},{i % 2},u{i % 6}" for i in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label,author", *rows, ""]))
    return "rows.csv"


@pytest.mark.parametrize("end", [END_OF_INPUT, INTERRUPT])
def test_wrong_answers_are_asked_for_again_until_the_input_ends(
    end: str, data: str, tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    answers = ["", "nowhere.csv", data, "poem", "classification", "verdict", "label", end]
    status, text = talk(answers, tmp_path)
    assert status == 130
    assert "--data: the answer is empty; give an answer" in text
    assert "'nowhere.csv': no such file or folder" in text
    assert (
        "'poem': this is not a kind of task; give one of classification, choice, generation" in text
    )
    assert "there is no column 'verdict'" in text
    assert text.count("Data: a .jsonl or .csv file") == 3
    assert "samara: stopped; no file is written" in text
    assert "Traceback" not in text
    assert sorted(tmp_path.iterdir()) == before
