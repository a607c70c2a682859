"""Gradient recovery and candidate identification from the scalars of one client.

    samara adapter basis sst2 --set model.path=MODEL --set adapter.layers=top:1 \\
        --set adapter.rank=2 --out BASIS
    python -m benchmarks.privacy.scalars --data DATA --model MODEL --features FILE --basis BASIS

DATA is a folder of SST-2, MODEL a sentence encoder. FILE keeps the gradients of all texts, which
take minutes the first time. Every client of a federation has ``--examples`` texts and takes its
steps with the code that trains (`LocalStepPlan`, forward differences, reports as frames); the model
is linear around its base, which for a readout is exact. The server attacks the first client
(`benchmarks.privacy.curious_server`): ten of its texts are hidden among 100 and 1,000 candidates
with the same labels.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.privacy.curious_server import (
    Floats,
    InformedServer,
    Observations,
    Public,
    area_under_curve,
    cosine,
    noise_variance,
    recover_gradient,
    score_by_batches,
    top_precision,
)
from benchmarks.privacy.frozen_model import Frozen
from benchmarks.privacy.linear_texts import Texts
from samara.client.estimators.prge import LossRequest, run_estimator
from samara.client.personal.components import find_components
from samara.client.personal.softmax_fit import Examples
from samara.client.training.client_data import ClientData
from samara.client.training.local_step_plan import LocalStepPlan
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.shared.basis import SCALE_BITS, read_basis
from samara.shared.config import RunConfig
from samara.shared.contrasts import contrasts
from samara.shared.directions import DIRECTION_BITS, Differences, batch_order, directions
from samara.shared.frames.instructions import (
    GLOBAL_TRACK,
    Split,
    TrainInstruction,
    make_local_instruction,
)
from samara.shared.frames.report import Report
from samara.shared.layout import READOUT_GROUP, Layout, Tensor
from samara.shared.replay import zero_state
from samara.shared.sections import AdapterSettings, ModelSettings

FULL = 65_535
"""A batch that holds all examples of every client here."""
CLIENTS, MEMBERS, TRAIN_TEXTS = 4, 10, 3000
CANDIDATES = (100, 1000)


@dataclass(frozen=True)
class Condition:
    """A way to train, and what is done to the scalars.

    Attributes:
        name: for the table.
        part: what is trained: ``inner``, ``readout`` or ``basis``.
        batch: examples per step.
        steps, queries: of a round.
        learning_rate: η.
        clip: limit of a projected gradient as a multiple of the root mean square of the first
            round's; 0 for none.
        bits: bits that a projected gradient is rounded to, its sign included; 0 for float32.
        differences: of losses, or components of a client's own update, for a readout.
    """

    name: str
    part: str
    batch: int
    steps: int
    queries: int
    learning_rate: float
    clip: float = 0.0
    bits: int = 0
    differences: Differences = "forward"


CONDITIONS = (
    Condition("inner, batches of 32", "inner", 32, 4, 8, 0.2),
    Condition("readout, all examples", "readout", FULL, 1, 32, 5.0),
    Condition("readout, batches of 32", "readout", 32, 1, 32, 5.0),
    Condition("readout, batches of 8", "readout", 8, 1, 32, 5.0),
    Condition("basis, batches of 32", "basis", 32, 4, 8, 0.4),
    Condition("basis, all examples", "basis", FULL, 4, 8, 0.4),
    Condition("readout, all examples, clipped at 1 rms", "readout", FULL, 1, 32, 5.0, clip=1.0),
    Condition("readout, all examples, 8 bits", "readout", FULL, 1, 32, 5.0, bits=8),
    Condition("readout, all examples, 4 bits", "readout", FULL, 1, 32, 5.0, bits=4),
    Condition("readout, all examples, signs", "readout", FULL, 1, 32, 5.0, bits=1),
    Condition("readout, 16 steps of 16", "readout", FULL, 16, 16, 0.3),
    Condition("components", "readout", FULL, 1, 32, 1.5, differences="components"),
)


def read_texts(data: str, model: str, file: Path) -> dict[str, NDArray[np.float64]]:
    """Return readout features, score gradients, margins and labels of texts, computed once.

    The first `TRAIN_TEXTS` are for clients and candidates; the test texts after them are public.
    """
    if not file.exists():
        settings = {"data.path": data, "data.limit": TRAIN_TEXTS, "model.path": model}
        settings |= {"task": "sst2", "adapter.layers": "readout", "threads": 1}
        run = load_run(RunConfig.of(settings, "benchmark"))
        examples = run.data.undivided(0)
        parts = [examples.tokenized(split) for split in (Split.TRAIN, Split.TEST)]
        texts = [*examples.in_split(Split.TRAIN), *examples.in_split(Split.TEST)]
        adapter = AdapterSettings(layers="top:1", rank=2, alpha=4.0)
        frozen = Frozen("sst2", ModelSettings.model_validate({"path": model}), adapter)
        gradients = np.stack([frozen.gradient(example.text) for example in texts])
        np.savez(
            file,
            features=np.concatenate([run.runtime.features(part.prompts) for part in parts]),
            gradients=gradients[:, :-1],
            margins=gradients[:, -1],
            labels=np.concatenate([part.labels for part in parts]),
        )
    return dict(np.load(file))


def texts_of(part: str, read: dict[str, NDArray[np.float64]], basis: Path | None) -> Texts:
    """Return the texts as examples of a model that is linear in the trained numbers.

    Args:
        part: see `Condition`.
        read: result of `read_texts`.
        basis: file of `samara adapter basis`.
    """
    labels = read["labels"].astype(np.int64)
    inner = Texts(read["gradients"], read["margins"], labels)
    if part == "readout":
        ((one, other),) = contrasts(2).astype(np.float64)
        return replace(inner, gradients=(other - one) * read["features"].astype(np.float64))
    if part == "basis":
        informed = read_basis(str(basis))
        vectors = informed.vectors * (informed.scales[:, None] * 2.0**-SCALE_BITS)
        return replace(inner, gradients=inner.gradients @ vectors.T)
    return inner


def quantized(gradients: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Return projected gradients rounded to some bits, with one scale for all."""
    if not bits:
        return gradients
    if bits == 1:
        return np.asarray(np.sign(gradients) * np.mean(np.abs(gradients)), np.float32)
    scale = np.max(np.abs(gradients)) / (2 ** (bits - 1) - 1)
    return np.asarray(np.round(gradients / scale) * scale, np.float32)


