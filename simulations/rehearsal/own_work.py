"""The processor seconds of a round's steps on this machine, measured before a rehearsal.

The clients of a rehearsal compute on all cores at the same time, and share caches and memory. The
measurement therefore runs one process per core, which starts in the same way as a trainer.
"""

import json
import sys
import time
from statistics import median

from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.shared.machine.process import cores
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK, make_local_instruction
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.settings.config import RunConfig
from samara.simulations.rehearsal.measuring import measure

_ROUNDS = 6


def own_seconds(config: RunConfig) -> float:
    """Measure the processor seconds of a client's round on one of this machine's busy cores.

    Args:
        config: settings of the run, with one thread.

    Raises:
        DeviceError: if a process fails.
    """
    settings = json.dumps(config.flat())
    module = "samara.simulations.rehearsal.own_work"
    seconds = measure(module, [settings] * cores(), "the seconds of a round's steps")
    return sum(seconds) / len(seconds)


def round_seconds(config: RunConfig, runtime: ModelRuntime, data: ClientData) -> float:
    """Measure the processor seconds of a round's steps in one thread.

    The result is the median over a run's first rounds. Their texts differ in length, and the layers
    below the adapters also run for examples that are new in a round.

    Args:
        config: settings of the run.
        runtime: model runtime with one thread.
        data: examples of a client.

    Raises:
        SamaraError: if a step is not possible.
    """
    state = zero_state(runtime.layout.size)
    start_digest = digest(runtime.layout.hash, state)

    def seconds_of(number: int) -> float:
        instruction = make_local_instruction(
            number,
            GLOBAL_TRACK,
            config.seed,
            steps=config.steps,
            queries=config.queries,
            batch=config.batch,
            epsilon=config.epsilon,
            learning_rate=0.0,
            clip=0.0,
            layout_hash=runtime.layout.hash,
            start_digest=start_digest,
            differences=config.differences,
        )
        begun = time.process_time()
        take_local_steps(runtime, data, instruction, state)
        return time.process_time() - begun

    seconds_of(_ROUNDS + 1)  # compiles functions, and initializes the libraries
    return median(seconds_of(number) for number in range(1, _ROUNDS + 1))


def main() -> None:
    """Print the processor seconds of a round of the first client, for the argument's settings."""
    config = RunConfig.of(json.loads(sys.argv[1]), "the measurement of seconds")
    run = load_run(config)
    print(round_seconds(config, run.runtime, run.data.share_of(0, config.data.clients)))


if __name__ == "__main__":
    main()
