"""A small exported program and a phone's rows for tests."""

import shutil
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from federations import Settings
from numpy.typing import NDArray

from benchmarks.faults.live_run import LiveRun
from benchmarks.scale.mixed_run import MODEL, TASK, samara
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.phone import export
from samara.devices.phone.export import ANSWER_TOKENS, ProgramShapes, export_program, prepare_model
from samara.devices.phone.lowering import Methods
from samara.devices.phone.manifest import Delegate, Form, PhoneQuantization
from samara.devices.phone.reference_client import runtime
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_calls import ReadoutCalls
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.report import Report
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of
from samara.shared.tasks.label_scores import evaluation_column

SHAPES = ProgramShapes(queries=2, batch=2, sequence=16)
Made = Callable[..., tuple[Settings, Path]]
Pair = tuple[ModelRuntime, ClientData, PhoneLearner]


class NamedRun(NamedTuple):
    """The id of a run and its settings, as a gateway sends them."""

    run_id: bytes
    settings: bytes


def exported(
    settings: dict[str, Any],
    out: Path,
    delegate: Delegate = "portable",
    quantization: PhoneQuantization = "none",
    form: Form = "functional",
    answer_tokens: int = ANSWER_TOKENS,
) -> Path:
    config = RunConfig.of(settings, "test")
    ready = prepare_model(config, quantization, answer_tokens)
    export_program(ready, SHAPES, quantization, delegate, out, form)
    return out


def exported_once(
    settings: Settings,
    file: Path,
    delegate: Delegate | Literal["torch"],
    monkeypatch: pytest.MonkeyPatch,
    quantization: PhoneQuantization = "none",
) -> Path:
    """Export a program unless its file exists; "torch" means a graph that torch runs."""
    if delegate == "torch":
        use_torch_as_runtime(monkeypatch)
    else:
        pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]'")
    if not file.exists():
        named = "xnnpack" if delegate == "torch" else delegate  # torch reads it nowhere
        exported(settings, file, named, quantization)
    return file


def pair_of(settings: Settings, program_file: Path, folder: Path, **changes: Any) -> Pair:
    """A model runtime with a client's data, and a phone with the same model and examples.

    The phone's rows are written to `rows.jsonl` in the folder. The changes apply to its settings.
    """
    runtime, source = load_run(RunConfig.of(settings, "test"))
    runtime.scorer._by_rows = False  # a program has the losses of the whole head
    data, rows = source.share_of(0, 3), folder / "rows.jsonl"
    rows.write_text(examples_as_jsonl(data))
    program = load_program(program_file)
    program.check()
    examples = read_examples(rows, program.manifest)
    return runtime, data, PhoneLearner(program, examples, **changes)


def run_of(trainer: PhoneLearner) -> NamedRun:
    """A run in which a phone with this program takes part, with the global model alone."""
    config = RunConfig.of(
        {"method": "global", "personal.rounds": 0, "differences": "central"}, "test"
    )
    return NamedRun(run_id_of(config, trainer.layout, trainer.model_id), identity_bytes(config))


def calls_of(phone: PhoneLearner) -> ReadoutCalls:
    assert isinstance(phone._calls, ReadoutCalls)
    return phone._calls


def splits_of(phone: PhoneLearner) -> list[dict[str, Any]]:
    """The examples of a phone with a readout, by split, in the form that the page receives."""
    splits = []
    for split in Split:
        labels = phone.score(None, split).labels
        scores, features = calls_of(phone).numbers(split, np.arange(len(labels)))
        numbers = {"scores": scores.ravel().tolist(), "features": features.ravel().tolist()}
        splits.append(numbers | {"labels": labels.tolist(), "hash": phone.data_hash(split)})
    return splits


_graphs: list[dict[str, Any]] = []


def use_torch_as_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make programs graphs of `torch.export`, which torch runs if ExecuTorch is missing."""
    monkeypatch.setattr(export, "lower_to_executorch", _lowered)
    monkeypatch.setattr(runtime, "require_executorch", lambda: None)
    monkeypatch.setattr(runtime, "load_module", _loaded)
    monkeypatch.setattr(runtime, "run_method", _outputs)


def _lowered(methods: Methods, *_: Any) -> bytes:
    with torch.no_grad():
        _graphs.append({name: method.export().module() for name, method in methods.items()})
    return f"graphs {len(_graphs)} of this process".encode()


def _loaded(file: Path) -> dict[str, Any]:
    return _graphs[int(file.read_bytes().split()[1]) - 1]


def _outputs(module: dict[str, Any], method: str, inputs: Sequence[NDArray[Any]]) -> list[Any]:
    with torch.no_grad():
        return list(module[method](*map(torch.from_numpy, map(np.ascontiguousarray, inputs))))


def assert_same_report(report: Report, expected: Report, tolerance: float = 1e-5) -> None:
    """Check that a phone's report equals a board's up to rounding; the loss has a tolerance."""
    assert report.token == expected.token
    assert report.examples == expected.examples
    assert report.summed_steps == expected.summed_steps
    assert report.mean_loss == pytest.approx(expected.mean_loss, abs=tolerance)
    np.testing.assert_allclose(report.gradients, expected.gradients, rtol=1e-3, atol=1e-3)


def assert_same_evaluation(
    phone: PhoneLearner, runtime: ModelRuntime, data: ClientData, state: NDArray[np.int64]
) -> None:
    """Check that a phone evaluates the test examples like a board, up to rounding."""
    test = data.tokenized(Split.TEST)
    whole = evaluation_column("global", runtime.scores(state, test.prompts), test.labels)
    column = evaluation_column("global", *phone.score(state, Split.TEST))
    np.testing.assert_array_equal(column.counts, whole.counts)
    assert column.mean_loss == pytest.approx(whole.mean_loss, abs=1e-5)


BOARD = "jetson"


PHONES = ("phone-fp32", "phone-int8", "phone-8da4w")
"""Names of the data that each phone has; all have the same program."""


def make_phones(live: LiveRun, data: dict[str, Path], names: Sequence[str] = PHONES) -> None:
    """Make program, rows and keys of phones by commands; the reports have projected gradients."""
    folder = live.folder
    (folder / "phones").mkdir()
    model = ("--model", MODEL, "--task", TASK)
    shapes = ("--batch", "16", "--seq", "32", "--delegate", "portable")
    shapes += ("--set", "differences=central")
    samara(folder, "phone", "export", *model, *shapes, "--out", f"{names[0]}.pte")
    for name in names:
        for suffix in (".pte", ".json"):
            if name != names[0]:
                shutil.copy(folder / f"{names[0]}{suffix}", folder / f"{name}{suffix}")
        rows = ("--data", str(data[name]), "--program", f"{name}.pte", "--out", f"{name}.jsonl")
        samara(folder, "phone", "rows", *model, *rows)
        public = folder / "phones" / f"{name}.pem"
        public.write_text(samara(folder, "phone", "key", f"{name}.key"))
        samara(folder, "server", "keys", "create", name, str(public), "--run", str(live.run))


def as_client(learner: PhoneLearner, client: int) -> PhoneLearner:
    """The same program and examples, with the index of another client."""
    other = copy(learner)
    other.client = client
    return other


def phone_of(learner: PhoneLearner, client: int, home: Path, *limits: Any, **more: Any) -> Phone:
    return Phone(as_client(learner, client), home, *limits, **more)
