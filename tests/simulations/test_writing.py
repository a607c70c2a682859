"""Texts that models write: their file, their scores, and their display."""

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
from results import result_of, write_result

from samara.shared.errors import SamaraError
from samara.shared.results.result import RunResult
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.experiments.passage_writer import beginnings
from samara.simulations.report.terminal import print_result
from samara.simulations.writing.passages import (
    PASSAGES_FILE,
    Passage,
    read_passages,
    write_passages,
)
from samara.simulations.writing.scores import reproduced_words, writing_scores

PROMPT = "at dawn with friends in the park, the soup was"
TRUE = "one two three four five six seven eight nine"
TEST = Passage(
    0,
    "test",
    PROMPT,
    ("tasty, more rain, dina",),
    {"zero-shot": "soggy, riva", "global": "tasty, more rain, dina"},
    {"zero-shot": "<b>cold</b>", "global": "tasty"},
)
TRAIN = Passage(0, "train", "zero", (TRUE,), {"zero-shot": "one", "global": TRUE + " ten"}, {})


def test_passages_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_passages(tmp_path) == []
    write_passages(tmp_path, [TEST, TRAIN])
    assert read_passages(tmp_path) == [TEST, TRAIN]


@pytest.mark.parametrize("line", ["[]", "{}", '{"client": 0}', "x"])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / PASSAGES_FILE).write_text(line + "\n")
    with pytest.raises(SamaraError, match=PASSAGES_FILE):
        read_passages(tmp_path)


def test_scores_are_means_over_clients() -> None:
    pytest.importorskip("rouge_score", reason="needs the extra samara-fl[report]")
    wrong = replace(TEST, client=1, greedy={"zero-shot": "", "global": "bland"})
    scores = writing_scores([TEST, TEST, wrong, TRAIN], has_styles=True)
    own = scores["global"].agreement
    assert own["exact match"] == own["token F1"] == own["ROUGE-L"] == 0.5
    assert own["whole style"] == own["form of address"] == 0.5
    assert scores["zero-shot"].agreement["exact match"] == 0.0
    assert scores["zero-shot"].agreement["token F1"] + 1 > 0
    assert (scores["global"].reproduced, scores["global"].longest) == (1.0, 9)
    assert (scores["zero-shot"].reproduced, scores["zero-shot"].longest) == (0.0, 1)


def test_short_texts_cannot_be_reproduced() -> None:
    short = replace(TRAIN, accepted=("one two",), greedy={"global": "one two"})
    (scores,) = writing_scores([short], has_styles=False).values()
    assert isnan(scores.reproduced)
    assert scores.longest == reproduced_words(short, "global") == 2
    spaced = replace(short, accepted=("one, two",), greedy={"global": "one , two , three"})
    assert reproduced_words(spaced, "global") == 2


def test_a_plain_text_begins_with_at_most_half_of_its_words() -> None:
    texts, responses = load_task("texts"), load_task("responses")
    assert isinstance(texts, GenerationTask)
    assert isinstance(responses, GenerationTask)
    text = Example("", 0, "", "test", ("the film was good  fun",))
    window = replace(text, text="before")
    one_word = replace(text, answers=("film",))
    ((example, accepted),) = beginnings(texts, [window, one_word, text])
    assert (example.text, example.answers, accepted) == ("the film", (), ("was good fun",))
    prompted = replace(text, text="who?")
    ((example, accepted),) = beginnings(responses, [prompted])
    assert (example.text, example.answers, accepted) == ("who?", (), text.answers)


def test_page_and_terminal_show_what_models_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra samara-fl[report]")
    from samara.simulations.report.html import page_of

    result = result_of(clients=8)
    result["config"] |= {"task": "style", "data.path": "messages", "data.clients": 8}
    folder = write_result(tmp_path / "run", result)
    write_passages(folder, [TEST, TRAIN])
    page = page_of(compare_runs([folder]))
    assert "Texts of the models" in page
    assert "&lt;b&gt;cold&lt;/b&gt;" in page
    assert json.dumps(PROMPT)[1:-1] in page
    assert "at most 12.5% with a common model" in page
    print_result(folder, RunResult.read(folder))
    assert "reproduced" in capsys.readouterr().out
