"""Export of a model with its adapter as a program for phones."""

import base64
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.setup import make_scorer
from samara.devices.phone.index_export import write_index
from samara.devices.phone.lowering import Method, Methods, lower_to_executorch
from samara.devices.phone.manifest import (
    Delegate,
    Form,
    Manifest,
    PhoneQuantization,
    Runtime,
    SelfCheck,
    WeightsFile,
)
from samara.devices.phone.onnx_lowering import lower_to_onnx
from samara.devices.phone.onnx_weights import split_weights
from samara.devices.phone.program import (
    AdapterScoresModule,
    AlgorithmOneModule,
    Candidates,
    ReplayModule,
    ScoresModule,
    TrainStepModule,
    Words,
)
from samara.devices.phone.quantization import (
    block_products,
    quantize_to_4_bit,
    round_to_4_bits,
    round_to_float16,
    round_tokens_to_8_bits,
    use_batched_products,
)
from samara.devices.phone.readout_export import ReadoutParts
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.model.head import keep_rows, separate_rows
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.scorers import (
    CausalScorer,
    ChoiceScorer,
    EncoderScorer,
    HeadlessScorer,
)
from samara.shared.protocol.directions import prefix_tokens, query_seeds
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.replay_numpy import NumpyBackend
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import check_features, kind_of
from samara.shared.storage.files import write_durably, write_requested
from samara.shared.tasks.catalog import task_of
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask

KINDS = {"executorch": b"ET12", "onnx": b"pytorch"}
"""Marks of programs by runtime, for `write_requested`."""
REPLAY_SEEDS = 16
"""Number of directions in a call of ``replay``, or of a readout's ``directions``."""
LEAST_TOKENS = 4
"""Minimum number of tokens before an answer.

`torch.export` would treat sizes of 0 and 1 as constants.
"""
ANSWER_TOKENS = 16
"""Default maximum of tokens in a candidate of a choice task."""
CHECK_EPSILON = 0.01
"""ε of the self-check for adapters, whose losses depend on the whole model."""
READOUT_CHECK_EPSILON = 1.0
"""ε of the self-check for readouts.

At a small ε, the features would hardly change a readout's losses.
"""


