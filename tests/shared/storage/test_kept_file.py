"""Every file that a client keeps: its form on the disk, damage, and an unusable folder."""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import instruction_with, layout_of
from learners import ExamplesOnly

from samara.client.forward.grouping import Schedule
from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.answer_log import AnswerLog
from samara.client.limits.answered_runs import AnsweredRun, AnsweredRuns, _AnsweredFile
from samara.client.limits.pass_counts import PassCounts
from samara.client.limits.privacy_budget import Charge, ChargeLog
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.limits.work_costs import WorkCost, WorkCosts
from samara.client.personal.kept_label_bias import KeptLabelBias, _LabelBiasFile
from samara.client.personal.own_words import OwnText, OwnWords, OwnWordsFile
from samara.client.personal.personalizations import StartState, _FinishedLog, _StartFile
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.client.protocol.generations import Generations
from samara.client.protocol.joined_runs import JoinedRun, _RunFile
from samara.client.protocol.scenario_folder import RefusedRequests, _RefusedFile
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import _SessionFile, encode_session
from samara.client.protocol.signed_runs import SERVER_DECIDES
from samara.client.questions.model_in_use import ValidationFile, ValidationLosses
from samara.client.training.execution import Execution, _ExecutionFile
from samara.devices.live.checks.kept_checks import ChecksFile, KeptChecks
from samara.devices.live.connection.introduced_clients import _IntroducedFile
from samara.devices.live.join import JoinedFile
from samara.devices.live.known_messages import HIDDEN, hide_insertions
from samara.devices.live.pause_log import PauseLog
from samara.devices.live.server_contact import _ContactFile
from samara.devices.phone.reference_client.run_settings import _SettingsFile
from samara.server.rounds.cohort_sampling import _CohortSecretFile
from samara.shared.check_result import CheckResult, Outcome
from samara.shared.privacy.scalar_ratio import ScalarCount
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.replay import digest
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.storage.kept_file import KeptFile, KeptLog

LAYOUT, MODEL, CONFIG = layout_of(6), bytes(range(32)), RunConfig()
RUN = run_id_of(CONFIG, LAYOUT, MODEL)
STATE = np.arange(LAYOUT.size)
SESSION = Session.begin(LedgerHeader(0, RUN, LAYOUT.hash), LAYOUT)


class Kind(NamedTuple):
    """A kind of file: a function that makes one, its content, and its bytes on disk."""

    make: Callable[[Path], KeptFile[Any]]
    content: Callable[[Path], Any]
    on_disk: bytes | None


def lines(*text: str) -> bytes:
    return "\n".join(text).encode()


def kind(make: Callable[[Path], KeptFile[Any]], content: Any, on_disk: bytes | None = None) -> Kind:
    return Kind(make, lambda _: content, on_disk)


