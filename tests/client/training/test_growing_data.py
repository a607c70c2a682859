"""Growing data: stable splits, half lines, damaged rows, vanished files, retention, deletion."""

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.client.training.client_data import ClientData, example_reader, grown_parts
from samara.client.training.growing_data import GrowingData
from samara.client.training.own_examples import OwnExamples, row_of_text
from samara.shared.errors import ConfigError, DataError
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.data import DataSettings
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.growing import newest, read_growing
from samara.shared.tasks.rows import Example

TASK = load_task("sst2")
DAY = 86_400.0


def line(text: str, label: int = 1, **fields: object) -> str:
    return json.dumps({"text": text, "label": label, **fields}) + "\n"


def watching(path: Path, home: Path, now: float = 0.0, **changes: object) -> GrowingData:
    return GrowingData(TASK, data_settings(path, **changes), home, lambda: now)


def data_settings(path: Path, **changes: object) -> DataSettings:
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    return DataSettings.model_validate({"path": str(path), "watch": True, **keys})


def texts(data: GrowingData) -> list[str]:
    return [example.text for example in data.examples]


def labels(examples: Iterable[Example]) -> dict[str, int]:
    return {example.text: example.label for example in examples}


def append(path: Path, content: str) -> None:
    with path.open("a") as file:
        file.write(content)


TEXTS = st.lists(st.text("ab ", min_size=1).filter(str.strip), unique_by=str.strip, max_size=20)


@settings(max_examples=50)
@given(TEXTS, TEXTS, TEXTS, st.integers(0, 3))
def test_no_example_moves_when_others_come_or_go(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[str],
    second: list[str],
    taught: list[str],
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("d")
    path, home = folder / "a.jsonl", folder / "home"
    path.write_text("".join(line(text) for text in first))
    data = watching(path, home, seed=seed)
    alone = {example.text: example.split for example in data.examples}
    path.write_text("".join(line(text, 0) for text in [*second, *reversed(first)]))
    OwnExamples(home).learn([row_of_text(TASK, text, "1") for text in taught], TASK)
    data.refresh()
    together = {example.text: example.split for example in data.examples}
    assert {text: together[text] for text in alone} == alone
    assert len(together) == len(data.examples)
    path.write_text("".join(line(text) for text in second))
    data.refresh()
    left = {example.text: example.split for example in data.examples}
    assert left == {text: together[text] for text in left}
    again = watching(path, home, seed=seed)
    assert {example.text: example.split for example in again.examples} == left


def test_the_label_plays_no_part_and_the_shares_are_those_of_other_data(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(line(f"film {n}", n % 2) for n in range(2000)))
    rows, problems = read_growing(str(path), TASK, 0)
    counts = Counter(row.example.split for row in rows)
    assert not problems
    assert counts["train"] == pytest.approx(1400, abs=100)
    assert counts["validation"] == pytest.approx(200, abs=60)
    assert counts["test"] == pytest.approx(400, abs=80)
    path.write_text("".join(line(f"film {n}", (n + 1) % 2) for n in range(2000)))
    others, _ = read_growing(str(path), TASK, 0)
    assert [row.example.split for row in rows] == [row.example.split for row in others]
    third, _ = read_growing(str(path), TASK, 1)
    assert [row.example.split for row in rows] != [row.example.split for row in third]


def test_splits_that_a_folder_has_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("".join(line(f"film {n}") for n in range(50)))
    (tmp_path / "test.jsonl").write_text("".join(line(f"meal {n}") for n in range(50)))
    data = watching(tmp_path, tmp_path / "home")
    test = [example for example in data.examples if example.split == "test"]
    assert {example.text.split()[0] for example in test} == {"meal"}
    assert {example.split for example in data.examples} == {"train", "validation", "test"}
    append(tmp_path / "train.jsonl", line("meal 7"))  # a text of the test stays one
    assert not data.refresh()
    assert len(data.examples) == 100


def test_half_a_last_line_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = line("a good film")
    path.write_text(line("a day"))
    data = watching(path, tmp_path / "home")
    for end in range(1, len(whole) - 2):
        path.write_text(line("a day") + whole[:end])
        assert not data.refresh()
        assert not data.facts.problems
    path.write_text(line("a day") + whole.rstrip())  # whole, without a newline
    assert data.refresh()
    assert texts(data) == ["a day", "a good film"]
    half = "ein gut\u00e4r film".encode()
    path.write_bytes(path.read_bytes() + b'\n{"text": "' + half[: half.index(b"\xa4")])
    assert not data.refresh()


def test_a_damaged_row_is_named_by_file_and_line_and_the_others_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line("a day"))
    data = watching(path, tmp_path / "home")
    append(path, "{not json}\n" + line("a walk", 7) + '{"text": "no label"}\n' + line("a meal"))
    with caplog.at_level(logging.WARNING, "samara.client"):
        assert data.refresh()
        append(path, line("a film"))
        data.refresh()
    assert texts(data) == ["a day", "a meal", "a film"]
    places = [problem.split(": ")[0] for problem in data.facts.problems]
    assert places == [f"{path}:2", f"{path}:3", f"{path}:4"]
    assert caplog.text.count(f"{path}:3: label 7 is unknown") == 1  # told once