@dataclass(frozen=True)
class ProgramShapes:
    """The shapes of a program's calls. A readout may also be called with shorter sequences.

    Attributes:
        queries: q, number of directions in a call.
        batch: B, number of examples in a call.
        sequence: S, maximum tokens of an example, including an answer of several tokens.
    """

    queries: int
    batch: int
    sequence: int


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model with its adapter, ready for export.

    Attributes:
        base: base model with the adapter inserted.
        layout: layout of the adapter.
        parts: module that computes scores and losses with adapters inside the model, or the parts
            of a readout.
        words: label words of the task, or the templates of its candidates.
        word_tokens: token of each label word; empty for a sentence encoder or for answers of
            several tokens.
        answer_tokens: T, maximum tokens of an answer; 0 if label words have one token each.
        start: content of the adapter's start file; empty if there is none.
        task: task of the run; without a task, no index is exported for browsers.
        scorer: scorer of model and task, which also tokenizes.
    """

    base: BaseModel
    layout: Layout
    parts: ScoresModule | ReadoutParts
    words: tuple[str, ...]
    word_tokens: tuple[int, ...]
    answer_tokens: int = 0
    start: bytes = b""
    task: ClassificationTask | ChoiceTask | None = None
    scorer: CausalScorer | ChoiceScorer | EncoderScorer | None = None


def prepare_model(
    config: RunConfig, quantization: PhoneQuantization, answer_tokens: int = ANSWER_TOKENS
) -> PreparedModel:
    """Load a model, quantize it, insert the adapter, and measure a readout's damping.

    Args:
        config: settings with model, task and adapter.
        quantization: quantization of the linear layers in the blocks.
        answer_tokens: maximum tokens of a candidate of a choice task.

    Raises:
        SamaraError: if model, task or adapter cannot be used. Adapters inside the model need a
            causal model; a readout needs a causal model or a sentence encoder.
    """
    task = task_of(config)
    check_features(
        {"clients": "phone", "engine": "flower", "task": kind_of(task)} | config.features,
        f"task {task.name!r}",
    )
    base = load_base_model(
        config.model.path,
        quantization="int8" if quantization == "int8" else "none",
        depth=config.adapter.depth,
    )
    families = ("causal", "encoder") if config.adapter.has_readout else ("causal",)
    if base.family not in families or isinstance(task, GenerationTask):
        raise ConfigError(
            f"{base.folder} with task {task.name} cannot become a phone's program. With "
            f"adapter.layers = {config.adapter.layers} the model's family must be "
            f"{' or '.join(families)}, and the task a classification or a choice"
        )
    own = make_scorer(base, task, config.model.max_length)
    scorer = own.whole if isinstance(own, HeadlessScorer) else own
    assert isinstance(scorer, CausalScorer | ChoiceScorer | EncoderScorer)
    tokens, answers = _answers(base, scorer, answer_tokens, not config.adapter.has_readout)
    injected = inject(base, config.adapter, scorer.labels)
    parts: ScoresModule | ReadoutParts
    if config.adapter.has_readout:
        parts = ReadoutParts(base, task, own, answers, config.adapter.damping, injected.layout)
    else:
        assert not isinstance(answers, EncoderScorer), "an encoder with adapters was refused above"
        parts = ScoresModule(base, injected, answers)
    if quantization == "int8":
        use_batched_products(base)
    start = injected.start.encode() if injected.start else b""
    most = answers.tokens if isinstance(answers, Candidates) else 0
    words = task.words if isinstance(task, ClassificationTask) else tuple(task.candidates)
    return PreparedModel(base, injected.layout, parts, words, tokens, most, start, task, scorer)


def _answers(
    base: BaseModel,
    scorer: CausalScorer | ChoiceScorer | EncoderScorer,
    answer_tokens: int,
    compares: bool,
) -> tuple[tuple[int, ...], Words | Candidates | EncoderScorer]:
    """Return the tokens of the label words, and the answers to compare.

    The tokens are empty unless each label word has a single token. If the scores of an example are
    only compared with each other, the head keeps only the rows of these tokens.
    """
    if isinstance(scorer, EncoderScorer):
        return (), scorer
    if isinstance(scorer, ChoiceScorer):
        return (), Candidates(base, answer_tokens)
    longest = max(map(len, scorer.label_tokens))
    if longest > 1:
        return (), Candidates(base, longest)
    tokens = tuple(word[0] for word in scorer.label_tokens)
    if compares and separate_rows(base, tokens):
        keep_rows(base, tokens)
        return tokens, Words(base, [])
    return tokens, Words(base, list(tokens))


def export_program(
    ready: PreparedModel,
    shapes: ProgramShapes,
    quantization: PhoneQuantization,
    delegate: Delegate,
    out: Path,
    form: Form = "functional",
    runtime: Runtime = "executorch",
) -> Manifest:
    """Write a program with the methods ``forward`` and ``replay``, and its manifest.

    Args:
        ready: model from `prepare_model`.
        shapes: shapes of a call.
        quantization: quantization that the model was prepared with.
        delegate: backend for the float part; ``none`` with ONNX Runtime.
        out: path of the program file; the manifest is written beside it as JSON.
        form: ``algorithm-1`` has a single method, ``forward`` of `AlgorithmOneModule`.
        runtime: ``onnx`` has a single method, ``forward`` of `RepresentationModule` or
            `AdapterScoresModule`.

    Raises:
        DeviceError: if ExecuTorch or ONNX is missing.
        SamaraError: if a file cannot be written, or another file is in its place.
        ConfigError: if the model cannot be exported with these choices.
    """
    if shapes.sequence > ready.base.batch_context:
        raise ConfigError(
            f"--seq {shapes.sequence}: {ready.base.folder} reads at most "
            f"{ready.base.batch_context} tokens"
        )
    if shapes.sequence < ready.answer_tokens + 2:
        raise ConfigError(
            f"--seq {shapes.sequence}: an answer has up to {ready.answer_tokens} tokens, and text "
            "comes before it; raise --seq"
        )
    if quantization == "8da4w" and delegate == "portable":
        raise ConfigError("--quantization 8da4w is only supported with --delegate xnnpack")
    parts = ready.parts
    _check_runtime(runtime, quantization, form)
    if form == "algorithm-1" and isinstance(parts, ReadoutParts):
        raise ConfigError(
            "--form algorithm-1 perturbs adapters inside the model, but a readout is outside the "
            "model; use --form functional, or set adapter.layers to top:1"
        )
    if form == "algorithm-1" and ready.start:
        raise ConfigError(
            "--form algorithm-1 starts from the base model; use --form functional, or leave "
            "adapter.start empty"
        )
    if quantization == "8da4w":
        quantize_to_4_bit(ready.base)
    elif quantization == "int4":
        round_to_4_bits(ready.base)
    elif quantization == "float16":
        round_to_float16(ready.base)
    if runtime == "onnx" and quantization in ("int8", "int4"):
        round_tokens_to_8_bits(ready.base)
    check = _check(ready, shapes)
    least = _least_sequence(ready, shapes)
    if isinstance(parts, ReadoutParts):
        methods = parts.methods(check, REPLAY_SEEDS, least)
    elif form == "algorithm-1":
        methods = _algorithm_1(parts, ready.layout, check)
    elif runtime == "onnx":
        methods = _scores_of_adapters(parts, ready.layout, check)
    else:
        methods = _functional(parts, ready.layout, check)
    shards: dict[str, bytes] = {}
    weights: tuple[WeightsFile, ...] = ()
    if runtime == "onnx":
        layers = block_products(ready.base) if quantization == "int4" else []
        products = [(layer.in_features, layer.out_features) for layer in layers]
        graph = lower_to_onnx(methods["forward"], quantization, products)
        split = split_weights(graph, out.stem)
        program = split.graph
        shards = split.shards
        weights = split.listed
    else:
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
        answer_tokens=ready.answer_tokens,
        quantization=quantization,
        delegate=delegate,
        form=form,
        check=check,
        readout=parts.description if isinstance(parts, ReadoutParts) else None,
        least_sequence=least,
        runtime=runtime,
        weights=weights,
        start=base64.b64encode(ready.start).decode(),
    )
    try:
        for name, content in shards.items():
            write_durably(out.parent / name, content)
        write_requested(out, program, KINDS[runtime])
        manifest.write(out)
        if runtime == "onnx" and ready.task and ready.scorer:
            write_index(out, manifest, ready.base, ready.task, ready.scorer)
    except OSError as error:
        raise DeviceError(
            f"{out}: the program cannot be written: {error.strerror}; give another --out"
        ) from error
    return manifest


def _check_runtime(
    runtime: Runtime,
    quantization: PhoneQuantization,
    form: Form,
) -> None:
    """Check that a runtime supports the requested quantization and form.

    Raises:
        ConfigError: if the runtime does not support them.
    """
    if runtime == "executorch":
        if quantization in ("int4", "float16"):
            raise ConfigError(
                f"--quantization {quantization} needs --runtime onnx; use 8da4w or int8"
            )
        return
    if quantization == "8da4w":
        raise ConfigError("--quantization 8da4w needs --runtime executorch; use int4 or int8")
    if form == "algorithm-1":
        raise ConfigError(
            "--runtime onnx supports only functional programs; leave --form out, or use --runtime "
            "executorch"
        )


def _least_sequence(ready: PreparedModel, shapes: ProgramShapes) -> int:
    """Return the minimum tokens of a call; 0 if every call must have S tokens."""
    least = ready.answer_tokens + LEAST_TOKENS
    return least if isinstance(ready.parts, ReadoutParts) and least < shapes.sequence else 0


def _functional(scores: ScoresModule, layout: Layout, check: SelfCheck) -> Methods:
    unused = torch.zeros(REPLAY_SEEDS, dtype=torch.int64)
    state = zero_state(layout.size)
    step = Method(TrainStepModule(scores, layout), step_inputs(state, check))
    replay = Method(ReplayModule(layout), (torch.from_numpy(state), unused, unused.clone()))
    return {"forward": step, "replay": replay}


def _scores_of_adapters(scores: ScoresModule, layout: Layout, check: SelfCheck) -> Methods:
    weights = torch.zeros(2 * len(check.seeds), layout.size)
    inputs = weights, torch.tensor(check.ids), torch.tensor(check.positions)
    return {"forward": Method(AdapterScoresModule(scores, layout), inputs)}


def _algorithm_1(scores: ScoresModule, layout: Layout, check: SelfCheck) -> Methods:
    queries = len(check.seeds)
    _, *batch, _, _, seeds, epsilon = step_inputs(zero_state(layout.size), check)
    inputs = (*batch, torch.zeros(queries), torch.zeros(1), epsilon, seeds)
    return {"forward": Method(AlgorithmOneModule(scores, layout, queries), inputs)}


def step_inputs(state: NDArray[np.int64], check: SelfCheck) -> tuple[torch.Tensor, ...]:
    """Return the inputs of ``forward`` for the check's batch at a state, without an update."""
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
    """Create a self-check from random tokens and directions, with results of the eager modules."""
    parts = ready.parts
    ids, positions = _check_batch(ready, shapes)
    seeds = query_seeds(0, 0, 1, shapes.queries)[0]
    # The coefficients have both signs, and are large enough for products beyond 2⁵³.
    coefficients = (np.arange(shapes.queries) * 2 - 1) * np.int64(2**40 + 12345)
    state = zero_state(ready.layout.size)
    NumpyBackend().fold(state, seeds, coefficients, ready.layout.distribution)
    check = SelfCheck(
        ids=ids.tolist(),
        positions=positions.tolist(),
        labels=(np.arange(shapes.batch) % len(ready.words)).tolist(),
        seeds=seeds.tolist(),
        coefficients=coefficients.tolist(),
        epsilon=READOUT_CHECK_EPSILON if isinstance(parts, ReadoutParts) else CHECK_EPSILON,
        losses=[],
        digest=digest(ready.layout.hash, state).hex(),
    )
    with torch.no_grad():  # torchao has no products for inference mode
        if isinstance(parts, ReadoutParts):
            return replace(check, losses=parts.losses(check))
        step = TrainStepModule(parts, ready.layout)
        _, losses, _ = step(*step_inputs(zero_state(ready.layout.size), check))
    return replace(check, losses=losses.tolist())


def _check_batch(
    ready: PreparedModel, shapes: ProgramShapes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return random token ids, [B, S] or [B, C, S], and positions [B], covering all lengths."""
    batch = shapes.batch
    length = shapes.sequence
    most = ready.answer_tokens
    vocabulary = int(ready.base.network.config.vocab_size)
    rows = np.arange(batch)
    if not most:
        ids = prefix_tokens(0, batch * length, vocabulary).reshape(batch, length)
        return ids, (rows * 7 + length - 1) % length
    candidates = len(ready.words)
    tokens = prefix_tokens(0, batch * candidates * length, vocabulary)
    sequences = tokens.reshape(batch, candidates, length).copy()
    positions = (rows * 7 + length - 1 - most) % (length - most)
    sizes = 1 + (rows[:, None] + np.arange(candidates)) % most
    sequences[np.arange(length) > (positions[:, None] + sizes)[..., None]] = -1
    return sequences, positions
