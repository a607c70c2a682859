"""Every shipped task on a made-up row with the field names of its benchmark."""

import json
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import ROOT

from samara.shared.errors import DataError, TaskError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.demonstrations import demonstration
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.rows import read_rows

DATA = ROOT.parent / "shared" / "data"


class Case(NamedTuple):
    """A row, the text that the model reads before the answer, and the right answer."""

    task: str
    row: dict[str, Any]
    read: str
    right: str


PAIR = {"sentence1": "One.", "sentence2": "Two."}
CASES = [
    Case("sst2", {"sentence": "a fine film", "label": 1}, "a fine film It was ", "great"),
    Case("sst2", {"text": "a dull film", "label": 0}, "a dull film It was ", "terrible"),
    Case("sst5", {"text": "so so", "label": 2}, "so so It was ", "okay"),
    Case(
        "rte",
        {"premise": "One.", "hypothesis": "Two.", "label": 0},
        'One.\nDoes this mean that "Two." is true? Yes or No?\n',
        "Yes",
    ),
    Case(
        "rte", PAIR | {"label": 1}, 'One.\nDoes this mean that "Two." is true? Yes or No?\n', "No"
    ),
    Case(
        "mrpc",
        PAIR | {"label": 1},
        "Do the following two sentences mean the same thing? Yes or No?\n"
        "Sentence 1: One.\nSentence 2: Two.\n",
        "Yes",
    ),
    Case("cola", {"sentence": "They left.", "label": 1}, "They left. This is ", "right"),
    Case("cola", {"sentence": "Left they.", "label": 0}, "Left they. This is ", "wrong"),
    Case(
        "stsb",
        {"sentence1": "It rains.", "sentence2": "It is raining.", "label": 4.8},
        "It rains. It is raining. The two sentences are ",
        "equal",
    ),
    Case(
        "qqp",
        {"question1": "Why?", "question2": "How?", "label": 0},
        "Are these two questions asking the same thing? Yes or No?\n"
        "Question 1: Why?\nQuestion 2: How?\n",
        "No",
    ),
    Case(
        "qnli",
        {"question": "Why?", "sentence": "So.", "label": 0},
        "Does this sentence answer the question? Yes or No?\nSentence 1: Why?\nSentence 2: So.\n",
        "Yes",
    ),
    Case(
        "wnli",
        PAIR | {"label": 1},
        "Given the first sentence, is the second sentence true? Yes or No?\n"
        "Sentence 1: One.\nSentence 2: Two.\n",
        "Yes",
    ),
    Case("boolq", {"passage": "P.", "question": "is it", "label": 1}, "P. is it?\n", "Yes"),
    Case("boolq", {"passage": "P.", "question": "is it", "answer": False}, "P. is it?\n", "No"),
    Case(
        "wsc",
        {"text": "Ann said she left.", "span1_text": "Ann", "span2_text": "she", "label": 1},
        'Ann said she left.\nIn the previous sentence, does the pronoun "she" refer to Ann? '
        "Yes or No?\n",
        "Yes",
    ),
    Case(
        "wsc",
        {
            "text": "Ann said she left.",
            "target": {"span1_text": "Ann", "span2_text": "she"},
            "label": False,
        },
        'Ann said she left.\nIn the previous sentence, does the pronoun "she" refer to Ann? '
        "Yes or No?\n",
        "No",
    ),
    Case(
        "wic",
        PAIR | {"word": "bank", "label": False},
        'Does the word "bank" have the same meaning in these two sentences? Yes, No?\nOne.\nTwo.\n',
        "No",
    ),
    Case(
        "multirc",
        {"paragraph": "P.", "question": "Who?", "answer": "Ann", "label": 1},
        'P.\nQuestion: Who?\nI found this answer "Ann". Is that correct? Yes or No?\n',
        "Yes",
    ),
    *(
        Case(
            task,
            {"premise": "One.", "hypothesis": "two", "label": label},
            'Suppose One. Can we infer that "two"? Yes, No, or Maybe?\n',
            right,
        )
        for task, label, right in [
            *(("cb", 0, "Yes"), ("cb", 1, "No"), ("cb", "neutral", "Maybe")),
            *(("snli", 0, "Yes"), ("snli", 1, "Maybe"), ("snli", 2, "No")),
            *(("mnli", 0, "Yes"), ("mnli", "neutral", "Maybe"), ("mnli", 2, "No")),
        ]
    ),
    Case(
        "trec",
        {"text": "Who?", "coarse_label": 3, "fine_label": 28},
        "Who? It asks about: ",
        "human",
    ),
    Case("trec-mask", {"text": "Who?", "coarse_label": 3}, "", "Human"),
    *(
        Case(task, {"premise": "One.", "hypothesis": "two", "label": label}, "One.? ", right)
        for task, label, right in [
            *(("snli-mask", 1, "Maybe"), ("mnli-mask", "contradiction", "No")),
            *(("rte-mask", 0, "Yes"),),
        ]
    ),
    Case("trec6", {"text": "Who?", "label": 2}, "Who? It asks about: ", "abbreviation"),
    Case(
        "copa",
        {
            "premise": "It rained.",
            "choice1": "A.",
            "choice2": "B.",
            "question": "cause",
            "label": 1,
        },
        "It rained. because ",
        "B.",
    ),
    Case(
        "copa",
        {
            "premise": "It rained.",
            "choice1": "A.",
            "choice2": "B.",
            "question": "effect",
            "label": 0,
        },
        "It rained. so ",
        "A.",
    ),
    Case(
        "winogrande",
        {"sentence": "Ann met Bo as _ was late.", "option1": "Ann", "option2": "Bo", "answer": "2"},
        "Ann met Bo as ",
        "Bo was late.",
    ),
    Case(
        "record",
        {
            "passage": "Ann met Bo.",
            "query": "It was @placeholder who left.",
            "entities": ["Bo", "Ann"],
            "answers": ["Ann"],
        },
        "Ann met Bo.\nIt was ",
        "Ann who left.",
    ),
    Case(
        "squad",
        {
            "title": "T",
            "context": "C.",
            "question": "Who?",
            "answers": {"text": ["Ann", "Ann Lee"], "answer_start": [0, 0]},
        },
        "Title: T\nContext: C.\nQuestion: Who?\nAnswer: ",
        "Ann",
    ),
    Case("texts", {"text": "Dear all."}, "", "Dear all."),
    Case("responses", {"prompt": "Who?", "response": "Ann."}, "Who?\n", "Ann."),
    Case(
        "chat",
        {
            "messages": [
                {"role": "user", "content": "Who?"},
                {"role": "assistant", "content": "Ann."},
            ]
        },
        '[{"role": "user", "content": "Who?"}]',
        "Ann.",
    ),
    Case("rating", {"text": "Broken.", "label": 1}, "Broken. Stars: ", "one"),
    Case("title", {"text": "It rained.", "title": "Rain"}, "Text: It rained.\nTitle: ", "Rain"),
    Case(
        "paraphrase",
        {"plain": "I am late.", "own": "Sorry!"},
        "Plain: I am late.\nIn my words: ",
        "Sorry!",
    ),
    Case("style", {"prompt": "the soup was", "response": "tasty"}, "the soup was ", "tasty"),
    Case(
        "drop",
        {
            "passage": "P.",
            "question": "How many?",
            "answers_spans": {"spans": ["12"], "types": ["number"]},
        },
        "Passage: P.\nQuestion: How many?\nAnswer: ",
        "12",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_a_row_of_the_benchmark_is_read(case: Case) -> None:
    task = load_task(case.task)
    ((example, *_),) = read_rows(case.row, task)
    if isinstance(task, ClassificationTask):
        question = "" if task.word_is_inside else task.question_before_word
        assert example.text + question == case.read
        assert task.words[example.label] == case.right
        assert demonstration(task, example).startswith(case.read + case.right)
    else:
        assert example.text == case.read
        assert example.answers[example.label] == case.right
    if task.cut:
        start, end = example.cut or (0, 0)
        names = [name for name in task.source_fields[task.cut] if name in case.row]
        assert example.text[start:end] == case.row[names[0]]


def test_every_shipped_task_has_a_case_and_says_its_metric() -> None:
    folder = resources.files("samara.shared.tasks") / "prompts"
    files = {entry.name: entry.read_text() for entry in folder.iterdir()}
    own = {"messages.toml", "popquorn.toml"}
    assert {f"{case.task}.toml" for case in CASES} | own == set(files)
    for name, toml in files.items():
        assert load_task(name.removesuffix(".toml")).name == name.removesuffix(".toml")
        assert "\nmetric = " in toml, name


def test_the_page_about_tasks_lists_every_shipped_one_with_its_metric() -> None:
    page = (ROOT / "docs" / "reference" / "tasks.md").read_text()
    for entry in (resources.files("samara.shared.tasks") / "prompts").iterdir():
        task = load_task(entry.name.removesuffix(".toml"))
        assert f"| `{task.name}` | {task.kind} | {task.metric} |" in page


def test_a_row_of_multirc_may_hold_all_answers_to_its_question() -> None:
    answers = [{"answer": "Ann", "label": 1}, {"answer": "Bo", "label": 0}]
    row = {"paragraph": "P.", "question": "Who?", "answers": answers}
    first, second = read_rows(row, load_task("multirc"))
    assert ('answer "Ann"' in first.example.text, first.example.label) == (True, 1)
    assert ('answer "Bo"' in second.example.text, second.example.label) == (True, 0)
    assert first.content == second.content == ("P.", "Who?")


@pytest.mark.parametrize(
    ("task", "source", "train"),
    [
        ("boolq", "boolq/train_1000.jsonl", 700),
        ("cb", "cb", 200),
        ("copa", "copa", 320),
        ("mrpc", "mrpc", 3668),
        ("rte", "rte", 1992),
        ("wic", "wic", 4342),
        ("trec6", "trec6", 4907),
        ("sst2", "sst2_sentences", 6920),
    ],
)
def test_real_files_are_read(task: str, source: str, train: int) -> None:
    if not (DATA / source).exists():
        pytest.skip(f"no real rows beside the checkout, in shared/data/{source}")
    examples = load_examples(str(DATA / source), load_task(task), 0)
    assert sum(example.split == "train" for example in examples) == train
    assert {example.label for example in examples} >= {0, 1}
    assert all(example.text for example in examples)


def test_an_unknown_label_names_file_line_value_and_the_known_ones(tmp_path: Path) -> None:
    rows = [
        {"premise": "It rained.", "choice1": "A", "choice2": "B", "question": q, "label": label}
        for q, label in (("cause", 0), ("effect", 2), ("reason", 1))
    ]
    file = tmp_path / "all.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as caught:
        load_examples(str(file), load_task("copa"), 0)
    assert str(caught.value).splitlines()[:2] == [
        f"{file}:2: label 2 is unknown; task 'copa' knows 0, 1",
        f"{file}:3: 'question' is 'reason', but the task knows only cause, effect",
    ]


@pytest.mark.parametrize(
    ("score", "word"),
    [(0, "unrelated"), (0.4, "unrelated"), (2.5, "similar"), ("3.8", "close"), (5.0, "equal")],
)
def test_a_score_counts_as_the_nearest_label(score: object, word: str) -> None:
    task = load_task("stsb")
    assert isinstance(task, ClassificationTask)
    assert task.words[task.label_index(score)] == word


@pytest.mark.parametrize("score", [-1, 5.01, "nan", "high", True, None])
def test_a_score_beyond_the_labels_is_refused(score: object) -> None:
    with pytest.raises(TaskError, match=r"is not a number from 0 to 5, which task 'stsb' needs"):
        load_task("stsb").label_index(score)


@pytest.mark.parametrize("labels", ["[0, 2, 1]", "[0, 1, 3]", '["a", "b", "c"]', "[[0, 1], 2, 3]"])
def test_numbers_are_compared_if_labels_are_equally_spaced(labels: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\ntext = "{text}"\nquestion = " {word}"\nwords = ["x", "y", "z"]\n'
        f'labels = {labels}\nmetric = "pearson"\n'
    )
    with pytest.raises(TaskError, match="one number per word, rising by equal steps"):
        load_task(str(file))