START = StartState(3, STATE, digest(LAYOUT.hash, STATE))
KINDS = [
    kind(
        _IntroducedFile,
        {"clients": 4, "elements": 384},
        lines("{", ' "clients": 4,', ' "elements": 384', "}"),
    ),
    kind(
        _AnsweredFile,
        AnsweredRun(2, 8, b"\1\1", b"\2", {"validation": (b"\3", b"frame")}, {"train": 5}),
        lines(
            '{\n "compared": "02",\n "evaluations": {\n  "validation": {\n   "frame": "ZnJhbWU=",',
            '   "token": "03"\n  }\n },\n "introduced": {\n  "train": 5\n },\n "round": 2,',
            ' "scalars": 8,\n "token": "0101"\n}',
        ),
    ),
    kind(
        ScalarCounts,
        {"b": {"l": ScalarCount(20, 8, b"\1\1")}},
        b'{\n "b": {\n  "l": {\n   "sent": 8,\n   "size": 20,\n   "token": "0101"\n  }\n }\n}',
    ),
    kind(
        Generations,
        {"train": {"b": ["2"], "a": ["1"]}},
        b'{\n "train": {\n  "b": [\n   "2"\n  ],\n  "a": [\n   "1"\n  ]\n }\n}',
    ),
    kind(PassCounts, Counter({"00": 5}), b'{\n "00": 5\n}'),
    kind(
        WorkCosts,
        {"00": WorkCost(1, 2.0, 0.5, 10.0)},
        lines(
            '{\n "00": {\n  "joules": 10.0,\n  "paused": 0.5,\n  "rounds": 1,',
            '  "seconds": 2.0\n }\n}',
        ),
    ),
    kind(
        ValidationFile,
        ValidationLosses("d0", {"b": 0.5, "a": 0.25}, "m"),
        b'{\n "digest": "d0",\n "losses": {\n  "b": 0.5,\n  "a": 0.25\n },\n "model_path": "m"\n}',
    ),
    kind(
        _RefusedFile,
        RefusedRequests(1, "now", "é"),
        rb'{"count": 1, "time": "now", "reason": "\u00e9"}',
    ),
    kind(
        _LabelBiasFile,
        KeptLabelBias(("sad", "glad"), (1, -1)),
        b'{"labels": ["sad", "glad"], "values": [1, -1], "began_with": []}',
    ),
    kind(
        OwnWordsFile,
        OwnWords((OwnText((1,), (2, 3)),), 0.5, 0.25, "ab"),
        b'{"texts": [[[1], [2, 3]]], "share": 0.5, "trust": 0.25, "made_of": "ab"}',
    ),
    kind(
        lambda folder: _ExecutionFile(folder, bytes(8)),
        Execution(Schedule("inner", 4), 2),
        b'{\n  "grouping": "inner",\n  "micro_batch": 4,\n  "threads": 2\n}\n',
    ),
    kind(
        ChecksFile,
        KeptChecks(1.5, (CheckResult(Outcome.WARN, "disk", "é", "more"),)),
        lines(
            r'{"time": 1.5, "checks": [{"outcome": "warn", "subject": "disk", "finding": "\u00e9", '
            r'"remedy": "more"}]}'
        ),
    ),
    kind(
        _ContactFile,
        {"address": "a:1", "time": 1.5, "problem": "é"},
        rb'{"address": "a:1", "problem": "\u00e9", "time": 1.5}',
    ),
    kind(
        lambda folder: JoinedFile(folder, "superlink"),
        {"superlink": "s.example:8000", "gateway": "g.example:1"},
        b'{"superlink": "s.example:8000", "gateway": "g.example:1"}',
    ),
    kind(_CohortSecretFile, bytes(range(32)), bytes(range(32))),
    kind(_SettingsFile, b'{"rounds":3}', b'{"rounds":3}'),
    kind(_SessionFile, SESSION, encode_session(SESSION)),
    kind(
        lambda folder: _StartFile(folder, "personalization", LAYOUT),
        START,
        lines(
            f'{{"round": 3, "digest": "{START.digest.hex()}", "first": 0, "data": "", '
            '"before": null}',
            "",
        )
        + STATE.astype("<i8").tobytes(),
    ),
    Kind(
        lambda folder: _RunFile(folder / RUN.hex()),
        lambda folder: JoinedRun(RUN, folder / RUN.hex(), CONFIG, LAYOUT, MODEL),
        json.dumps(
            {"layout": LAYOUT.to_json(), "model_id": MODEL.hex(), "settings": CONFIG.flat()},
            sort_keys=True,
            indent=1,
        ).encode(),
    ),
]
LOGS: list[Callable[[Path | None], KeptLog]] = [ChargeLog, AnswerLog, PauseLog, _FinishedLog]  # type: ignore[list-item]
each_kind = pytest.mark.parametrize("one", KINDS, ids=lambda one: type(one.make(Path())).__name__)
each_log = pytest.mark.parametrize("log", LOGS, ids=lambda log: log.__name__)


def path_of(file: KeptFile[Any] | KeptLog) -> Path:
    assert file.path is not None
    return file.path


def test_every_kind_is_in_this_test() -> None:
    assert {type(one.make(Path())) for one in KINDS} == set(KeptFile.__subclasses__())
    assert set(LOGS) == set(KeptLog.__subclasses__())


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Set the umask of a client, because a server's command may have changed it in this process."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@each_kind
@pytest.mark.usefixtures("usual_umask")
def test_the_form_on_the_disk_stays(one: Kind, tmp_path: Path) -> None:
    file, content = one.make(tmp_path / "new"), one.content(tmp_path / "new")
    nothing = file.read()
    assert nothing == file.empty()
    file.write(content)
    assert path_of(file).read_bytes() == one.on_disk
    again, on_disk = one.make(tmp_path / "new").read(), one.on_disk
    assert file._encode(again) == on_disk
    assert [each for each in path_of(file).parent.iterdir() if each != path_of(file)] == []
    is_private = isinstance(file, _RefusedFile | _CohortSecretFile)
    assert (path_of(file).stat().st_mode & 0o077 == 0) == is_private


