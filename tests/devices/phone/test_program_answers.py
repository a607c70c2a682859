"""Programs for answers of several tokens: label words of more than one token, and choices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings
from helpers import instruction_with
from personalizers import runtime_personalizer
from phones import (
    SHAPES,
    assert_same_evaluation,
    assert_same_report,
    exported,
    use_torch_as_runtime,
)

from samara.client.personal.personalizer import Personalizer
from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.phone.export import ANSWER_TOKENS, KINDS, prepare_model
from samara.devices.phone.manifest import Delegate, Manifest, manifest_file
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl, write_examples
from samara.shared.errors import ConfigError, DataError, DeviceError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import STATE_BITS, to_float32
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.storage.files import check_requested
from samara.shared.tasks.profiled_loss import PROFILED

LONG_WORDS = """
name = "moods"
text = "{text}"
question = " it was {word} ."
words = ["very good", "bad", "not very bad"]
labels = [1, 0, 2]
"""
CHOICE = """
kind = "choice"
name = "endings"
text = "{text} it was {candidate}"
candidates = ["{one}", "{other}"]
"""
PHRASES = ("good", "very bad", "not very good", "warm", "a cold day")
Pair = tuple[ModelRuntime, ClientData, PhoneLearner, RunConfig]


@pytest.fixture
def made(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Settings of a run with one of the tasks, on rows of three users."""

    def make(kind: str, layers: str, **changes: Any) -> RunConfig:
        task, data = tmp_path / f"{kind}.toml", tmp_path / f"{kind}.jsonl"
        task.write_text(CHOICE if kind == "choice" else LONG_WORDS)
        rows = [
            {
                "text": f"the {('film', 'walk', 'day')[i % 3]} was {PHRASES[i % 4]}",
                "one": PHRASES[i % 5],
                "other": PHRASES[(i + 2) % 5],
                "label": i % (2 if kind == "choice" else 3),
                "user": f"user{i % 3}",
            }
            for i in range(90)
        ]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        own = {"task": str(task), "data.path": str(data), "adapter.layers": layers}
        limits = {"model.max-length": 64}  # random texts for a damping are longer than the rows
        use_torch_as_runtime(monkeypatch)
        return RunConfig.of(settings | own | limits | changes, "test")

    return make