@dataclass(eq=False)
class ServerRecord:
    """The data that the server collects of the client that it attacks, by step."""

    directions: list[Floats]
    scalars: list[Floats]
    expected: list[Floats]
    candidates: list[Floats]
    batches: list[NDArray[np.bool_]]

    def observations(self) -> Observations:
        """Return everything collected so far."""
        return Observations(
            np.concatenate(self.directions),
            np.concatenate(self.scalars),
            np.concatenate(self.expected),
            np.concatenate(self.candidates, axis=1),
            np.stack(self.batches),
        )


def losses_along(texts: Texts, center: Floats, z: Floats, request: LossRequest) -> Floats:
    """Return the losses of a request at a state, perturbed along directions z, float64 [q, d]."""
    batch = texts.some(request.batch)
    if not len(request.seeds):
        return np.array([batch.loss(center)])
    shifts = np.concatenate([sign * request.epsilon * z for sign in request.signs])
    margins = batch.margins[:, None] + batch.gradients @ (center + shifts).T
    signs = 2 * batch.labels[:, None] - 1
    return np.asarray(np.mean(np.logaddexp(0, -signs * margins), axis=0))


def take_steps(
    texts: Texts,
    instruction: TrainInstruction,
    client: int,
    numbers: Floats,
    bits: int,
    record: ServerRecord | None,
    public: Texts,
    candidates: Texts,
) -> Floats:
    """Take a client's local steps, or report components; return the numbers after it, float64 [d].

    Args:
        texts: the client's examples.
        instruction: instruction of the round.
        client: client index.
        numbers: float64 [d] at the start.
        bits: see `Condition`.
        record: what the server collects; None for other clients.
        public: public texts.
        candidates: texts of which some are the client's.
    """
    if instruction.asks_for_components:
        return report_components(texts, instruction, numbers, record, public, candidates)
    plan = LocalStepPlan(instruction, client, texts.labels, label_count=2)
    seeds, states = instruction.seeds(client), [numbers]
    for step in range(instruction.steps):
        words = directions(seeds[step], len(numbers), "gaussian")
        z = words.astype(np.float64) * 2.0**-DIRECTION_BITS
        center = states[-1]
        losses_of = partial(losses_along, texts, center, z)
        estimate = run_estimator(plan.next_estimator(), losses_of)
        estimate = replace(estimate, gradients=quantized(estimate.gradients, bits))
        plan.finish_step(estimate)
        clipped = instruction.clipped(estimate.gradients)
        states.append(center + instruction.coefficients(clipped) @ z)
        if record:
            order = batch_order(instruction.root, client, step, len(texts.labels))
            inside = np.zeros(len(texts.labels), np.bool_)
            inside[order[: instruction.batch]] = True
            record.batches.append(inside)
            record.directions.append(z)
            record.expected.append(z @ public.slope(center))
            record.candidates.append(slopes(candidates, center) @ z.T)
    if record:
        report = Report.decode(plan.report(bytes(8)).encode())
        record.scalars += list(instruction.clipped(report.gradients))
    return states[-1]


