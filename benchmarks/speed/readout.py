"""A local step of a readout against its matrix product alone, with representations in memory.

    python -m benchmarks.speed.readout SCENARIO [name=value ...]

SCENARIO is a TOML file, as of ``samara simulate``. Times are of the thread's own clock; steps and
products take turns, and the least of each counts, so other work on the machine matters little.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import prepare_training_examples, take_local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.shared.config import load_scenario
from samara.shared.frames.instructions import SeedPolicy, TrainInstruction
from samara.shared.replay import zero_state

STEPS, REPETITIONS = 16, 40


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that the thread computes for one call."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def round_of(runtime: ModelRuntime, data: ClientData) -> Callable[[], object]:
    """Return a call that takes the local steps of a round."""
    config, state = runtime.config, zero_state(runtime.layout.size)
    instruction = TrainInstruction(
        run_id=bytes(8),
        round=1,
        track=0,
        steps=STEPS,
        queries=config.queries,
        batch=config.batch,
        seed_policy=SeedPolicy.INDEPENDENT,
        root=1,
        epsilon=config.epsilon,
        learning_rate=0.1,
        clip=0.0,
        deadline=0.0,
        layout_hash=runtime.layout.hash,
        start_digest=bytes(32),
    )
    return lambda: take_local_steps(runtime, data, instruction, state)


@torch.inference_mode()
def main() -> None:
    """Print the milliseconds of a step and of its product, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        settings = [*options.settings, "threads=1", "adapter.layers=readout", f"out={folder}"]
        config = load_scenario(options.scenario, settings)
        config = config.among(config.data.clients)
        run = load_run(config)
        data = run.data.share_of(0, config.data.clients)
        examples = prepare_training_examples(run.runtime, data)
        features = torch.from_numpy(run.runtime.features(examples.prompts)[: config.batch])
        rows = 2 * config.queries * (run.runtime.label_count - 1)
        weights = torch.randn(rows, features.shape[1])
        take_round = round_of(run.runtime, data)
        take_round()
        steps, products = zip(
            *[
                (seconds(take_round) / STEPS, seconds(lambda: weights @ features.T))
                for _ in range(REPETITIONS)
            ],
            strict=True,
        )
    step, product = min(steps), min(products)
    print(
        f"{len(features)} examples, {features.shape[1]} features, {rows} columns: a step "
        f"{1e3 * step:.2f} ms, its product {1e3 * product:.2f} ms, ratio {step / product:.1f}"
    )


if __name__ == "__main__":
    main()
