"""The code in a model card answers like Samara, in a Python without Samara."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from forked import LOADED
from scipy.special import softmax

from samara.client.forward.setup import make_forward
from samara.client.personal.card_base import hub_id_of
from samara.client.personal.model_folder import TrainedModel
from samara.client.personal.readout_file import load_scorer
from samara.client.training.client_data import ExampleTokenizer
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.rows import read_rows

ModelFolder = Callable[..., Path]
ROW = {"text": "a film of warmth and wit , " * 12 + "and yet it bored me"}
LONG, SHORT = ROW, {"text": "a warm film"}
RUNNER = """
import json, os, sys
sys.modules["samara"] = None
printed = {}
for folder in json.loads(sys.argv[1]):
    os.chdir(folder)
    code = open("snippet.py").read()
    for name, row in json.loads(sys.argv[2]).items():
        lines = [f"row = {row!r}" if li.startswith("row = ") else li for li in code.split("\\n")]
        found = []
        exec("\\n".join(lines), {"print": found.append})
        printed.setdefault(folder, {})[name] = found[0]
print(json.dumps(printed))
"""
FORMS = [
    ("causal", "top:2", False, ""),
    ("causal", "top:2", True, "label bias"),
    ("causal", "readout", False, ""),
    ("causal", "readout:2/3", True, ""),
    ("causal", "readout:2/3", False, "label bias"),
    ("masked", "readout,top:1", False, ""),
    ("masked", "top:1", True, ""),
    ("encoder", "readout", True, ""),
    ("encoder", "readout", False, "label bias"),
    ("encoder", "top:1", True, ""),
    ("encoder", "readout,top:1", False, ""),
]


def snippet_of(folder: Path) -> str:
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return str(code)


def answers_without_samara(
    folders: list[Path], rows: Mapping[str, Mapping[str, str]], *options: str
) -> dict[str, dict[str, dict[str, float]]]:
    """The output of each folder's code for each row, in a process with Python options."""
    for folder in folders:
        (folder / "snippet.py").write_text(snippet_of(folder))
    given = json.dumps(list(map(str, folders))), json.dumps(rows)
    command = [sys.executable, *options, "-c", LOADED + RUNNER, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, dict[str, float]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def exported(
    out: Path, path: str, layers: str, merged: bool, more: Mapping[str, Any], task: str = "sst2"
) -> Callable[[Mapping[str, str]], np.ndarray]:
    """Write a folder with random trained numbers; return Samara's probabilities for a row."""
    settings = {"model.path": path, "task": task, "model.max-length": 32, "adapter.layers": layers}
    config = RunConfig.of(settings | dict(more), "test")
    base, known, scorer = load_scorer(config)
    adapter = inject(base, config.adapter, scorer.labels)
    layout = adapter.layout
    numbers = np.random.default_rng(len(layers)).normal(0, 0.4, layout.element_count)
    numbers = numbers.astype(np.float32)
    trained = TrainedModel(config, layout, base.model_id, numbers, "A model.")
    (trained.write_merged if merged else trained.write_peft)(out)
    tokenize = ExampleTokenizer(scorer)
    forward = make_forward(base, known, scorer, tokenize, adapter, config.adapter.damping)
    weights = Perturbations.from_arrays(layout, numbers)

    def answer(row: Mapping[str, str]) -> np.ndarray:
        example = read_rows({**row, known.label_names[0]: known.labels[0][0]}, known)[0].example
        scores = forward.scores(weights, [tokenize(example)])[0, 0].astype(np.float64)
        found: np.ndarray = softmax(scores)
        return found

    return answer


def test_the_code_of_every_form_answers_as_samara_does(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    ours, folders = {}, []
    for index, (family, layers, merged, bias) in enumerate(FORMS):
        out = tmp_path / f"model-{index}"
        more = {"adapter.label-bias": bool(bias)}
        ours[str(out)] = exported(out, str(model_folder(family)), layers, merged, more)
        folders.append(out)
    rows = {"long": LONG, "short": SHORT}
    theirs = answers_without_samara(folders, rows, "-I")  # which starts with nothing loaded
    for folder, answer in ours.items():
        shown = Path(folder, "README.md").read_text()
        for name, row in rows.items():
            found = theirs[folder][name]
            assert list(found) == ["terrible", "great"], shown
            np.testing.assert_allclose([*found.values()], answer(row), atol=2e-4, err_msg=shown)
    # the numbers matter: no two forms answer alike
    answers = [theirs[folder]["short"]["great"] for folder in ours]
    assert len({round(answer, 4) for answer in answers}) == len(answers)


def test_words_of_several_tokens_and_several_fields(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    task = tmp_path / "task.toml"
    task.write_text(
        'name = "pair"\ntext = "{premise} \\"so\\" {claim|hypothesis}"\n'
        'question = " is it so? {word}"\nwords = ["surely not so", "yes"]\nlabels = [0, 1]\n'
        'replace = { claim = { a = "it rains", b = "it is dry" } }\n'
    )
    row = {"premise": "the street is wet", "claim": "b"}
    answer = exported(
        tmp_path / "out", str(model_folder("causal")), "top:1", False, {}, task=str(task)
    )
    found = answers_without_samara([tmp_path / "out"], {"row": row})[str(tmp_path / "out")]["row"]
    assert list(found) == list(load_task(str(task)).words)  # type: ignore[union-attr]
    np.testing.assert_allclose([*found.values()], answer(row), atol=2e-4)


def test_the_code_asks_in_the_form_of_the_run(tmp_path: Path, model_folder: ModelFolder) -> None:
    instruct = shutil.copytree(model_folder("causal"), tmp_path / "instruct")
    template = (
        "{% for m in messages %}the {{ m['role'] }} was {{ m['content'] }} .\n{% endfor %}"
        "{% if add_generation_prompt %}the assistant was {% endif %}"
    )
    (instruct / "chat_template.jinja").write_text(template)
    forms = [("chat", "top:2"), ("chat", "readout:2/3"), ("plain", "top:2"), ("auto", "top:2")]
    ours = {}
    for form, layers in forms:
        out = tmp_path / f"{form}-{layers[:3]}"
        ours[str(out)] = exported(out, str(instruct), layers, False, {"form": form})
    rows = {"long": LONG, "short": {"text": " a warm film "}}
    theirs = answers_without_samara([Path(folder) for folder in ours], rows)
    for folder, answer in ours.items():
        for name, row in rows.items():
            np.testing.assert_allclose([*theirs[folder][name].values()], answer(row), atol=2e-4)
    answers = [theirs[folder]["short"]["great"] for folder in ours]
    assert len({round(answer, 4) for answer in answers}) == len(answers)


def test_a_card_says_which_base_it_is_for(tmp_path: Path, model_folder: ModelFolder) -> None:
    folder = model_folder("causal")
    exported(tmp_path / "out", str(folder), "top:1", False, {})
    card = (tmp_path / "out" / "README.md").read_text()
    import hashlib

    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() in card
    assert "base_model:" not in card
    cached = tmp_path / "hub" / "models--org--small-model" / "snapshots" / "abc"
    assert hub_id_of(str(cached), cached) == "org/small-model"
    assert hub_id_of("org/small-model", folder) == "org/small-model"
    assert hub_id_of(str(folder), folder) == ""
