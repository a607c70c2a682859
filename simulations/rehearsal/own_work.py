"""The processor seconds of a round's steps on this machine, measured before a rehearsal."""

import time

from client.training.client_data import ClientData
from client.training.local_steps import take_local_steps
from client.training.model_runtime import ModelRuntime
from shared.config import RunConfig
from shared.frames.instructions import GLOBAL_TRACK, make_local_instruction
from shared.replay import digest, zero_state

_ROUNDS, _TRIALS = 3, 2


def round_seconds(config: RunConfig, runtime: ModelRuntime, data: ClientData) -> float:
    """Measure the processor seconds of a round's steps in one thread.

    It is the mean of several rounds, whose texts are not of the same length, and of each of them
    the lesser of two trials, which other work on this machine has disturbed least.

    Args:
        config: settings of the run.
        runtime: model runtime of one thread.
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

    rounds = range(1, _ROUNDS + 1)
    for number in rounds:  # fills the caches
        seconds_of(number)
    seconds = [min(seconds_of(number) for _ in range(_TRIALS)) for number in rounds]
    return sum(seconds) / _ROUNDS
