"""The processor seconds of a round's steps on this machine, measured before a rehearsal."""

import time

from client.training.client_data import ClientData
from client.training.local_steps import take_local_steps
from client.training.model_runtime import ModelRuntime
from shared.config import RunConfig
from shared.frames.instructions import GLOBAL_TRACK, make_local_instruction
from shared.replay import digest, zero_state

_ROUNDS = 3


def round_seconds(config: RunConfig, runtime: ModelRuntime, data: ClientData) -> float:
    """Measure the processor seconds of a round's steps in one thread: the least of three rounds.

    Args:
        config: settings of the run.
        runtime: model runtime of one thread.
        data: examples of a client.

    Raises:
        SamaraError: if a step is not possible.
    """
    state, seconds = zero_state(runtime.layout.size), []
    for number in range(1, _ROUNDS + 2):  # the first one also fills caches
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
            start_digest=digest(runtime.layout.hash, state),
            differences=config.differences,
        )
        begun = time.process_time()
        take_local_steps(runtime, data, instruction, state)
        seconds.append(time.process_time() - begun)
    return min(seconds[1:])