@each_kind
@pytest.mark.parametrize("damage", [None, b"", b"[]", b"7", b"{", b"\xff\xfe\xff", b"[" * 100_000])
def test_a_damaged_file_is_named_and_not_replaced(
    one: Kind, damage: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = one.make(tmp_path)
    if damage is None:
        path_of(file).mkdir(parents=True)
    elif isinstance(file, _SettingsFile):  # checked by the run id, which is a hash of it
        return
    else:
        path_of(file).parent.mkdir(exist_ok=True)
        path_of(file).write_bytes(damage)
    if file.is_needed:
        with pytest.raises(file.error) as raised:
            file.read()
        message = str(raised.value)
    else:
        with caplog.at_level(logging.WARNING, "samara.client"):
            assert file.read() == file.empty()
        message = caplog.messages[-1]
    shown = [(str(path_of(file)), message)]
    if not isinstance(file, _CohortSecretFile):  # the log of a client, not of a server, is shown
        shown.append((HIDDEN, hide_insertions(message)))
    for name, text in shown:
        begin, end = file.damaged.format(file=name, problem="\0").split("\0")
        assert text.startswith(begin)
        assert text.endswith(end)
        assert end.startswith("; ")  # the remedy, or the consequence
    assert damage is None or path_of(file).read_bytes() == damage


@each_kind
def test_a_folder_that_cannot_be_written_is_named(one: Kind, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = one.make(tmp_path / "file")
    with pytest.raises(
        file.error, match=f"^{re.escape(str(file.path))}: cannot be written: File exists"
    ):
        file.write(one.content(tmp_path / "file"))


@each_log
def test_half_a_last_line_of_a_log_is_as_if_it_had_never_been_written(
    log: Callable[[Path | None], KeptLog], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = log(tmp_path / "new")
    assert kept.read_lines() == []
    assert kept.append(b'{"a": 1}') == 9
    with path_of(kept).open("ab") as file:
        file.write(b'{"b": 2}')
    assert kept.read_lines() == [b'{"a": 1}']
    with caplog.at_level(logging.WARNING, "samara.client"):
        assert kept.append(b'{"c": 3}') == 18
    assert "8 bytes are cut off" in caplog.text
    assert path_of(kept).read_bytes() == b'{"a": 1}\n{"c": 3}\n'
    kept.replace([b"x", b"y"])
    assert kept.read_lines() == [b"x", b"y"]


@each_log
def test_a_log_that_cannot_be_used_is_named(
    log: Callable[[Path | None], KeptLog], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = log(tmp_path / "file")
    for use, what in (
        (kept.read_lines, "read: Not a directory"),
        (lambda: kept.append(b""), "written: File exists"),
        (lambda: kept.replace([]), "written: File exists"),
    ):
        with pytest.raises(kept.error, match=f"cannot be {what}"):
            use()


def test_stores_without_a_folder_keep_nothing(tmp_path: Path) -> None:
    instruction, token = instruction_with(), b"12345678"
    asked = EvaluateInstruction(
        instruction.run_id, 1, 0, Split.VALIDATION, instruction.layout_hash, bytes(32)
    )
    passes, costs, counts = PassCounts(None), WorkCosts(None), ScalarCounts(None)
    passes.add(bytes(8), 5)
    costs.add(bytes(8), WorkCost(1))
    counts.write({"a": {"l": ScalarCount(1)}})
    assert (passes.read(), costs.read(), counts.read()) == ({}, {}, {})
    answered = AnsweredRuns(None)
    answered.write(bytes(8), AnsweredRun(3))
    assert answered.read(bytes(8)) == AnsweredRun()
    charges = ChargeLog(None)
    charges.add(Charge("aa", 1, token, "local", 1.0, b"report"))
    assert charges.read() == []
    AnswerLog(None).add(b"no frame", b"none", False, 20)
    assert Generations(None).of_examples(Split.TRAIN, [], "aa") == ("aa",)
    assert Generations(None).of_examples(Split.TRAIN, [], "") == ()
    SERVER_DECIDES.check(b"no frame")
    SERVER_DECIDES.check_first(instruction, token)
    assert (SERVER_DECIDES.has_privacy, SERVER_DECIDES.settings_of(bytes(8))) == (False, b"")
    guard = AnswerGuard(AnswerLimits(), ExamplesOnly(), Records())
    guard.add_introduction(bytes(8), {Split.TRAIN: 3})
    guard.check_report(instruction, token)
    guard.add_report(instruction, token, b"report")
    assert guard.find_report(token) == b""
    assert guard.introduced(bytes(8)) == {}
    assert guard.find_evaluation(asked, token, True) == b""
    assert list(tmp_path.iterdir()) == []
