"""Emulated seconds of a step whose link and host have the ratios of LSP-Offload's table 1."""

from samara.client.offload.iteration_time import (
    StageSeconds,
    layerwise_iteration,
    zero_offload_iteration,
)

COMPUTE, TRANSFER, UPDATE = 0.84, 0.93, 1.92
"""Seconds of a step of Llama-7B: both passes, transfer each way, update on the host."""


def emulated_step(
    forward: float, backward: float, extra: float, share: float, layers: int, layerwise: bool
) -> float:
    """Return the seconds of an iteration by the formulas of `iteration_time`.

    Args:
        forward: seconds of the forward pass.
        backward: seconds of the backward pass.
        extra: seconds of compression and decompression behind it.
        share: numbers that travel each way over all numbers of the model.
        layers: number of layers.
        layerwise: whether layers overlap as in LSP-Offload; otherwise as in Zero-Offload.
    """
    transfer = (forward + backward) * TRANSFER / COMPUTE * share
    stages = StageSeconds(
        forward,
        backward + extra,
        offload=transfer,
        update=(forward + backward) * UPDATE / COMPUTE * share,
        upload=transfer,
        layers=layers,
    )
    return (layerwise_iteration if layerwise else zero_offload_iteration)(stages)
