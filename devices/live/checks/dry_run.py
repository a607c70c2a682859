"""The dry run of a client: one local step that measures time and memory."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from samara.client.protocol.resident_trainer import ResidentTrainer
from samara.client.training.local_steps import take_local_steps
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import SamaraError
from samara.shared.machine.process import peak_memory_bytes
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK, make_local_instruction
from samara.shared.protocol.replay import digest, zero_state


def dry_run(settings: ClientSettings) -> str:
    """Load model and data, and take one step from the base model.

    Nothing is sent or stored.

    Returns:
        A line for the operator with times, memory and the first projected gradients.

    Raises:
        SamaraError: if model or data cannot be used.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        config = settings.config
        resident = ResidentTrainer.load(config, settings.client_index, Path(folder))
        loaded = time.monotonic()
        runtime = resident.runtime
        state = zero_state(runtime.layout.size)
        instruction = make_local_instruction(
            1,
            GLOBAL_TRACK,
            config.seed,
            steps=1,
            queries=config.queries,
            batch=config.batch,
            epsilon=config.epsilon,
            learning_rate=0.0,
            clip=0.0,
            layout_hash=runtime.layout.hash,
            start_digest=digest(runtime.layout.hash, state),
        )
        report = take_local_steps(runtime, resident.data, instruction, state)
        ended = time.monotonic()
    return (
        f"loaded in {loaded - start:.1f} s; one step of {config.queries} queries on "
        f"{min(config.batch, report.examples)} of {report.examples} examples took "
        f"{ended - loaded:.1f} s, loss {report.mean_loss:.4f}; "
        f"peak memory {peak_memory_bytes() / 2**20:,.0f} MiB"
        f"{_gpu_peak(config.model.torch_device)}; "
        f"projected gradients {np.array2string(report.gradients[0, :4], precision=3)} …"
    )


def _gpu_peak(device: str) -> str:
    import torch

    if not device.startswith("cuda"):
        return ""
    return f", on the GPU {torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB"


def main() -> None:
    """Do the dry run of the client whose folder is the command-line argument."""
    try:
        print(dry_run(ClientSettings.read(Path(sys.argv[1]))), flush=True)
    except SamaraError as error:
        sys.exit(f"samara: {error}")


if __name__ == "__main__":
    main()
