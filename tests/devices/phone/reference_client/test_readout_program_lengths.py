"""Calls of a readout's program are only as long as their longest example; results are equal."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings
from helpers import instruction_with
from phones import (
    SHAPES,
    Made,
    Pair,
    assert_same_evaluation,
    assert_same_report,
    calls_of,
    exported_once,
    pair_of,
)

from samara.client.training.local_steps import take_local_steps
from samara.devices.phone.export import LEAST_TOKENS
from samara.devices.phone.manifest import MANIFEST_VERSION, Manifest, manifest_file
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import ReadoutProgram, load_program
from samara.shared.errors import CodeError, DeviceError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.replay import zero_state

LONG_WORDS = """
name = "moods"
text = "{text}"
question = " it was {word} ."
words = ["very good", "bad"]
labels = [1, 0]
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs, each exported once."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def made(
    model_folder: Callable[[str], Path],
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Made:
    """Function that makes settings of a run with a readout, and its program."""

    def make(
        family: str = "causal", delegate: Any = "torch", words: str = "one token"
    ) -> tuple[Settings, Path]:
        task, file = programs / "moods.toml", programs / f"{family} {delegate} {words}.pte"
        task.write_text(LONG_WORDS)
        data = programs / "data.jsonl"
        rows = [{"text": f"film {i} {'very ' * (i % 5)}good", "label": i % 2} for i in range(60)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings: Settings = {
            "model.path": str(model_folder(family)),
            "model.max-length": SHAPES.sequence if words == "one token" else 64,
            "data.path": str(data),
            "data.clients": 3,
            "data.partition": "iid",
            "task": "sst2" if words == "one token" else str(task),
            "threads": 1,
        }
        return settings, exported_once(settings, file, delegate, monkeypatch)

    return make


@pytest.fixture
def pair(made: Made, tmp_path: Path) -> Callable[..., Pair]:
    """A model runtime with a client's data, and a phone with the same model and examples."""

    def make(family: str = "causal", delegate: str = "torch", words: str = "one token") -> Pair:
        return pair_of(*made(family, delegate, words), tmp_path)

    return make


@pytest.mark.parametrize(
    ("family", "delegate", "words"),
    [
        ("causal", "torch", "one token"),
        ("encoder", "torch", "one token"),
        ("causal", "torch", "several tokens"),
        pytest.param("causal", "portable", "one token", marks=pytest.mark.exhaustive),
        pytest.param("encoder", "xnnpack", "one token", marks=pytest.mark.exhaustive),
        pytest.param("causal", "xnnpack", "several tokens", marks=pytest.mark.exhaustive),
    ],
)
def test_a_call_is_as_long_as_its_longest_example(
    pair: Any, family: str, delegate: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, data, phone = pair(family, delegate, words)
    given: list[tuple[int, ...]] = []
    plain = ReadoutProgram.represent

    def represent(self: ReadoutProgram, ids: Any, positions: Any) -> Any:
        given.append(ids.shape)
        return plain(self, ids, positions)

    monkeypatch.setattr(ReadoutProgram, "represent", represent)
    state = zero_state(runtime.layout.size)
    assert_same_evaluation(phone, runtime, data, state)
    prompts = data.tokenized(Split.TEST).prompts
    last = words == "several tokens"  # it predicts nothing, and the eager model does not read it
    lengths = sorted(max(map(len, prompt.sequences)) + last for prompt in prompts)
    starts = range(0, len(lengths), SHAPES.batch)
    longest = [max(lengths[start : start + SHAPES.batch]) for start in starts]
    assert [(shape[0], shape[-1]) for shape in given] == [(SHAPES.batch, n) for n in longest]
    assert min(lengths) < max(lengths)
    passed = sum(SHAPES.batch * length for length in longest)
    assert calls_of(phone).token_passes == passed < len(longest) * SHAPES.batch * SHAPES.sequence
    instruction = instruction_with(
        steps=2, queries=3, batch=7, layout_hash=runtime.layout.hash, learning_rate=0.1
    )
    report = take_local_steps(runtime, data, instruction, state)
    assert_same_report(phone.take_steps(instruction, state), report)


def changed(made: Made, folder: Path, **entries: Any) -> Path:
    """Copy a program and change entries of its manifest; None removes an entry."""
    file, original = folder / "other.pte", made()[1]
    file.write_bytes(original.read_bytes())
    text = json.loads(manifest_file(original).read_text()) | entries
    kept = {key: value for key, value in text.items() if value is not None}
    manifest_file(file).write_text(json.dumps(kept))
    return file


def test_a_program_of_one_length_is_filled_up(pair: Any, made: Made, tmp_path: Path) -> None:
    runtime, data, _ = pair()
    assert Manifest.read(made()[1]).least_sequence == LEAST_TOKENS
    program = load_program(changed(made, tmp_path, least_sequence=None))
    program.check()
    phone = PhoneLearner(program, read_examples(tmp_path / "rows.jsonl", program.manifest))
    assert_same_evaluation(phone, runtime, data, zero_state(runtime.layout.size))
    calls = calls_of(phone)
    count = -(-calls.example_passes // SHAPES.batch)
    assert calls.token_passes == count * SHAPES.batch * SHAPES.sequence


@pytest.mark.parametrize("least", [1, SHAPES.sequence, -1, 4.0, "4", True, [4]])
def test_a_manifest_with_other_lengths_is_refused(made: Made, tmp_path: Path, least: Any) -> None:
    file = changed(made, tmp_path, least_sequence=least)
    with pytest.raises(DeviceError, match=r"other\.json: .*export the program again"):
        Manifest.read(file)


def test_a_phone_that_is_older_than_its_program_says_so(made: Made, tmp_path: Path) -> None:
    text = json.loads(manifest_file(made()[1]).read_text())
    assert text["version"] == 2
    newer = rf"version {MANIFEST_VERSION + 1}, .*too old .*up to version {MANIFEST_VERSION}; update"
    with pytest.raises(CodeError, match=newer):
        Manifest.read(changed(made, tmp_path, version=MANIFEST_VERSION + 1, unheard_of=1))
    for version in (0, -1, 2.0, "2", True, None):
        with pytest.raises(DeviceError, match="not a manifest"):
            Manifest.read(changed(made, tmp_path, version=version))
    # what a phone of the first version can run, it reads
    one = replace(Manifest.read(made()[1]), least_sequence=0)
    one.write(changed(made, tmp_path))
    assert json.loads((tmp_path / "other.json").read_text())["version"] == 1
    assert Manifest.read(tmp_path / "other.pte") == one


def test_a_program_that_fails_in_short_calls_is_found(made: Made) -> None:
    program = load_program(made()[1])
    assert isinstance(program, ReadoutProgram)
    plain = program.represent

    def represent(ids: Any, positions: Any) -> Any:
        scores, features = plain(ids, positions)
        return scores, features + np.float32(ids.shape[-1] < SHAPES.sequence)

    program.represent = represent  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="losses differ"):
        program.check()
