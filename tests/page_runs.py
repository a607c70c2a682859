"""Runs for the phone page's client, and the reference phone in them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from federations import Settings, config_of
from helpers import History, delta_of, history_of, instruction_with
from phones import exported, phone_of, splits_of, use_torch_as_runtime

from samara.client.limits.answer_limits import LIVE_LEAST_BATCH, AnswerLimits
from samara.client.training.model_runtime import load_run
from samara.devices.phone.manifest import manifest_file
from samara.devices.phone.reference_client.examples import read_examples
from samara.devices.phone.reference_client.phone import Phone
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split
from samara.shared.settings.runs import identity_bytes, run_id_of

CLIENT = 0


class PageRun(NamedTuple):
    """A run with a history, and with the program and examples of the page's phone."""

    settings: bytes
    run_id: bytes
    history: History
    trainer: PhoneLearner
    manifest: str

    def train(self, number: int, **changes: Any) -> bytes:
        """The train instruction of a round."""
        layout, start = self.history.layout, self.history.digests[number - 1]
        own = {"run_id": self.run_id, "round": number, "steps": 2, "queries": 4, "batch": 4}
        named = {"layout_hash": layout.hash, "start_digest": start}
        return instruction_with(**(own | named | changes)).encode()

    def evaluate(self, number: int, split: Split) -> bytes:
        """The evaluate instruction after a round."""
        layout, end = self.history.layout, self.history.digests[number]
        return EvaluateInstruction(self.run_id, number, 0, split, layout.hash, end).encode()

    def task(self, kind: int, frame: bytes, tail: bytes = b"", **more: Any) -> dict[str, Any]:
        """A task of the gateway in the form that the page's phone receives."""
        given = {"kind": kind, "instruction": frame.hex(), "tail": tail.hex()}
        return given | {"settings": self.settings.decode()} | more

    def case(self, tasks: list[Any], **more: Any) -> list[Any]:
        """A test case for the page's phone."""
        splits = splits_of(self.trainer)
        given = {"manifest": self.manifest, "client": CLIENT, "splits": splits, "tasks": tasks}
        return ["phone", given | more]

    def reference(self, home: Path) -> Phone:
        """The reference phone."""
        return phone_of(self.trainer, CLIENT, home, AnswerLimits(least_batch=LIVE_LEAST_BATCH))


def page_run_of(
    settings: Settings,
    programs: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    **changes: Any,
) -> PageRun:
    """Make a run with changes to its settings.

    The program is exported once into `programs`. The phone's rows are written to `folder`.
    """
    own = {"adapter.layers": "readout", "personal.rounds": 3, "rounds": 4, "queries": 4}
    config = config_of(settings | own | {"evaluate.best": False}, **changes)
    use_torch_as_runtime(monkeypatch)
    file = programs / f"{config.adapter.distribution}-{config.adapter.label_bias}.pte"
    if not file.exists():
        exported(config.flat(), file)
    rows = folder / "rows.jsonl"
    rows.write_text(examples_as_jsonl(load_run(config).data.share_of(CLIENT, 3)))
    program = load_program(file)
    trainer = PhoneLearner(program, read_examples(rows, program.manifest))
    # what a browser needs of it is the same for ONNX Runtime
    manifest = json.loads(manifest_file(file).read_text())
    manifest |= {"version": 3, "runtime": "onnx", "delegate": "none"}
    run_id = run_id_of(config, trainer.layout, trainer.model_id)
    deltas = [delta_of(number) for number in range(1, 5)]
    history = history_of(deltas, trainer.layout, run_id)
    return PageRun(identity_bytes(config), run_id, history, trainer, json.dumps(manifest))
