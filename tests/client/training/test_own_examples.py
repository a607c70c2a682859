"""Examples that an owner has taught a client: durable, private, in whole lines, fully deleted."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from samara.client.training.own_examples import (
    MAX_ROW_BYTES,
    OWN_EXAMPLES_FILE,
    OwnExamples,
    parse_rows,
    row_of_text,
)
from samara.shared.errors import DataError, TrainerError
from samara.shared.tasks.catalog import load_task

TASK = load_task("sst2")


def rows(*texts: str, label: str = "1") -> list[dict[str, str]]:
    return [row_of_text(TASK, text, label) for text in texts]


def texts(own: OwnExamples) -> list[str]:
    return [str(next(iter(one.row.values()))) for one in own.read()[0]]


def test_a_label_is_a_value_or_a_word() -> None:
    assert row_of_text(TASK, "film", "1") == row_of_text(TASK, "film", " Great")
    with pytest.raises(DataError, match=r"knows 0 \(terrible\), 1 \(great\)"):
        row_of_text(TASK, "film", "dull")
    pair = {"sentence1": "a", "sentence2": "b"}
    assert row_of_text(load_task("mrpc"), pair, "yes") == pair | {"label": "1"}
    with pytest.raises(DataError, match="sentence1, sentence2, label"):
        row_of_text(load_task("mrpc"), "film", "1")


def test_what_was_learned_is_there_for_its_owner_alone(tmp_path: Path) -> None:
    own = OwnExamples(tmp_path / "home", lambda: 12.5)
    [first, second] = own.learn(rows("a film", "a day"), TASK)
    assert own.read() == ([first, second], [])
    assert (first.time, len(first.id)) == (12.5, 12)
    assert stat.S_IMODE((tmp_path / "home" / OWN_EXAMPLES_FILE).stat().st_mode) == 0o600
    [again] = own.learn(rows("a film", label="0"), TASK)
    assert again.id == first.id
    assert own.delete([first.id]) == [first, again]
    assert texts(own) == ["a day"]
    assert stat.S_IMODE((tmp_path / "home" / OWN_EXAMPLES_FILE).stat().st_mode) == 0o600
    with pytest.raises(DataError, match=f"no example has the id {first.id}"):
        own.delete([first.id])
    assert own.delete(None) == [second]
    assert own.delete(None) == []


def test_a_wrong_row_among_others_adds_none(tmp_path: Path) -> None:
    own = OwnExamples(tmp_path)
    with pytest.raises(DataError, match=r"row 2: .*unknown[\s\S]*row 3: lacks[\s\S]*nothing was"):
        own.learn([*rows("a film"), {"text": "a", "label": 5}, {"label": 1}], TASK)
    assert not (tmp_path / OWN_EXAMPLES_FILE).exists()
    with pytest.raises(DataError, match="more than"):
        own.learn(rows("a" * MAX_ROW_BYTES), TASK)
    with pytest.raises(DataError, match="line 2"):
        parse_rows([b'{"text": "a"}', b"[]", b""])
    assert parse_rows([b'{"text": "a"}', b" \n"]) == [{"text": "a"}]


@pytest.mark.parametrize("end", [1, 20, -2, -1])
def test_half_a_line_is_left_out_and_cut_off(tmp_path: Path, end: int) -> None:
    own, file = OwnExamples(tmp_path), tmp_path / OWN_EXAMPLES_FILE
    own.learn(rows("a film"), TASK)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:end])
    assert texts(own) == ["a film"]
    own.learn(rows("a day"), TASK)
    assert texts(own) == ["a film", "a day"]
    assert own.read()[1] == []


def test_a_damaged_line_is_named_and_kept_until_all_are_deleted(tmp_path: Path) -> None:
    own, file = OwnExamples(tmp_path), tmp_path / OWN_EXAMPLES_FILE
    [first] = own.learn(rows("a film"), TASK)
    with file.open("ab") as lines:
        for damaged in (b"\xff\n", b'{"id": 3, "time": 1, "row": {}}\n', b'{"id": "a"}\n'):
            lines.write(damaged)
    own.learn(rows("a day"), TASK)
    assert texts(own) == ["a film", "a day"]
    assert own.read()[1] == [f"{file}:{n}: is damaged; delete the line" for n in (2, 3, 4)]
    own.delete([first.id])
    assert len(own.read()[1]) == 3
    own.delete(None)
    assert file.read_bytes() == b""


def test_processes_and_threads_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    own = OwnExamples(tmp_path)

    def work(name: str) -> None:
        for number in range(20):
            [one] = OwnExamples(tmp_path).learn(rows(f"{name} {number}"), TASK)
            if number % 4 == 0:
                own.delete([one.id])

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts(own)) == sorted(
        f"{name} {number}" for name in "abcd" for number in range(20) if number % 4
    )


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnExamples(tmp_path)
    own.learn(rows("a film"), TASK)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TrainerError, match="cannot be written: No space left"):
            own.learn(rows("a day", "a walk"), TASK)
    assert texts(own) == ["a film"]


WRITER = """
import sys
from pathlib import Path
from samara.client.training.own_examples import OwnExamples, row_of_text
from samara.shared.tasks.catalog import load_task
own, task = OwnExamples(Path(sys.argv[1])), load_task("sst2")
for number in range(100_000):
    own.learn([row_of_text(task, f"film {number} " + "x" * 3000, "1")], task)
    print(number, flush=True)
"""


def test_killing_a_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for attempt in range(3):
        home = tmp_path / str(attempt)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(home)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(10 + 7 * attempt):
            writer.stdout.readline()
        writer.kill()
        rest = writer.communicate()[0].split()
        acknowledged = int(rest[-1]) if rest else 9 + 7 * attempt
        own = OwnExamples(home)
        found, problems = own.read()
        assert not problems
        numbers = [int(str(next(iter(one.row.values()))).split()[1]) for one in found]
        assert numbers[: acknowledged + 1] == list(range(acknowledged + 1))
        own.learn(rows("after"), TASK)
        assert texts(own)[-1] == "after"
        content = (home / OWN_EXAMPLES_FILE).read_bytes()
        assert all(json.loads(line) for line in content.splitlines())
