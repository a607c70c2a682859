"""The time of a training iteration with the optimizer on the host (LSP-Offload, sections 3, 4.2).

All functions compute the time from the seconds of the stages.
"""

from dataclasses import dataclass
from math import floor


@dataclass(frozen=True)
class StageSeconds:
    """The seconds of an iteration's stages, each summed over all layers.

    Attributes:
        forward: forward pass on the accelerator.
        backward: backward pass on the accelerator, including recomputation.
        offload: transfer of gradients from the accelerator to the host.
        update: optimizer on the host.
        upload: transfer of updates from the host to the accelerator.
        layers: number of layers that share the seconds evenly, at least 1.
    """

    forward: float
    backward: float
    offload: float
    update: float
    upload: float
    layers: int

    @property
    def compute(self) -> float:
        """Seconds of forward and backward pass."""
        return self.forward + self.backward


def zero_offload_iteration(stages: StageSeconds) -> float:
    """Return the seconds of an iteration under Zero-Offload's schedule (equation 1).

    Gradients are transferred during the backward pass. The update begins after the backward pass
    and overlaps the upload.
    """
    return stages.forward + max(stages.backward, stages.offload) + max(stages.update, stages.upload)


def layerwise_iteration(stages: StageSeconds) -> float:
    """Return the seconds of an iteration under the layer-wise schedule (section 4.2).

    The busiest of accelerator, link and host determines the time. The last layer's transfer and
    update add to it, because they begin after the accelerator's work and overlap with nothing. The
    paper's formula has one term for this layer's two transfers; here the term is the longer
    transfer.
    """
    last_layer = max(stages.offload, stages.upload) + stages.update
    return max(
        stages.compute + last_layer / stages.layers,
        stages.offload,
        stages.upload,
        stages.update,
    )


def transition_layer(stages: StageSeconds) -> int:
    """Return the number of lowest layers served last come, first served (section 4.2).

    Layers count from 0, next to the embedding. Layers from the returned number upward are served
    first come, first served. Their number is chosen so that the busiest stage of offload, update
    and upload has finished these upper layers when the backward pass reaches layer 0.

    Returns:
        0 (all layers first come, first served) to `stages.layers` (none).
    """
    one_layer = (stages.offload + stages.update + stages.upload) / stages.layers
    busiest = max(stages.offload, stages.update, stages.upload) / stages.layers
    if busiest == 0:
        return 0
    finished = floor((stages.backward - one_layer) / busiest)
    return stages.layers - min(max(finished, 0), stages.layers)