def test_data_that_vanish_are_used_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line("a day") + line("a walk"))
    data = watching(path, tmp_path / "home")
    path.rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING, "samara.client"):
        assert not data.refresh()
        assert not data.refresh()
    assert texts(data) == ["a day", "a walk"]
    assert caplog.text.count("the examples read earlier stay in use") == 1
    assert "no such file" in data.facts.problems[0]
    (tmp_path / "away").rename(path)
    append(path, line("a film"))
    assert data.refresh()
    assert texts(data) == ["a day", "a walk", "a film"]
    assert not data.facts.problems
    path.write_text(line("a walk"))  # the owner deleted the others
    assert data.refresh()
    assert texts(data) == ["a walk"]


def test_nothing_is_read_again_while_no_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line("a day"))
    data = watching(path, tmp_path / "home")

    def never(*arguments: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("samara.client.training.growing_data.read_growing", never)
    assert not data.refresh()
    append(path, line("a film"))
    with pytest.raises(AssertionError):
        data.refresh()


def test_a_folder_of_texts_by_label_grows(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    for label, text in (("great", "a good film"), ("0", "a bad film")):
        (folder / label).mkdir(parents=True)
        (folder / label / "1.txt").write_text(text + "\n")
    (folder / "dull").mkdir()
    (folder / ".great").mkdir()
    data = watching(folder, tmp_path / "home")
    assert labels(data.examples) == {"a bad film": 0, "a good film": 1}
    assert "dull: label 'dull' is unknown" in data.facts.problems[0]
    (folder / "great" / ".2.txt").write_text("half a te")
    assert not data.refresh()
    (folder / "great" / ".2.txt").rename(folder / "great" / "2.txt")
    (folder / "great" / "3.txt").write_bytes(b"\xff\xfe\xff")
    (folder / "great" / "4.txt").write_text(" \n")
    assert data.refresh()
    assert labels(data.examples) == {"a bad film": 0, "a good film": 1, "half a te": 1}
    problems = "\n".join(data.facts.problems)
    assert "3.txt: is not UTF-8" in problems
    assert "4.txt: the text is empty" in problems
    shutil.rmtree(folder / "0")
    assert data.refresh()
    assert texts(data) == ["a good film", "half a te"]


def test_what_was_taught_is_used_and_its_newest_label_counts(tmp_path: Path) -> None:
    path, home, clock = tmp_path / "a.jsonl", tmp_path / "home", [100.0]
    path.write_text(line("a day", 0, time=50) + line("a walk", 0, time=300))
    own = OwnExamples(home, lambda: clock[0])
    data = watching(path, home)
    before = {example.text: example.split for example in data.examples}
    rows = [row_of_text(TASK, text, "great") for text in ("a day", "a walk", "a film")]
    own.learn(rows, TASK)
    assert data.refresh()
    assert labels(data.examples) == {"a day": 1, "a walk": 0, "a film": 1}
    clock[0] = 400.0
    own.learn([row_of_text(TASK, "a walk", "1")], TASK)
    assert data.refresh()
    assert labels(data.examples)["a walk"] == 1
    assert {one.text: one.split for one in data.examples if one.text in before} == before
    own.delete(None)
    assert data.refresh()
    assert labels(data.examples) == {"a day": 0, "a walk": 0}


def test_given_data_keep_their_splits_and_their_repetitions(tmp_path: Path) -> None:
    path, home = tmp_path / "a.jsonl", tmp_path / "home"
    path.write_text("".join(line(f"film {n % 40}") for n in range(50)))
    given_once = DataSettings.model_validate({"path": str(path)})
    fixed = list(example_reader(TASK, given_once)(1))
    data = GrowingData(TASK, given_once, home)
    assert data.examples == fixed
    OwnExamples(home).learn([row_of_text(TASK, "film 3", "0"), row_of_text(TASK, "new", "0")], TASK)
    append(path, line("not read"))
    assert data.refresh()
    assert [one.split for one in data.examples[:-1]] == [one.split for one in fixed]
    assert [one.text for one in data.examples] == [*(one.text for one in fixed), "new"]
    assert {one.label for one in data.examples if one.text == "film 3"} == {0}
    assert data.facts.counts["given", "train"] + data.facts.counts["given", "test"] == 45


def test_the_newest_examples_are_kept_and_old_ones_deleted(tmp_path: Path) -> None:
    path, home, now = tmp_path / "a.jsonl", tmp_path / "home", [10 * DAY]
    path.write_text(line("old", time=1 * DAY) + line("new", time=9 * DAY) + line("no time"))
    os.utime(path, (9.5 * DAY, 9.5 * DAY))
    own = OwnExamples(home, lambda: now[0])
    own.learn([row_of_text(TASK, "taught", "1")], TASK)
    few = GrowingData(TASK, data_settings(path, keep=2), home, lambda: now[0])
    assert texts(few) == ["no time", "taught"]
    days = GrowingData(TASK, data_settings(path, keep_days=3), home, lambda: now[0])
    assert texts(days) == ["new", "no time", "taught"]
    now[0] = 12.75 * DAY
    assert days.refresh()  # no file has changed
    assert texts(days) == ["taught"]
    assert len(own.read()[0]) == 1
    now[0] = 13.5 * DAY
    assert days.refresh()
    assert texts(days) == []
    assert own.read() == ([], [])
    assert path.read_text().count("\n") == 3  # not the client's own file


def test_the_order_is_that_in_which_examples_came(tmp_path: Path) -> None:
    path, home = tmp_path / "a.jsonl", tmp_path / "home"
    path.write_text(line("one") + line("two"))
    data = watching(path, home)
    OwnExamples(home).learn([row_of_text(TASK, "three", "1")], TASK)
    data.refresh()
    path.write_text(line("two") + line("four"))
    data.refresh()
    assert texts(data) == ["two", "three", "four"]
    assert data.facts.newest == pytest.approx(path.stat().st_mtime, abs=100)


def test_what_cannot_grow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nfilm,1\n")
    with pytest.raises(DataError, match="cannot be watched, because half a row of CSV"):
        watching(path, tmp_path)
    with pytest.raises(DataError, match=r"data\.watch needs an existing file or folder"):
        watching(tmp_path / "missing", tmp_path)
    with pytest.raises(ConfigError, match=r"data\.keep"):
        watching(path, tmp_path, limit=5)
    with pytest.raises(ConfigError, match="only the data of a live client"):
        example_reader(TASK, data_settings(path))
    folder = tmp_path / "d"
    (folder / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="which are more than a text and a label"):
        GrowingData(load_task("mrpc"), data_settings(folder), tmp_path)


def test_examples_that_stay_keep_their_prompts_and_their_part() -> None:
    tokenized: list[str] = []

    def tokenize(example: Example) -> Prompt:
        tokenized.append(example.text)
        return Prompt(((len(tokenized),),), ((0,),))

    def examples(*names: str) -> list[Example]:
        return [Example(name, 0, "", "train") for name in names]

    data = ClientData(0, examples("a", "b", "c"), tokenize)
    first, hash_ = data.tokenized(Split.TRAIN), data.hash_of(Split.TRAIN)
    assert first.parts == (first.prompts,)
    data.replace_examples(examples("a", "b", "c", "d"))
    second = data.tokenized(Split.TRAIN)
    assert second.prompts[:3] == first.prompts
    assert second.parts == (first.prompts, second.prompts[3:])
    assert data.hash_of(Split.TRAIN) != hash_
    data.replace_examples(examples("b", "d", "e"))
    third = data.tokenized(Split.TRAIN)
    assert tokenized == list("abcde")
    assert third.parts == (first.prompts, (second.prompts[3], third.prompts[2]))
    assert data.parts() == list(third.parts)
    assert third.first(2).labels.shape == (2,)
    data.replace_examples([])
    assert data.tokenized(Split.TRAIN).parts == ()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_parts_hold_every_example_once_and_are_few(changes: list[tuple[int, int]]) -> None:
    parts: tuple[tuple[Prompt, ...], ...] = ()
    prompts: list[Prompt] = []
    for added, deleted in changes:
        prompts = prompts[deleted:] + [Prompt(((0,),), ((0,),)) for _ in range(added)]
        parts = grown_parts(parts, prompts)
        held = Counter(id(one) for part in parts for one in part)
        assert {id(one) for one in prompts} <= held.keys()
        assert set(held.values()) <= {1}
        sizes = [len(part) for part in parts]
        assert sizes == sorted(set(sizes), reverse=True)


def test_retention_of_equal_times_keeps_the_later_ones() -> None:
    assert newest([5.0, 5.0, 4.0, 5.0], 2, 0.0) == [1, 3]
    assert newest([5.0, 1.0], 0, 2.0) == [0]
