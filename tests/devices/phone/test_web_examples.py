"""The phone page's input from its owner: rows, files, examples, and an invitation's link."""

from typing import Any

import numpy as np
from changes import changed_one_at_a_time
from typescript import RunCore

from samara.shared.network.invitation import InvitationCode
from samara.shared.protocol.frames.instructions import Split


def test_rows_of_a_file_are_read_and_its_other_lines_named(run_page: RunCore) -> None:
    task = {"name": "t", "text": "{text|sentence} {{x}}", "words": [" bad", " good"]}
    task |= {"labels": [["0", "no"], ["1"]], "fields": ["text"], "label": "label|answer"}
    lines = [
        '{"sentence": "a, b", "label": 1, "split": "test"}',
        '{"text": "c", "answer": "no"}',
        '{"text": "d", "label": 2}',
        "not JSON",
        '{"text": " ", "label": 1}',
        "",
        '{"text": "e", "label": "good"}',
    ]
    csv = 'text,label\r\n"a ""b"",\nc",0\nd,7\ne\n"f",bad\n'
    asked: list[list[Any]] = [["rows", "\n".join(lines), task], ["rows", csv, task]]
    asked += [["pasted", "one\n\n two \n"], ["textOf", task, {"text": "{y}"}]]
    of_lines, of_csv, pasted, filled = run_page(asked)
    assert of_lines == {
        "examples": [
            {"row": {"text": "a, b"}, "label": 1, "split": Split.TEST},
            {"row": {"text": "c"}, "label": 0},
            {"row": {"text": "e"}, "label": 1},
        ],
        "wrongLines": [3, 4, 5],
        "lacks": None,
    }
    examples = [{"row": {"text": text}, "label": 0} for text in ('a "b",\nc', "f")]
    assert of_csv == {"examples": examples, "wrongLines": [4, 5], "lacks": None}
    assert pasted == [{"row": {"text": text}, "label": 1} for text in ("one", "two")]
    assert filled == "{y} {x}"


def test_what_the_model_makes_of_texts_is_kept_by_all_that_it_depends_on(
    run_page: RunCore,
) -> None:
    file = {"sha256": "a", "bytes": 1}
    index = {
        "version": 1,
        "manifest": file,
        "graph": file,
        "weights": [{"path": "w", **file}],
        "tokenizer": {"tokenizer.json": file},
        "task": {"text": "{text}", "question": "?", "words": ["bad", "good"], "labels": [["0"]]},
        "tokenization": {"special": False, "before": [1], "after": "?", "limit": 9, "answers": []},
        "examples": [],
    }
    others = changed_one_at_a_time(index)
    (hashes,) = run_page([["hashes", [index, *others]]])
    assert len(others) > 20
    assert len(set(hashes)) == len(hashes)
    assert run_page([["hashes", [index]]]) == [[hashes[0]]]


def test_an_example_goes_through_the_model_once_and_its_label_may_change(
    run_page: RunCore,
) -> None:
    def one(text: str, label: int, split: int = 0) -> dict[str, Any]:
        return {"row": {"text": text}, "label": label, "split": split}

    additions = [[one("a", 0), one("bb", 1), one("t", 1, 2)], [one("a", 1), one("ccc", 0)]]
    spread = [{"row": {"text": str(n)}, "label": 0} for n in range(600)]
    result, many = run_page([["book", additions, "bb", [], -1], ["book", [spread], "7", [], 1]])
    assert result["all"] == [one("a", 1), one("t", 1, 2), one("ccc", 0)]
    assert result["passes"] == {"a": 1, "bb": 1, "t": 1, "ccc": 1}
    assert (result["scores"], result["labels"]) == ([1, 0, 3, 0], [1, 0])
    assert result["tokens"] == [1, 3]
    assert result["isChanged"]
    assert (many["stopped"], set(many["passes"].values())) == (["StoppedError"], {1})
    assert max(many["sizes"]) == 64  # what is read is kept, and not read again
    counts = np.bincount([each["split"] for each in many["all"]])
    np.testing.assert_allclose(counts / 599, [0.7, 0.1, 0.2], atol=0.05)


TASK = {"name": "t", "text": "{text}", "words": [" bad", " good"], "labels": [["0"], ["1"]]}
TASK |= {"fields": ["text"], "label": "label"}