@pytest.fixture(scope="module")
def program_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Programs of the tasks, each exported once; tests only read them."""
    folder = tmp_path_factory.mktemp("programs")

    def program(config: RunConfig, delegate: Delegate = "portable") -> Path:
        kind = Path(config.task).stem
        file = folder / f"{kind}-{config.adapter.layers.replace('/', '-')}-{delegate}.pte"
        if not file.exists():
            tokens = 3 if kind == "choice" else ANSWER_TOKENS  # of words, theirs alone count
            exported(config.flat(), file, delegate, answer_tokens=tokens)
        return file

    return program


def pair_of(config: RunConfig, file: Path, folder: Path) -> Pair:
    runtime, source = load_run(config)
    data = source.share_of(0, 3)
    rows = folder / "rows.jsonl"
    rows.write_text(examples_as_jsonl(data))
    program = load_program(file)
    assert program.check() < 1e-4
    return runtime, data, PhoneLearner(program, read_examples(rows, program.manifest)), config


@pytest.mark.parametrize("kind", ["words", "choice"])
@pytest.mark.parametrize("layers", ["readout", "readout:2/3", "top:2"])
def test_a_phone_scores_trains_and_personalizes_as_an_ordinary_client(
    made: Callable[..., RunConfig],
    program_of: Callable[..., Path],
    tmp_path: Path,
    kind: str,
    layers: str,
) -> None:
    private = {"personal.rounds": 2, "personal.learning-rate": 0.1, "out": str(tmp_path / "board")}
    config = made(kind, layers, **private)
    runtime, data, phone, _ = pair_of(config, program_of(config), tmp_path)
    assert phone.layout.hash == runtime.layout.hash
    values = np.random.default_rng(1).normal(0, 0.1, runtime.layout.size)
    state = (values * 2.0**STATE_BITS).astype(np.int64)
    for split in Split:
        found = phone.score(state, split).scores
        np.testing.assert_allclose(
            found, runtime.scores(state, data.tokenized(split).prompts), atol=2e-5
        )
    # neither queries nor rows are multiples of the program's
    instruction = instruction_with(
        steps=3, queries=3, batch=5, layout_hash=runtime.layout.hash, curvature_every=2
    )
    expected = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), expected)
    assert_same_evaluation(phone, runtime, data, state)
    run_id = run_id_of(config, runtime.layout, runtime.model_id)
    board, found = (
        personalizer.recorded_private_state(state)
        for personalizer in (
            runtime_personalizer(runtime, data, config, run_id),
            Personalizer(phone, config.terms, run_id, tmp_path / "phone", 1000),
        )
    )
    difference = np.linalg.norm(to_float32(found - board)) / np.linalg.norm(to_float32(board))
    assert difference < 2e-3


def test_a_phone_trains_the_profiled_loss_inside_the_model(
    made: Callable[..., RunConfig], program_of: Callable[..., Path], tmp_path: Path
) -> None:
    config = made("words", "top:2", objective=PROFILED, **{"adapter.label-bias": False})
    runtime, data, phone, _ = pair_of(config, program_of(config), tmp_path)
    values = np.random.default_rng(1).normal(0, 0.1, runtime.layout.size)
    state = (values * 2.0**STATE_BITS).astype(np.int64)
    # b is fitted on a batch that takes several calls of the program
    asked = {"steps": 2, "queries": 3, "batch": 5, "curvature_every": 2, "is_profiled": True}
    instruction = instruction_with(layout_hash=runtime.layout.hash, **asked)
    expected = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), expected)


@pytest.mark.parametrize("layers", ["readout", "readout:2/3", "top:1"])
@pytest.mark.parametrize("delegate", ["portable", "xnnpack"])
@pytest.mark.exhaustive
def test_executorch_runs_programs_of_candidates(
    made: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: str,
    delegate: Delegate,
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    config = made("choice", layers)
    monkeypatch.undo()
    file = exported(config.flat(), tmp_path / "model.pte", delegate, answer_tokens=3)
    check_requested(file, KINDS["executorch"])  # an export replaces its own file
    runtime, data, phone, _ = pair_of(config, file, tmp_path)
    state = np.zeros(runtime.layout.size, np.int64)
    instruction = instruction_with(
        steps=2, queries=3, batch=5, layout_hash=runtime.layout.hash, curvature_every=0
    )
    expected = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), expected)
    assert_same_evaluation(phone, runtime, data, state)


def test_rows_name_the_tokens_of_every_candidate(
    made: Callable[..., RunConfig], program_of: Callable[..., Path], tmp_path: Path
) -> None:
    config = made("choice", "readout")
    file = program_of(config)
    manifest, out = Manifest.read(file), tmp_path / "rows.jsonl"
    assert (manifest.words, manifest.word_tokens) == (["{one}", "{other}"], [])
    assert (manifest.answer_tokens, manifest.row_shape) == (3, (2, SHAPES.sequence))
    assert write_examples(config, file, None, out) == 90
    row = json.loads(out.read_text().splitlines()[0])
    assert len(row["candidates"]) == 2
    for broken, problem in (
        ({"candidates": [[1]]}, "must be 2 lists"),
        ({"candidates": [[1], []]}, "must have 1 to 3 tokens"),
        ({"candidates": [[1], [1, 2, 3, 4]]}, "the longest has 4"),
        ({"candidates": [[1], [-1]]}, "list of token ids"),
        ({"ids": [1] * SHAPES.sequence}, "the program accepts 1 to"),
    ):
        out.write_text(json.dumps(row | {"split": "train"} | broken) + "\n")
        with pytest.raises(DataError, match=problem):
            read_examples(out, manifest)


def test_candidates_that_are_too_long_are_named_with_the_remedy(
    made: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = made("choice", "readout")
    file = exported(config.flat(), tmp_path / "model.pte", answer_tokens=2)
    with pytest.raises(DataError, match="export it with --answer-tokens 3"):
        write_examples(config, file, None, tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match="raise --seq"):
        exported(config.flat(), tmp_path / "other.pte", answer_tokens=SHAPES.sequence)


def test_a_manifest_of_other_candidates_is_refused(
    made: Callable[..., RunConfig], program_of: Callable[..., Path], tmp_path: Path
) -> None:
    text = json.loads(manifest_file(program_of(made("words", "top:2"))).read_text())
    file = tmp_path / "model.pte"
    assert text["answer_tokens"] == 3
    for change in ({"answer_tokens": 0}, {"answer_tokens": SHAPES.sequence}, {"words": ["a", "b"]}):
        manifest_file(file).write_text(json.dumps(text | change))
        with pytest.raises(DeviceError, match="contradict each other"):
            Manifest.read(file)


def test_what_phones_cannot_answer_is_refused(
    made: Callable[..., RunConfig], model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    task = tmp_path / "answers.toml"
    task.write_text('kind = "generation"\nname = "qa"\ntext = "{text} it was {answer} ."\n')
    config = made("words", "top:1", task=str(task))
    with pytest.raises(ConfigError, match="task generation"):
        prepare_model(config, "none")
