"""The export of a model with its adapter as a program for phones."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from devices.phone.lowering import lower_to_executorch
from devices.phone.manifest import Delegate, Form, Manifest, PhoneQuantization, SelfCheck
from devices.phone.program import AlgorithmOneModule, ReplayModule, ScoresModule, TrainStepModule
from devices.phone.quantization import quantize_to_4_bit, use_batched_products
from shared.directions import prefix_tokens, query_seeds
from shared.errors import ConfigError, DeviceError
from shared.features import check_features, kind_of
from shared.files import write_durably
from shared.layout import Layout
from shared.model.loading import BaseModel, load_base_model
from shared.model.lora_fa import inject
from shared.model.scorers import CausalScorer
from shared.replay import digest, zero_state
from shared.replay_numpy import NumpyBackend
from shared.sections import AdapterSettings
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ClassificationTask

REPLAY_SEEDS = 16
"""Number of directions of one call of ``replay``."""
CHECK_EPSILON = 0.01


@dataclass(frozen=True)
class ProgramShapes:
    """The shapes that are fixed when a program is exported.

    Attributes:
        queries: q, directions of a call.
        batch: B, examples of a call.
        sequence: S, tokens of an example.
    """

    queries: int
    batch: int
    sequence: int


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model with adapter, ready for export.

    Attributes:
        base: base model with the adapter in it.
        layout: layout of the adapter.
        scores: module that computes scores and losses with the weights.
        words: label words of the task.
    """

    base: BaseModel
    layout: Layout
    scores: ScoresModule
    words: tuple[str, ...]


def prepare_model(
    model: str, task_name: str, adapter: AdapterSettings, quantization: PhoneQuantization
) -> PreparedModel:
    """Load a model, quantize it and insert the adapter.

    Raises:
        SamaraError: if model, task or adapter cannot be used; a program needs a causal model and
            label words of one token each.
    """
    task = load_task(task_name)
    label_bias = "trained" if adapter.label_bias else "none"
    features = {"clients": "phone", "task": kind_of(task), "label bias": label_bias}
    features["basis"] = "informed" if adapter.basis else "none"
    check_features(features, f"task {task.name!r}")
    base = load_base_model(model, quantization="int8" if quantization == "int8" else "none")
    if base.family != "causal" or not isinstance(task, ClassificationTask):
        raise ConfigError(
            f"{base.folder} with task {task.name}: a phone's program needs a causal model and a "
            "classification task; choose others"
        )
    tokens = CausalScorer(base, task, base.context).label_tokens
    if any(len(word) != 1 for word in tokens):
        raise ConfigError(
            f"task {task.name}: a label word has several tokens in {base.folder}; choose label "
            "words of one token"
        )
    injected = inject(base, adapter, len(tokens))
    scores = ScoresModule(base, injected, [word[0] for word in tokens])
    if quantization == "int8":
        use_batched_products(base)
    return PreparedModel(base, injected.layout, scores, task.words)


def export_program(
    ready: PreparedModel,
    shapes: ProgramShapes,
    quantization: PhoneQuantization,
    delegate: Delegate,
    out: Path,
    form: Form = "functional",
) -> Manifest:
    """Write a program with methods ``forward`` and ``replay``, and its manifest.

    Args:
        ready: model from `prepare_model`.
        shapes: shapes of a call.
        quantization: quantization that the model was prepared with.
        delegate: backend of the float part.
        out: program file; the manifest is written beside it, as JSON.
        form: ``algorithm-1`` has the one method ``forward`` of `AlgorithmOneModule`.

    Raises:
        DeviceError: if ExecuTorch is missing or a file cannot be written.
    """
    if shapes.sequence > ready.base.context:
        raise ConfigError(
            f"--seq {shapes.sequence}: {ready.base.folder} reads at most {ready.base.context} "
            "tokens"
        )
    if quantization == "8da4w" and delegate == "portable":
        raise ConfigError("--quantization 8da4w is only supported with --delegate xnnpack")
    check = _check(ready, shapes)
    if quantization == "8da4w":
        quantize_to_4_bit(ready.base)
    make = _algorithm_1 if form == "algorithm-1" else _functional
    program = make(ready, check, delegate, quantization == "8da4w")
    manifest = Manifest(
        program_sha256=hashlib.sha256(program).hexdigest(),
        model_id=ready.base.model_id.hex(),
        layout=ready.layout.to_json(),
        layout_hash=ready.layout.hash.hex(),
        queries=shapes.queries,
        batch=shapes.batch,
        sequence=shapes.sequence,
        replay_seeds=REPLAY_SEEDS,
        words=list(ready.words),
        word_tokens=ready.scores.words.tolist(),
        quantization=quantization,
        delegate=delegate,
        form=form,
        check=check,
    )
    try:
        write_durably(out, program)
    except OSError as error:
        raise DeviceError(f"{out}: cannot be written: {error.strerror}") from error
    manifest.write(out)
    return manifest


