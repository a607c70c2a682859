"""What the phone page tells its owner where the browser keeps nothing, or something else is odd."""

import re
from pathlib import Path

import pytest
from typescript import RunCore

ROOT = Path(__file__).parents[2]
TEXTS = (ROOT / "devices/phone/web/src/texts.ts").read_text(encoding="utf-8")
FULL, LOST = "no room left for this page", "The browser has closed what this page keeps"


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        (["throws"], ["not opened: refused"]),
        (["UnknownError"], ["not opened: refused"]),
        (["QuotaExceededError"], ["not opened: full"]),
        (["blocked"], ["not opened: blocked"]),
        (["works", "works"], ["works"]),
        (["works", "QuotaExceededError", "works"], ["full", FULL, "works"]),
        (["works", "none"], ["lost", LOST]),
        (["works", "closed"], ["lost", LOST]),
        (["works", "DataCloneError", "works"], ["not kept", "works"]),
    ],
)
def test_storage_that_fails_is_said_and_nothing_counts_as_kept(
    run_page: RunCore, ways: list[str], said: list[str]
) -> None:
    (found,) = run_page([["storage", ways]])
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


def test_every_message_of_the_page_is_in_troubleshooting() -> None:
    (block,) = re.findall(r"^  reasons: \{\n(.*?)^  \}", TEXTS, re.MULTILINE | re.DOTALL)
    reasons = re.findall(r'"((?:[^"\\]|\\.)+)"', block)
    told = ("waiting", "refused", "allRefused", "wrongLines", "lacks", "noRows", "notUtf8")
    named = [re.search(rf'^ +{name}:\s+"(.+?)",?$', TEXTS, re.MULTILINE) for name in told]
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| \*(.+?)\* \|", page, re.MULTILINE)
    assert len(reasons) > 15
    for text in [*reasons, *(found[1] for found in named if found)]:
        shown = re.sub(r"\{\d\}", "…", text)
        assert any(shown.startswith(quote) for quote in quoted), text
    assert all(named)
