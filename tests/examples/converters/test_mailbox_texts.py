"""The converter of mails keeps the owner's words with sender and time, and no quoted text."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from helpers import ROOT

from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples

SCRIPT = ROOT / "examples" / "converters" / "mailbox_texts.py"
MBOX = """\
From ann@x Thu Jan  1 00:00:00 2026
From: Ann <Ann@x.example>
Date: Thu, 01 Jan 2026 08:15:00 +0000
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: quoted-printable

Gr=C3=BC=C3=9Fe an alle.
> what you wrote
Bis bald
--=20
Ann, Head of Things

From ann@x Fri Jan  2 00:00:00 2026
From: ann@x.example
Date: Fri, 02 Jan 2026 08:15:00 +0000
Content-Type: multipart/alternative; boundary=b

--b
Content-Type: text/html

<p>no</p>
--b
Content-Type: text/plain; charset=no-such

yes
--b--

From ann@x Fri Jan  2 00:00:00 2026
From: ann@x.example
Date: some day

without a date

"""


def converted(mbox: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(mbox), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_mails_become_rows_that_are_read(tmp_path: Path) -> None:
    mbox, out = tmp_path / "sent.mbox", tmp_path / "mails.jsonl"
    mbox.write_text(MBOX)
    ended = converted(mbox, out)
    assert ended.returncode == 0, ended.stderr
    assert "2 mails; left out: 1" in ended.stdout
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == ["Grüße an alle.\nBis bald", "yes"]
    assert {row["user"] for row in rows} == {"ann@x.example"}
    examples = load_examples(str(out), load_task("texts"), 0, split="time")
    assert {one.split: one.answers[0] for one in examples}["test"] == "yes"
    again = converted(mbox, out)
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_what_holds_no_mail_is_said(tmp_path: Path) -> None:
    missing = converted(tmp_path / "none.mbox", tmp_path / "out")
    assert "no such file" in missing.stderr
    (tmp_path / "empty.mbox").write_text("")
    empty = converted(tmp_path / "empty.mbox", tmp_path / "out")
    assert "none of 0 mails" in empty.stderr
    assert not (tmp_path / "out").exists()


def test_quotes_and_signatures_are_left_out() -> None:
    spec = importlib.util.spec_from_file_location("mailbox_texts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.own_words("hello\r\n> a\n-- \nname") == "hello"
    assert module.own_words("a -- b\n--\nc") == "a -- b\n--\nc"