def _functional(
    ready: PreparedModel, check: SelfCheck, delegate: Delegate, quantized_inputs: bool
) -> bytes:
    unused = torch.zeros(REPLAY_SEEDS, dtype=torch.int64)
    state = zero_state(ready.layout.size)
    step = TrainStepModule(ready.scores, ready.layout), step_inputs(state, check)
    replay = ReplayModule(ready.layout), (torch.from_numpy(state), unused, unused.clone())
    methods = {"forward": step, "replay": replay}
    return lower_to_executorch(methods, delegate, quantized_inputs=quantized_inputs)


def _algorithm_1(
    ready: PreparedModel, check: SelfCheck, delegate: Delegate, quantized_inputs: bool
) -> bytes:
    queries = len(check.seeds)
    _, *batch, _, _, seeds, epsilon = step_inputs(zero_state(ready.layout.size), check)
    inputs = (*batch, torch.zeros(queries), torch.zeros(1), epsilon, seeds)
    module = AlgorithmOneModule(ready.scores, ready.layout, queries)
    return lower_to_executorch({"forward": (module, inputs)}, delegate, ("b",), quantized_inputs)


def step_inputs(state: NDArray[np.int64], check: SelfCheck) -> tuple[torch.Tensor, ...]:
    """Return the inputs of ``forward`` for the check's batch at a state, with coefficients of 0."""
    seeds = np.array(check.seeds, np.uint64).view(np.int64)
    arrays = (
        state,
        np.array(check.ids),
        np.array(check.positions),
        np.array(check.labels),
        seeds,
        np.zeros_like(seeds),
        seeds,
        np.array([check.epsilon], np.float32),
    )
    return tuple(torch.from_numpy(array.copy()) for array in arrays)


def _check(ready: PreparedModel, shapes: ProgramShapes) -> SelfCheck:
    """Make a self-check of random tokens and directions, with the eager modules' results."""
    vocabulary = int(ready.base.network.config.vocab_size)
    ids = prefix_tokens(0, shapes.batch * shapes.sequence, vocabulary)
    rows = np.arange(shapes.batch)
    seeds = query_seeds(0, 0, 1, shapes.queries)[0]
    # of both signs, and wide enough for products beyond 2⁵³
    coefficients = (np.arange(shapes.queries) * 2 - 1) * np.int64(2**40 + 12345)
    state = zero_state(ready.layout.size)
    NumpyBackend().fold(state, seeds, coefficients, ready.layout.distribution)
    check = SelfCheck(
        ids=ids.reshape(shapes.batch, -1).tolist(),
        positions=((rows * 7 + shapes.sequence - 1) % shapes.sequence).tolist(),
        labels=(rows % len(ready.words)).tolist(),
        seeds=seeds.tolist(),
        coefficients=coefficients.tolist(),
        epsilon=CHECK_EPSILON,
        losses=[],
        digest=digest(ready.layout.hash, state).hex(),
    )
    with torch.inference_mode():
        step = TrainStepModule(ready.scores, ready.layout)
        _, losses, _ = step(*step_inputs(zero_state(ready.layout.size), check))
    return replace(check, losses=losses.tolist())
