"""The work of a run's step on a device: the model's shape, examples per pass, directions."""

from samara.client.forward.setup import EVALUATION_MICRO_BATCH
from samara.client.streaming.loading import choose_tier
from samara.devices.hardware.estimate import UNIT
from samara.devices.hardware.model_shape import ModelShape, model_shape
from samara.devices.hardware.roofline import Grouping, Quantization, Workload
from samara.shared.model.model_folder import find_embedded_model
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask

_GROUPINGS: dict[str, Grouping] = {
    "sequential": "sequential",
    "inner": "inner",
    "outer": "outer",
    "both": "both",
    "auto": "sequential",  # the lower bound of auto, which groups as many as fit in memory
}


def shape_of(config: RunConfig) -> ModelShape:
    """Return the shape of a run's model.

    Raises:
        ModelError: if the shape cannot be read, for example before the model's download.
    """
    path = config.model.path
    shape = model_shape(str(find_embedded_model()) if path == EMBEDDED_MODEL else path)
    return shape.at(config.adapter.depth)


def workload_of(config: RunConfig, shape: ModelShape) -> Workload:
    """Return the work of a step on the examples of one forward pass.

    Args:
        config: settings of the run.
        shape: shape of the run's model.
    """
    model = config.model
    inner = config.adapter.inner_layers
    return Workload(
        sequence=min(model.max_length, shape.context or model.max_length),
        batch=examples_in_pass(config),
        queries=config.queries,
        grouping=_GROUPINGS[config.grouping],
        differences=config.differences,
        curvature=config.learning_rate == "auto",
        quantization=_stored(config),
        top=int(inner.removeprefix("top:")) if inner.startswith("top:") else 0,
        rank=config.adapter.rank,
        stream="disk" if choose_tier(model) == "disk" else "off",
    )


def examples_in_pass(config: RunConfig) -> int:
    """Return the maximum number of examples in a forward pass."""
    if config.adapter.inner_layers:
        return min(config.batch, config.examples_in_pass or config.batch)
    return min(config.batch, config.examples_in_pass or EVALUATION_MICRO_BATCH, UNIT)


def label_count(task: str) -> int:
    """Return the number of labels of a task; 1 if the task cannot have a readout.

    Raises:
        SamaraError: if the task cannot be read.
    """
    match load_task(task):
        case ClassificationTask(words=labels) | ChoiceTask(candidates=tuple() as labels):
            return len(labels)
        case _:
            return 1


def _stored(config: RunConfig) -> Quantization:
    """Return the storage type of the blocks' weights, by the name that the time model uses."""
    if config.model.quantization != "none":
        return config.model.quantization
    return "fp32" if config.model.dtype == "float32" else "fp16"