def report_components(
    texts: Texts,
    instruction: TrainInstruction,
    numbers: Floats,
    record: ServerRecord | None,
    public: Texts,
    candidates: Texts,
) -> Floats:
    """Report components of a client's own update; return the numbers after it, float64 [d].

    With a small η a component is −n·η·z·∇L/(s·|z|²). The server takes it for that, and
    expects what a client with as many public texts would have found. What a candidate adds is
    taken to be smaller than by this formula in the same proportion.

    Args:
        texts: the client's examples.
        instruction: instruction of the round.
        numbers: float64 [d] at the start.
        record: what the server collects; None for other clients.
        public: public texts.
        candidates: texts of which some are the client's.
    """
    count, d = len(texts.labels), len(numbers)
    layout = Layout((Tensor("readout", 1, d, READOUT_GROUP),), 1, 1.0, 0, "orthogonal")
    seeds = instruction.seeds(0)[0]
    z = directions(seeds, d, "orthogonal").astype(np.float64) * 2.0**-DIRECTION_BITS
    rate = instruction.learning_rate
    found, _ = find_components(_scored(texts, numbers), z, layout, rate)
    if record:
        likely = _scored(public, numbers)
        usual, _ = find_components(likely, z, layout, rate * count / len(public.labels))
        square = np.mean(np.sum(likely.features**2, axis=1))
        scale = -square * np.sum(z * z, axis=1) / (count * rate)
        expected, linear = scale * usual, z @ public.slope(numbers)
        share = float(expected @ linear / (linear @ linear))
        record.batches.append(np.ones(count, np.bool_))
        record.directions.append(z)
        record.scalars.append(scale * found.astype(np.float32))
        record.expected.append(expected)
        record.candidates.append(expected + share * (slopes(candidates, numbers) @ z.T - linear))
    return numbers + found @ z


def _scored(texts: Texts, numbers: Floats) -> Examples:
    """Return texts as examples of a readout, with scores at these numbers."""
    margins = texts.margins + texts.gradients @ numbers
    ((one, other),) = contrasts(2).astype(np.float64)
    offsets = np.stack([np.zeros_like(margins), margins], axis=1)
    return Examples(offsets, texts.labels, texts.gradients / (other - one))


def slopes(texts: Texts, numbers: Floats) -> Floats:
    """Return the gradient of each text's loss, float64 [n, d]."""
    chance = 1 / (1 + np.exp(-texts.margins - texts.gradients @ numbers))
    return np.asarray((chance - texts.labels)[:, None] * texts.gradients)


def compare_with_passes(texts: Texts, data: str, model: str) -> float:
    """Return the correlation of real projected gradients of the inner adapters with linear ones.

    64 directions at the base, on a batch of 32 texts.
    """
    settings = {"data.path": data, "data.limit": TRAIN_TEXTS, "model.path": model, "task": "sst2"}
    settings |= {"adapter.layers": "top:1", "adapter.rank": 2, "adapter.alpha": 4.0, "threads": 1}
    run = load_run(RunConfig.of(settings, "benchmark"))
    examples, layout = run.data.undivided(0).in_split(Split.TRAIN)[:32], run.runtime.layout
    data_of_client = ClientData(0, examples, run.runtime.tokenize)
    instruction = replace(
        instruction_for(CONDITIONS[0], 0, 1, 0.0), steps=1, queries=64, layout_hash=layout.hash
    )
    report = take_local_steps(run.runtime, data_of_client, instruction, zero_state(layout.size))
    words = directions(instruction.seeds(0)[0], layout.size, "gaussian")
    linear = words * 2.0**-DIRECTION_BITS @ texts.some(np.arange(32)).slope(np.zeros(layout.size))
    return float(np.corrcoef(report.gradients[0], linear)[0, 1])


def instruction_for(condition: Condition, seed: int, number: int, clip: float) -> TrainInstruction:
    """Return the instruction of a round of a federation with this seed."""
    return make_local_instruction(
        number,
        GLOBAL_TRACK,
        seed,
        steps=condition.steps,
        queries=condition.queries,
        batch=condition.batch,
        epsilon=0.01,
        learning_rate=condition.learning_rate,
        clip=clip,
        layout_hash=bytes(32),
        start_digest=bytes(32),
        differences=condition.differences,
    )


