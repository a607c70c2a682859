"""A language model below its last block in a browser and a board, which read chats: one digest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from browsers import chromium
from built_page import built_page
from language_browser import measure, work_of

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")
TEMPLATE = (
    "<s>{% for m in messages %}the {{ m['role'] }} was {{ m['content'] }} .\n{% endfor %}"
    "{% if add_generation_prompt %}the assistant was {% endif %}"
)
TASK = """
name = "films"
text = "{text}"
question = " It was {word}."
words = ["terrible", "great"]
form = "chat"
"""


def test_a_page_that_goes_back_to_the_best_round_ends_in_the_boards_state(
    model_folder: Callable[..., Path], data_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chromium()
    built_page()
    folder: Path = tmp_path_factory.mktemp("b")  # short: sockets lie in it
    model = shutil.copytree(model_folder("causal", 12), folder / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "films.toml").write_text(TASK)
    (folder / "data").mkdir()
    for split in ("train", "validation", "test"):
        shutil.copy(data_file, folder / "data" / f"{split}.jsonl")
    export = ("--quantization", "int8", "--batch", "4", "--seq", "40")
    work = work_of(str(model), str(folder / "films.toml"), folder / "data", export)
    found = measure(folder, work, {"rounds": 2, "learning-rate": 1000.0})
    print(json.dumps(found))
    assert found["round"] == 3  # the best one once more
    assert found["shows"] == "Round 2 of 2"
    assert found["before"]["examples"] == 130
