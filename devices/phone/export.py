"""The export of a model with its adapter as a program for phones."""

import base64
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client.forward.body import PerturbedBody
from devices.phone.lowering import Methods, lower_to_executorch
from devices.phone.manifest import Delegate, Form, Manifest, PhoneQuantization, SelfCheck
from devices.phone.program import AlgorithmOneModule, ReplayModule, ScoresModule, TrainStepModule
from devices.phone.quantization import quantize_to_4_bit, use_batched_products
from devices.phone.readout_export import ReadoutParts
from shared.config import RunConfig
from shared.directions import prefix_tokens, query_seeds
from shared.errors import ConfigError, DeviceError
from shared.features import check_features, kind_of
from shared.files import write_durably
from shared.layout import Layout
from shared.model.loading import BaseModel, load_base_model
from shared.model.lora_fa import inject
from shared.model.scorers import CausalScorer, EncoderScorer, scorer_for
from shared.replay import digest, zero_state
from shared.replay_numpy import NumpyBackend
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ClassificationTask

REPLAY_SEEDS = 16
"""Number of directions of one call of ``replay``, or of a readout's ``directions``."""
CHECK_EPSILON, READOUT_CHECK_EPSILON = 0.01, 1.0
"""ε of the self-checks. Adapters are compared by their losses, which the whole model decides; at
a small ε those of a readout would say nothing of its features."""


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
        parts: module that computes scores and losses with the weights, or the readout.
        words: label words of the task.
        word_tokens: token of each label word; empty for a sentence encoder.
        start: content of the file of the adapter's start; empty without one.
    """

    base: BaseModel
    layout: Layout
    parts: ScoresModule | ReadoutParts
    words: tuple[str, ...]
    word_tokens: tuple[int, ...]
    start: bytes = b""


def prepare_model(config: RunConfig, quantization: PhoneQuantization) -> PreparedModel:
    """Load a model, quantize it and insert the adapter; measure a readout's damping.

    Args:
        config: settings with model, task and adapter.
        quantization: quantization of the linear layers in the blocks.

    Raises:
        SamaraError: if model, task or adapter cannot be used. Adapters inside the model need a
            causal model, a readout a causal model or a sentence encoder; label words of a causal
            model must be of one token each.
    """
    task = load_task(config.task)
    check_features(
        {"clients": "phone", "engine": "flower", "task": kind_of(task)} | config.features,
        f"task {task.name!r}",
    )
    base = load_base_model(
        config.model.path, quantization="int8" if quantization == "int8" else "none"
    )
    families = ("causal", "encoder") if config.adapter.has_readout else ("causal",)
    if base.family not in families or not isinstance(task, ClassificationTask):
        raise ConfigError(
            f"{base.folder} with task {task.name}: a phone's program with adapter.layers = "
            f"{config.adapter.layers} needs a model of the family {' or '.join(families)} and a "
            "classification task; choose others"
        )
    with torch.no_grad():
        scorer = scorer_for(base, task, config.model.max_length, PerturbedBody(base, 0))
    assert isinstance(scorer, CausalScorer | EncoderScorer)
    words = scorer.label_tokens if isinstance(scorer, CausalScorer) else []
    if any(len(word) != 1 for word in words):
        raise ConfigError(
            f"task {task.name}: a label word has several tokens in {base.folder}; choose label "
            "words of one token"
        )
    tokens = tuple(word[0] for word in words)
    injected = inject(base, config.adapter, scorer.labels)
    parts: ScoresModule | ReadoutParts
    if config.adapter.has_readout:
        parts = ReadoutParts(base, task, scorer, config.adapter.damping, injected.layout)
    else:
        parts = ScoresModule(base, injected, list(tokens))
    if quantization == "int8":
        use_batched_products(base)
    start = injected.start.encode() if injected.start else b""
    return PreparedModel(base, injected.layout, parts, task.words, tokens, start)


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
    parts = ready.parts
    if form == "algorithm-1" and isinstance(parts, ReadoutParts):
        raise ConfigError(
            "--form algorithm-1 keeps perturbed adapters inside the model; export functional, or "
            "set adapter.layers to top:1"
        )
    if form == "algorithm-1" and ready.start:
        raise ConfigError(
            "--form algorithm-1 begins with the base model; export functional, or leave "
            "adapter.start empty"
        )
    if quantization == "8da4w":
        quantize_to_4_bit(ready.base)
    check = _check(ready, shapes)
    if isinstance(parts, ReadoutParts):
        methods = parts.methods(check, REPLAY_SEEDS)
    elif form == "algorithm-1":
        methods = _algorithm_1(parts, ready.layout, check)
    else:
        methods = _functional(parts, ready.layout, check)
    initialized = ("b",) if form == "algorithm-1" else ()
    program = lower_to_executorch(methods, delegate, initialized, quantization == "8da4w")
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
        word_tokens=list(ready.word_tokens),
        quantization=quantization,
        delegate=delegate,
        form=form,
        check=check,
        readout=parts.description if isinstance(parts, ReadoutParts) else None,
        start=base64.b64encode(ready.start).decode(),
    )
    try:
        write_durably(out, program)
    except OSError as error:
        raise DeviceError(f"{out}: cannot be written: {error.strerror}") from error
    manifest.write(out)
    return manifest


def _functional(scores: ScoresModule, layout: Layout, check: SelfCheck) -> Methods:
    unused = torch.zeros(REPLAY_SEEDS, dtype=torch.int64)
    state = zero_state(layout.size)
    step = TrainStepModule(scores, layout), step_inputs(state, check)
    replay = ReplayModule(layout), (torch.from_numpy(state), unused, unused.clone())
    return {"forward": step, "replay": replay}


def _algorithm_1(scores: ScoresModule, layout: Layout, check: SelfCheck) -> Methods:
    queries = len(check.seeds)
    _, *batch, _, _, seeds, epsilon = step_inputs(zero_state(layout.size), check)
    inputs = (*batch, torch.zeros(queries), torch.zeros(1), epsilon, seeds)
    return {"forward": (AlgorithmOneModule(scores, layout, queries), inputs)}


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
    parts = ready.parts
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
        epsilon=READOUT_CHECK_EPSILON if isinstance(parts, ReadoutParts) else CHECK_EPSILON,
        losses=[],
        digest=digest(ready.layout.hash, state).hex(),
    )
    with torch.no_grad():  # not inference mode, in which torchao lacks products
        if isinstance(parts, ReadoutParts):
            return replace(check, losses=parts.losses(check))
        step = TrainStepModule(parts, ready.layout)
        _, losses, _ = step(*step_inputs(zero_state(ready.layout.size), check))
    return replace(check, losses=losses.tolist())