def choose_candidates(
    labels: NDArray[np.int64], members: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return ten members and other texts with the same shares of labels, int64 [count]."""
    hidden, others = members[:MEMBERS], np.setdiff1d(np.arange(len(labels)), members)
    chosen = [hidden]
    for label in (0, 1):
        share = np.mean(labels[hidden] == label)
        pool = others[labels[others] == label]
        chosen.append(rng.choice(pool, round(share * (count - MEMBERS)), replace=False))
    return np.concatenate(chosen)


def measure(
    condition: Condition, texts: Texts, examples: int, ratios: Sequence[float], seed: int
) -> Iterator[dict[str, float]]:
    """Yield the figures after each ratio of scalars to trained numbers.

    Args:
        condition: way to train.
        texts: clients' texts and candidates, and public ones after them.
        examples: texts of each client.
        ratios: scalars over d, ascending.
        seed: seed of the division, the federation and the candidates.
    """
    rng, d = np.random.default_rng([seed, examples]), texts.gradients.shape[1]
    clients = rng.permutation(TRAIN_TEXTS)[: CLIENTS * examples].reshape(CLIENTS, examples)
    public = texts.some(np.arange(TRAIN_TEXTS, len(texts.labels)))
    labels = texts.labels[:TRAIN_TEXTS]
    sets = [choose_candidates(labels, clients[0], count, rng) for count in CANDIDATES]
    candidates = texts.some(np.concatenate(sets))
    numbers, record = np.zeros(d), ServerRecord([], [], [], [], [])
    truth, per_text = texts.some(clients[0]).slope(numbers), slopes(public, numbers)
    known = Public(per_text.mean(0), np.cov(per_text.T))
    per_round = condition.steps * condition.queries
    clip = condition.clip * float(np.linalg.norm(truth))
    done = 0
    for ratio in ratios:
        rounds = max(1, round(ratio * d / per_round))
        for number in range(done + 1, rounds + 1):
            instruction = instruction_for(condition, seed, number, clip)
            ends = [
                take_steps(
                    texts.some(clients[client]),
                    instruction,
                    client,
                    numbers,
                    condition.bits,
                    None if client else record,
                    public,
                    candidates,
                )
                for client in range(CLIENTS)
            ]
            numbers = np.mean(ends, axis=0)
        done = rounds
        yield {
            "scalars/d": rounds * per_round / d,
            "public loss": public.loss(numbers),
            "accuracy": public.confusion(numbers).accuracy,
        } | figures(record.observations(), known, truth)


def figures(observations: Observations, public: Public, truth: Floats) -> dict[str, float]:
    """Return cosines of recovered gradients with the true one, and how texts are recognised."""
    server = InformedServer(observations, public)
    results = {
        "cosine": cosine(
            recover_gradient(observations, noise_variance(observations, public)), truth
        ),
        "public": cosine(public.mean, truth),
        "informed": cosine(server.recover_gradient(), truth),
    }
    scores = {"": server.score_candidates()}
    if not observations.batches.all():
        scores[" b"] = score_by_batches(observations, public)
    start = 0
    for count in CANDIDATES:
        for attack, of_all in scores.items():
            own = of_all[start : start + count]
            results[f"AUC {count}{attack}"] = area_under_curve(own, MEMBERS)
            results[f"top {count}{attack}"] = top_precision(own, MEMBERS)
        start += count
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--basis", type=Path, help="of samara adapter basis, for these conditions")
    parser.add_argument("--examples", default="10,50,500")
    parser.add_argument("--ratios", default="0.015625,0.0625,0.25,1,4")
    parser.add_argument("--only", default="", help="part of a condition's name")
    parser.add_argument("--passes", action="store_true", help="compare with real passes alone")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args(arguments)
    read = read_texts(given.data, given.model, given.features)
    if given.passes:
        correlation = compare_with_passes(texts_of("inner", read, None), given.data, given.model)
        print(f"correlation of projected gradients, real and linear: {correlation:.4f}")
        return
    ratios = [float(ratio) for ratio in given.ratios.split(",")]
    for condition in CONDITIONS:
        if given.only not in condition.name:
            continue
        if condition.part == "basis" and given.basis is None:
            continue
        texts = texts_of(condition.part, read, given.basis)
        for examples in map(int, given.examples.split(",")):
            runs = [
                list(measure(condition, texts, examples, ratios, s)) for s in range(given.seeds)
            ]
            print(f"\n{condition.name}, d = {texts.gradients.shape[1]}, {examples} examples")
            print("  ".join(f"{name:>11}" for name in runs[0][0]))
            for rows in zip(*runs, strict=True):
                means = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
                print("  ".join(f"{value:11.3f}" for value in means.values()), flush=True)


if __name__ == "__main__":
    main()
