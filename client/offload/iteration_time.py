"""The time of a training iteration whose optimizer runs on the host (LSP-Offload, sections 3, 4.2).

Pure functions of the seconds that the stages take.
"""

from dataclasses import dataclass
from math import floor


@dataclass(frozen=True)
class StageSeconds:
    """The seconds of an iteration's stages, each summed over all layers.

    Attributes:
        forward: forward pass on the accelerator.
        backward: backward pass on the accelerator, with what it computes again.
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
        """The seconds of forward and backward pass."""
        return self.forward + self.backward


def zero_offload_iteration(stages: StageSeconds) -> float:
    """Return the seconds of an iteration under Zero-Offload's schedule (equation 1).

    Gradients leave during the backward pass; the update begins after it and overlaps the upload.
    """
    return stages.forward + max(stages.backward, stages.offload) + max(stages.update, stages.upload)


def layerwise_iteration(stages: StageSeconds) -> float:
    """Return the seconds of an iteration under the layer-wise schedule (section 4.2).

    The busiest of accelerator, link and host decides; behind the accelerator's work come one
    layer's transfer and update, which nothing overlaps. Of the layer's two transfers the formula
    of the paper has one term; here it is the longer one.
    """
    last_layer = max(stages.offload, stages.upload) + stages.update
    return max(
        stages.compute + last_layer / stages.layers,
        stages.offload,
        stages.upload,
        stages.update,
    )


def transition_layer(stages: StageSeconds) -> int:
    """Return how many of the lowest layers are served last come, first served (section 4.2).

    Layers count from 0, next to the embedding; layers from the returned one upward are served
    first come, first served: so many that the busiest of the three stages behind the accelerator
    has finished with them when the backward pass reaches the first layer.

    Returns:
        0 (all layers first come, first served) to `stages.layers` (none).
    """
    one_layer = (stages.offload + stages.update + stages.upload) / stages.layers
    busiest = max(stages.offload, stages.update, stages.upload) / stages.layers
    if busiest == 0:
        return 0
    finished = floor((stages.backward - one_layer) / busiest)
    return stages.layers - min(max(finished, 0), stages.layers)
