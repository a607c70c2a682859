"""The phone page's messages to its owner about a browser that stores nothing, and other faults."""

import re
from collections.abc import Callable

from helpers import ROOT
from page_runs import CLIENT, PageRun
from typescript import RunCore

from samara.shared.errors import RefusalCode
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report

TEXTS = (ROOT / "devices/phone/web/src/texts.ts").read_text(encoding="utf-8")
FULL, LOST = "no room left for this page", "The browser has closed the storage of this page"


WAYS = {
    ("throws",): ["not opened: refused"],
    ("UnknownError",): ["not opened: refused"],
    ("QuotaExceededError",): ["not opened: full"],
    ("blocked",): ["not opened: blocked"],
    ("works", "works"): ["works"],
    ("works", "QuotaExceededError", "works"): ["full", FULL, "works"],
    ("works", "none"): ["lost", LOST],
    ("works", "closed"): ["lost", LOST],
    ("works", "DataCloneError", "works"): ["not kept", "works"],
}
"""Outcomes of opening the storage and of each write, and the resulting messages."""


def test_storage_that_fails_is_said_and_nothing_counts_as_kept(run_page: RunCore) -> None:
    found = run_page([["storage", list(ways)] for ways in WAYS])
    for ways, texts, parts in zip(WAYS, found, WAYS.values(), strict=True):
        assert len(texts) == len(parts), ways
        assert all(part in text for part, text in zip(parts, texts, strict=True)), ways


def test_what_cannot_be_kept_is_not_sent(
    page_run: Callable[..., PageRun], run_page: RunCore
) -> None:
    run = page_run()
    task = run.task(TaskKind.TRAIN, run.train(1))
    (result,) = run_page([run.case(["no room", task, "room", task, "restart", task])])
    refused, sent, again = map(bytes.fromhex, result["answers"])
    assert Refusal.decode(refused).code == RefusalCode.DEVICE
    assert Report.decode(sent).client == CLIENT
    assert again == sent


def test_a_program_comes_where_no_file_is_kept_and_is_asked_for_again(run_page: RunCore) -> None:
    asked = [(200, "nothing"), (200, "no files"), (0, "the index"), (502, "the index")]
    assert run_page([["index", *one] for one in asked]) == [1] * len(asked)
    away = run_page(
        [["index", status, keeps] for status in (0, 502) for keeps in ("nothing", "no files")]
    )
    assert all("This page tries again by itself" in said for said in away)
    (refused,) = run_page([["index", 404, "no files"]])
    assert "the gateway has no program: 404" in refused


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