ODD: list[tuple[str, list[str], list[int], Any]] = [
    ("", [], [], None),
    ("text,label\n", [], [], None),
    ('text,label\n6" pipe,1\nlast,0', ['6" pipe', "last"], [], None),
    ('text,label\n"open,1\nlast,0\n', ["last"], [2], None),
    ('text,label\n"a"b,1\nlast,0\n', ["last"], [2], None),
    ('text,label\r"two\r\nlines",1\rx,7\r', ["two\r\nlines"], [4], None),
    ("text,label\na,b,1\nlast,0\n", ["last"], [2], None),
    ("text,label\n,\n\nlast,0\n", ["last"], [], None),
    ("review;label\na;1\n", [], [2], (["text", "label"], ["review;label"])),
    ('{"review": "a", "label": 1}\n', [], [1], (["text"], ["review", "label"])),
    ('[{"text": "a", "label": 1}]', [], [], (["text", "label"], None)),
    ('{"text": "half \\ud83d", "label": 1}\n{"text": "a", "label": 1}', ["a"], [1], None),
    (f"text,label\n{'a' * (2**20 + 1)},1\nlast,0", ["last"], [2], None),
]
"""Files, their texts, the numbers of wrong lines, and the missing and existing columns."""


def test_an_odd_file_loses_no_row_without_a_word(run_page: RunCore) -> None:
    found = run_page([["rows", content, TASK] for content, *_ in ODD])
    for (content, texts, wrong_lines, lacks), read in zip(ODD, found, strict=True):
        assert [one["row"]["text"] for one in read["examples"]] == texts, content[:40]
        assert read["wrongLines"] == wrong_lines, content[:40]
        if lacks is None:
            assert read["lacks"] is None, content[:40]
        else:
            assert read["lacks"]["missing"] == lacks[0]
            assert lacks[1] is None or read["lacks"]["found"] == lacks[1]


def test_what_is_no_example_of_the_task_is_refused(run_page: RunCore) -> None:
    sound: dict[str, Any] = {"row": {"text": "a"}, "label": 1}
    wrong: list[dict[str, Any]] = [{}, {"row": {}}, {"row": {"text": " "}}, {"row": {"text": 1}}]
    wrong += [{"row": {"text": "\ud83d"}}, {"label": 2}, {"label": 0.5}, {"split": 3}]
    given = [sound, {**sound, "split": 2}, *({**sound, **one} for one in wrong[1:]), {}]
    (found,) = run_page([["sound", given, TASK]])
    assert found == [True, True] + [False] * len(wrong)


def test_a_question_without_a_text_is_refused_by_the_names_of_its_fields(run_page: RunCore) -> None:
    task = {**TASK, "text": "{title}: {text}", "fields": ["title", "text"]}
    wrong: list[Any] = [
        {},
        {"text": "a"},
        {"title": "a", "text": ""},
        {"title": 1, "text": "b"},
        None,
    ]
    sound, *refused = run_page([["asked", [{"title": "a", "text": "b"}, *wrong], task]])[0]
    assert sound == ""
    assert set(refused) == {
        "Nothing was asked: give a text of at most 1,048,576 characters in each of these fields: "
        "title, text."
    }


def test_a_text_that_the_tokenizer_refuses_is_left_out_and_counted(run_page: RunCore) -> None:
    def one(text: str, label: int, split: int = 0) -> dict[str, Any]:
        return {"row": {"text": text}, "label": label, "split": split}

    refused = ["r", "rr", "rrr", "late"]
    additions = [
        [one("a", 0), one("r", 1), one("bb", 1), one("rr", 1, 1), one("rrr", 0, 2)],
        [one("ccc", 1), one("late", 0)],
    ]
    some, none = run_page(
        [["book", additions, "late", refused, -1], ["book", additions, "a", [], -1]]
    )
    assert some["scores"] == [1, 0, 2, 0, 3, 0]
    assert some["labels"] == [0, 1, 1]
    assert set(some["passes"].values()) == {1}  # also of those that are refused
    assert some["counts"]["splits"] == [3, 0, 0]
    assert (some["counts"]["train"], some["counts"]["refused"]) == (3, 3)
    assert some["counts"]["refusedOnes"] == [{"text": text} for text in refused[:3]]
    assert some["counts"]["labels"] == 2
    assert not some["isChanged"]  # what is left out is none of the examples
    assert none["counts"]["splits"] == [4, 1, 1]


def test_a_code_is_read_from_its_link(run_page: RunCore) -> None:
    code = InvitationCode(bytes(range(16)), bytes(range(16, 32)))
    other = "b" + str(code)[1:]
    links = [str(code), f" https://phones.example/#join={code}\n", str(code)[:-1], other, ""]
    *read, short, damaged, empty = run_page([["code", link] for link in links])
    assert read == [{"trusted": code.trusted.hex(), "secret": code.secret.hex()}] * 2
    assert (short, damaged, empty) == ("InvitationError",) * 3
