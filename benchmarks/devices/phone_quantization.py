"""Quantized programs for phones: their projected gradients against float32's, and how they learn.

    python -m benchmarks.devices.phone_quantization gradients [--epsilon 0.01 …] [--set key=value …]
    python -m benchmarks.devices.phone_quantization train [--epsilon 0.01 …] \\
        [--seed 0 …] [--steps 300]

By default the embedded model on the messages of eight writers; `--set` takes model.path, data.path,
task and adapters of others. `gradients` compares 128 directions, each tried on 16 examples, at an
adapter that is not zero, with those of the float32 program at the same ε and at the first one.
`train` lets the reference phone take steps by the program alone, and evaluates on test examples by
the same program and, with the same adapter, in eager float32.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.devices.phone_loop import asked
from samara.client.training.client_data import ClientDataSource
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
from samara.devices.phone.manifest import PhoneQuantization
from samara.devices.phone.reference_client.examples import TokenizedExamples, read_examples
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.readout_program import load_program
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.config import RunConfig
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import evaluation_column
from samara.shared.replay import STATE_BITS, quantize, replay, zero_state
from samara.shared.settings import parse_assignment

KINDS: tuple[PhoneQuantization, ...] = ("none", "int8", "8da4w")
DIRECTIONS, EXAMPLES, TESTED, SPREAD = 128, 16, 800, 0.05


def programs(
    config: RunConfig,
    shapes: ProgramShapes,
    source: ClientDataSource,
    folder: Path,
    kinds: Sequence[PhoneQuantization],
) -> dict[PhoneQuantization, PhoneLearner]:
    """A reference phone of each of these kinds, all with the same examples."""
    phones = {}
    for kind in kinds:
        file, lines = folder / f"{kind}.pte", folder / "rows.jsonl"
        ready = prepare_model(config, kind)
        export_program(ready, shapes, kind, "xnnpack", file)
        program = load_program(file)
        clients = range(config.data.clients)
        lines.write_text(
            "".join(examples_as_jsonl(source.share_of(i, len(clients))) for i in clients)
        )
        rows = read_examples(lines, program.manifest)
        rows[Split.TEST] = _some(rows[Split.TEST], TESTED)
        phones[kind] = PhoneLearner(program, rows)
        difference = program.check()
        size = file.stat().st_size / 2**20
        print(f"{kind}: {size:.2f} MiB, self-check {difference:.2g} nats", flush=True)
    return phones


def gradients(phone: PhoneLearner, shapes: ProgramShapes, epsilon: float) -> NDArray[np.float64]:
    """Projected gradients of all directions, float64 [128], by steps that do not move."""
    center = np.random.default_rng(0).normal(0, SPREAD, phone.layout.size)
    state = np.ldexp(center, STATE_BITS).astype(np.int64)
    steps = DIRECTIONS // shapes.queries
    instruction = asked(
        phone.layout.hash,
        steps,
        queries=shapes.queries,
        batch=EXAMPLES,
        epsilon=epsilon,
        learning_rate=0.0,
    )
    return phone.take_steps(instruction, state).gradients.astype(np.float64).ravel()


def trained(
    phone: PhoneLearner, shapes: ProgramShapes, steps: int, rate: float, epsilon: float, seed: int
) -> NDArray[np.int64]:
    """The state after so many steps from zero, as everybody replays it: int64 [d]."""
    instruction = asked(
        phone.layout.hash,
        steps,
        queries=shapes.queries,
        batch=shapes.batch,
        epsilon=epsilon,
        learning_rate=rate,
        root=seed,
    )
    state = zero_state(phone.layout.size)
    report = phone.take_steps(instruction, state)
    groups = [
        (seeds, one_pass)
        for seeds, own in zip(instruction.seeds(0), report.gradients, strict=True)
        for one_pass in quantize(instruction.coefficients(instruction.clipped(own)))
    ]
    return replay(state, groups, phone.layout.distribution)


def _some(rows: TokenizedExamples, count: int) -> TokenizedExamples:
    chosen = np.random.default_rng(0).permutation(len(rows))[:count]
    return TokenizedExamples(rows.ids[chosen], rows.positions[chosen], rows.labels[chosen])


def _eager(
    runtime: ModelRuntime, source: ClientDataSource, clients: int, state: NDArray[np.int64]
) -> str:
    """Return the scores of all test examples in float32."""
    shares = [source.share_of(client, clients).tokenized(Split.TEST) for client in range(clients)]
    scores = np.concatenate([runtime.scores(state, share.prompts) for share in shares])
    labels = np.concatenate([share.labels for share in shares])
    return _said(evaluation_column("", scores, labels))


def _said(found: EvaluationColumn) -> str:
    right = np.trace(found.counts) / found.counts.sum()
    return f"loss {found.mean_loss:.4f}, accuracy {100 * right:.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("gradients", "train"))
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=32)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.01])
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.1)
    given = parser.parse_args()
    flat = {"model.max-length": given.seq, "threads": 1, "adapter.layers": "top:1"}
    config = RunConfig.of(flat | dict(map(parse_assignment, given.settings)), "bench")
    shapes = ProgramShapes(given.queries, given.batch, given.seq)
    runtime, source = load_run(config)
    with tempfile.TemporaryDirectory() as folder:
        kinds = dict.fromkeys(("none", *given.kind))
        phones = programs(config, shapes, source, Path(folder), list(kinds))
        if given.what == "gradients":
            first = gradients(phones["none"], shapes, given.epsilon[0])
            for epsilon in given.epsilon:
                expected = gradients(phones["none"], shapes, epsilon)
                print(f"ε = {epsilon:g}: float32's g about {np.sqrt(np.mean(expected**2)):.4f}")
                for kind in given.kind:
                    found = gradients(phones[kind], shapes, epsilon)
                    print(
                        f"  {kind}: correlation {np.corrcoef(found, expected)[0, 1]:.5f}, slope "
                        f"{found @ expected / (expected @ expected):.4f}, noise about "
                        f"{np.sqrt(np.mean((found - expected) ** 2)):.4f}; with float32 at ε = "
                        f"{given.epsilon[0]:g} {np.corrcoef(found, first)[0, 1]:.5f}",
                        flush=True,
                    )
            return
        zero, clients = zero_state(runtime.layout.size), config.data.clients
        print(f"before, in eager float32: {_eager(runtime, source, clients, zero)}")
        for kind in given.kind:
            before = evaluation_column("", *phones[kind].score(zero, Split.TEST))
            print(f"{kind}, before: {_said(before)}", flush=True)
            for epsilon in given.epsilon:
                for seed in given.seed:
                    state = trained(phones[kind], shapes, given.steps, given.rate, epsilon, seed)
                    after = evaluation_column("", *phones[kind].score(state, Split.TEST))
                    print(
                        f"  ε = {epsilon:g}, seed {seed}, {given.steps} steps: {_said(after)}; "
                        f"in eager float32: {_eager(runtime, source, clients, state)}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
