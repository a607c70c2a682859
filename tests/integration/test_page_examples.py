"""What the phone page reads from its owner: rows, files, examples, and an invitation's link."""

from typing import Any

import numpy as np
from typescript import RunCore

from shared.frames.instructions import Split
from shared.invitation import InvitationCode


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
    }
    examples = [{"row": {"text": text}, "label": 0} for text in ('a "b",\nc', "f")]
    assert of_csv == {"examples": examples, "wrongLines": [4, 5]}
    assert pasted == [{"row": {"text": text}, "label": 1} for text in ("one", "two")]
    assert filled == "{y} {x}"


def test_an_example_goes_through_the_model_once_and_its_label_may_change(
    run_page: RunCore,
) -> None:
    def one(text: str, label: int, split: int = 0) -> dict[str, Any]:
        return {"row": {"text": text}, "label": label, "split": split}

    additions = [[one("a", 0), one("bb", 1), one("t", 1, 2)], [one("a", 1), one("ccc", 0)]]
    spread = [{"row": {"text": str(n)}, "label": 0} for n in range(600)]
    result, many = run_page([["book", additions, "bb"], ["book", [spread], "7"]])
    assert result["all"] == [one("a", 1), one("t", 1, 2), one("ccc", 0)]
    assert result["passes"] == {"a": 1, "bb": 1, "t": 1, "ccc": 1}
    assert (result["scores"], result["labels"]) == ([1, 0, 3, 0], [1, 0])
    assert result["tokens"] == [1, 3]
    assert result["isChanged"]
    counts = np.bincount([each["split"] for each in many["all"]])
    np.testing.assert_allclose(counts / 599, [0.7, 0.1, 0.2], atol=0.05)


def test_a_code_is_read_from_its_link(run_page: RunCore) -> None:
    code = InvitationCode(bytes(range(16)), bytes(range(16, 32)))
    other = "b" + str(code)[1:]
    links = [str(code), f" https://phones.example/#join={code}\n", str(code)[:-1], other, ""]
    *read, short, damaged, empty = run_page([["code", link] for link in links])
    assert read == [{"trusted": code.trusted.hex(), "secret": code.secret.hex()}] * 2
    assert (short, damaged, empty) == ("InvitationError",) * 3
