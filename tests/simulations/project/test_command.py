"""`samara new`, from its questions to a run of the files that it wrote."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.prompt import Prompt

from samara.shared.results.result import RunResult
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples

Run = Callable[..., tuple[int, str, str]]


def test_a_project_of_users_is_written_and_runs(
    run: Run, data_file: Path, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "my project"
    model = model_folder("encoder")
    options = ("--data", data_file, "--model", model, "--words", "bad, good")
    status, printed, errors = run("new", folder, *options)
    assert (status, errors) == (0, "")
    assert "users (user): 3, with 80 to 80 rows" in printed
    assert "clients: 3 with 56 training examples, of 3 users" in printed
    examples = load_examples(str(data_file), load_task(str(folder / "task.toml")), 0)
    labels = {s: [e.label for e in examples if e.split == s] for s in ("train", "validation")}
    usual = max((0, 1), key=labels["train"].count)
    share = labels["validation"].count(usual) / len(labels["validation"])
    assert f"always the most frequent label: {share:.1%} accuracy on 24 validation" in printed
    assert "each user's most frequent label" in printed
    assert "zero-shot: " in printed
    assert f"next: samara simulate '{folder}/scenario.toml'" in printed
    assert {file.name for file in folder.iterdir()} == {"task.toml", "scenario.toml"}
    status, _, errors = run("simulate", folder / "scenario.toml", "--set", "rounds=2")
    assert (status, errors) == (0, "")
    assert RunResult.read(folder / "run").final_round == 3  # and that of the common intercept


def test_questions_are_answered_one_by_one(
    run: Run,
    data_file: Path,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    answers = iter(
        [
            *("nowhere.csv", str(data_file)),  # a wrong answer is asked for again
            *(None, "verdict", None, "owner", "label", None, None),
            *("bad", "bad,good"),
            str(model_folder("causal")),
        ]
    )
    asked: list[str] = []

    def ask(question: str, default: str | None = None) -> str | None:
        asked.append(question)
        return next(answers) or default

    monkeypatch.setattr(Prompt, "ask", ask)
    status, printed, errors = run("new", tmp_path / "mine")
    assert status == 0
    assert "nowhere.csv': no such file" in errors
    assert "there is no column 'verdict'" in errors
    assert "there is no column 'owner' for --user" in errors
    assert "label cannot be both user and answer" in errors
    assert "--words: 1 words for 2 labels" in errors
    assert [question.split()[0] for question in asked] == [
        *("Data:", "Data:", "Kind", *["Column"] * 5, "Columns", "Words", "Words", "Model:"),
    ]
    # The labels are numbers, so examples help to find words.
    assert "  0: the film was " in printed
    assert f"samara new {tmp_path}/mine --data {data_file} --kind classification" in printed
    assert (tmp_path / "mine" / "scenario.toml").exists()


@pytest.mark.parametrize("options", [("--words", "bad,good"), ("--task", "sst2")])
def test_users_in_a_column_of_another_name_are_clients(
    options: tuple[str, ...],
    run: Run,
    data_file: Path,
    model_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    rows = [json.loads(line) for line in data_file.read_text().splitlines()]
    file = tmp_path / "data.jsonl"
    renamed = [{"rated_by" if name == "user" else name: row[name] for name in row} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in renamed))
    given = ("--data", file, "--model", model_folder("encoder"), *options)
    status, printed, errors = run("new", tmp_path / "mine", *given, "--user", "rated_by")
    assert (status, errors) == (0, "")
    assert "users (rated_by): 3, with 80 to 80 rows" in printed
    assert "clients: 3 with 56 training examples, of 3 users" in printed
    assert load_task(str(tmp_path / "mine" / "task.toml")).user == "rated_by"
    run("simulate", tmp_path / "mine" / "scenario.toml", "--set", "rounds=1")
    assert RunResult.read(tmp_path / "mine" / "run").final_round == 2  # and the intercepts
    # Without --user, nothing says that this is a column of users.
    _, printed, _ = run("new", tmp_path / "other", *given)
    assert "users: no column names users" in printed
    assert "if rated_by names the user of a row, give the column as --user" in printed


def test_users_that_are_named_can_be_left_out(
    run: Run, data_file: Path, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    options = ("--data", data_file, "--model", model_folder("encoder"), "--words", "bad,good")
    status, printed, _ = run("new", tmp_path / "mine", *options, "--user", "none")
    assert status == 0
    assert "users: no column names users" in printed
    assert 'partition = "dirichlet"' in (tmp_path / "mine" / "scenario.toml").read_text()


def test_words_that_name_the_labels_keep_their_labels(
    run: Run, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"text": f"the day was long {i}", "label": ("good", "bad")[i % 2]} for i in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--data", file, "--model", model_folder("encoder"), "--words", "good,bad")
    status, _, errors = run("new", tmp_path / "mine", *options)
    assert (status, errors) == (0, "")
    task = load_task(str(tmp_path / "mine" / "task.toml"))
    assert task.words == ("bad", "good")
    assert task.labels == (("bad",), ("good",))


def test_generated_messages_need_nothing(run: Run, tmp_path: Path) -> None:
    status, printed, errors = run("new", tmp_path / "mine", "--data", "messages")
    assert (status, errors) == (0, "")
    assert "model: embedded" in printed
    scenario = (tmp_path / "mine" / "scenario.toml").read_text()
    assert 'path = "embedded"' in scenario


def test_answers_in_words_are_for_tune(
    run: Run, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    things = ["film", "day", "meal", "walk"]
    rows = [
        {"question": f"the {things[i % 4]} was very {i}", "answer": f"the {things[i % 4]} {i}"}
        for i in range(40)
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = model_folder("causal")
    status, printed, errors = run("new", tmp_path / "mine", "--data", file, "--model", model)
    assert (status, errors) == (0, "")
    assert "zero-shot: " in printed
    assert "1,000 steps" in printed
    assert f"next: samara tune --task {tmp_path}/mine/task.toml --data {file}" in printed
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["task.toml"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "Data: a .jsonl or .csv file, a folder, a data set on the hub"),
        (("--data", ""), "--data: the answer is empty; give an answer"),
        (("--data", "DATA"), "Words for the labels 0, 1, in this order"),
        (("--data", "DATA", "--words", " "), "--words: the answer is empty"),
        (("--data", "DATA", "--words", "one"), "--words: 1 words for 2 labels"),
        (("--data", "DATA", "--words", "a, a"), "--words: a occurs more than once; give different"),
        (("--data", "DATA", "--kind", "regression"), "is not a kind of task"),
        (("--data", "DATA", "--label", "verdict"), "there is no column 'verdict'"),
        (("--data", "DATA", "--label", "text", "--text", "text"), "cannot be both text and"),
        (("--data", "DATA", "--user", "owner"), "there is no column 'owner' for --user"),
        (("--data", "DATA", "--user", "label"), "cannot be both user and answer"),
        (("--data", "DATA", "--user", "text", "--text", "text"), "cannot be both text and user"),
        (("--data", "DATA", "--task", "sst"), "is not a shipped task"),
        (("--data", "DATA", "--task", "rte"), "leave out --task, or rename columns"),
        (
            ("--data", "DATA", "--words", "a,b", "--model", "embedded"),
            "only the words of generated messages",
        ),
        (("--data", "DATA", "--words", "a,b", "--model", "no/such/model"), "no/such/model"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    options: tuple[str, ...], message: str, run: Run, data_file: Path, tmp_path: Path
) -> None:
    given = [data_file if option == "DATA" else option for option in options]
    status, _, errors = run("new", tmp_path / "mine", *given)
    assert status == 1
    assert message in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_label_with_a_comma_is_quoted(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + '"one","a, b"\ntwo,c\n' * 5)
    status, printed, errors = run("new", tmp_path / "mine", "--data", file, "--words", "a,b,c")
    assert status == 1
    assert 'labels (label): "a, b" 5, c 5' in printed
    assert '3 words for 2 labels; give one word for each of "a, b", c, without commas' in errors


def test_words_for_free_answers_and_texts_in_objects_are_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"text": f"day {i}", "body": {"t": "a"}, "label": i / 7} for i in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for options, message in {
        ("--words", "low,high"): "but label has 60 different values in 60 rows, which",
        ("--text", "body"): "the column 'body' contains objects, which `samara new` cannot use",
    }.items():
        status, _, errors = run("new", tmp_path / "mine", "--data", file, *options)
        assert (status, message in errors) == (1, True), errors
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("rows", ["a day {0},{1},anna\n", "a day {0},{1}\n"])
def test_a_file_without_a_header_is_refused(rows: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "days.csv"
    file.write_text("".join(rows.format(i, i % 2) for i in range(30)))
    status, _, errors = run("new", tmp_path / "mine", "--data", file, "--words", "bad,good")
    assert status == 1
    said = " ".join(errors.split())
    assert f"{file}: the first row is read as column names, but '0'" in said
    assert "add a first row with names, such as text,label,user" in said
    assert list(tmp_path.iterdir()) == [file]


def test_a_column_may_have_the_name_of_a_label(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mails.csv"
    file.write_text(
        "text,spam\n" + "".join(f"a day {i},{('spam', 'ham')[i % 2]}\n" for i in range(9))
    )
    _, _, errors = run("new", tmp_path / "mine", "--data", file, "--model", tmp_path / "none")
    assert "first row" not in errors
    assert f"{tmp_path / 'none'}" in errors


def test_a_question_about_a_table_says_where_its_names_are(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "days.csv"
    file.write_text("a warm day,yes,1\na cold day,no,2\n")
    _, _, errors = run("new", tmp_path / "mine", "--data", file)
    assert "(the first row names a warm day, yes, 1): give --label" in " ".join(errors.split())


def test_rows_of_one_label_are_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "one.csv"
    file.write_text("text,label\n" + "".join(f"a day {i},good\n" for i in range(30)))
    status, _, errors = run("new", tmp_path / "mine", "--data", file)
    assert (status, "label is 'good' in all rows" in errors) == (1, True)
    assert list(tmp_path.iterdir()) == [file]


def test_simulate_alone_explains_itself(run: Run) -> None:
    status, printed, errors = run("simulate")
    assert status == 1
    assert "popquorn" in printed
    assert "`samara new DIR` writes a file" in errors


THINGS = ("film", "day", "meal", "walk")
QUICK = ("--set", "rounds=1", "--set", "personal.rounds=1", "--set", "queries=2")


@pytest.fixture
def chat_model(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A causal model with a chat template and a context of 256 tokens."""
    folder = shutil.copytree(model_folder("causal"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    template = (
        "{% for m in messages %}the {{ m['role'] }} was {{ m['content'] }} .\n{% endfor %}"
        "{% if add_generation_prompt %}the assistant was {% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer | {"chat_template": template})
    )
    return folder


@pytest.mark.parametrize("task", ["responses", "texts"])
def test_texts_of_users_make_a_federation(
    task: str, run: Run, chat_model: Path, tmp_path: Path
) -> None:
    rows = [
        {"user": f"u{i % 3}", "text": f"the {THINGS[i % 4]} was {'very ' * (i // 4 % 5)}good"}
        for i in range(48)
    ]
    if task == "responses":
        rows = [{"user": r["user"], "prompt": "and?", "response": r["text"]} for r in rows]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--data", file, "--model", chat_model)
    status, printed, errors = run("new", tmp_path / "mine", *given)
    assert (status, errors) == (0, "")
    assert f"task: {task}, because of the columns" in printed
    assert "rows have no text" not in printed
    assert "bits per byte, perplexity" in printed
    scenario = tmp_path / "mine" / "scenario.toml"
    assert ("retrieved = 4" in scenario.read_text()) is (task == "responses")
    status, _, errors = run("simulate", scenario, *QUICK, "--set", "evaluate.passages=1")
    assert (status, errors) == (0, "")
    assert RunResult.read(tmp_path / "mine" / "run").final_round == 1
    # Without users there is nobody to personalize for, and the project is one of samara tune.
    file.write_text("".join(json.dumps({**row, "user": "u0"}) + "\n" for row in rows))
    status, printed, _ = run("new", tmp_path / "alone", *given)
    assert status == 0
    assert "next: samara tune" in printed


def test_the_form_of_an_instruct_model_is_written_into_the_task(
    run: Run, data_file: Path, chat_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    options = ("--data", data_file, "--model", chat_model, "--words", "bad,good")
    status, printed, errors = run("new", folder, *options)
    assert (status, errors) == (0, "")
    [(form, reason)] = re.findall(r"^form = (auto|chat): (.*)$", printed, re.MULTILINE)
    losses = dict(re.findall(r"(auto|chat) (\d+\.\d+) ", reason))
    assert form == min(losses, key=lambda each: float(losses[each]))
    task = load_task(str(folder / "task.toml"))
    assert task.model_dump()["form"] == form
    assert (folder / "task.toml").read_text().startswith(f"# {reason}\nform = ")
    status, _, errors = run("simulate", folder / "scenario.toml", "--set", "rounds=1")
    assert (status, errors) == (0, "")
    result = RunResult.read(folder / "run")
    assert (result.config["form"], "form" in result.automatic) == ("auto", False)


def test_chats_go_from_a_file_to_a_page(run: Run, chat_model: Path, tmp_path: Path) -> None:
    """The steps are data, project, run, comparison, and the models' answers."""
    file, folder, page = tmp_path / "chats.jsonl", tmp_path / "mine", tmp_path / "page.html"
    rows = []
    for i in range(48):
        turns = [("user", f"a {THINGS[i % 4]}"), ("assistant", f"{'very ' * (i // 4 % 4)}good")]
        messages = [{"role": role, "content": content} for role, content in turns]
        rows.append({"user": f"u{i % 3}", "messages": messages})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, printed, errors = run("new", folder, "--data", file, "--model", chat_model)
    assert (status, errors) == (0, "")
    assert "task: chat, because of the columns" in printed
    short = ("--set", "evaluate.passages=1", "--set", "evaluate.retrieved=2")
    assert run("simulate", folder / "scenario.toml", *QUICK, *short)[0] == 0
    status, printed, _ = run("compare", folder / "run", "--html", page)
    assert status == 0
    assert "icl-personal" in printed
    shown = page.read_text()
    assert "user: a " in shown
    assert not re.search('("|&#34;|&quot;)content', shown)  # nobody reads messages as JSON
