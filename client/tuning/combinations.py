"""The combinations of tuning settings that are refused, with the reasons and remedies."""

from samara.client.tuning.methods import BY_PEFT, MEZO, SPACES, ZEROTH_ORDER
from samara.client.tuning.setting_fields import TuneFields
from samara.shared.settings.config import NO_STREAMED_GRADIENTS
from samara.shared.settings.features import TUNING_EXCLUSIONS, refusals
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.settings.setting import describe
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.tasks.sampling import LOW_DATA


def mistakes_in(settings: TuneFields) -> list[str]:
    """Return the mistakes in a combination of settings, each of which is valid by itself."""
    return [*_about_the_optimizer(settings), *_about_the_data(settings)]


def _about_the_optimizer(settings: TuneFields) -> list[str]:
    mistakes = []
    optimizer, where = settings.optimizer, SPACES[settings.optimizer]
    if settings.space != "auto" and settings.space not in where:
        if not where:
            mistakes.append(f"space: {optimizer} trains nothing in the model; leave space out")
        else:
            able = [other for other, spaces in SPACES.items() if settings.space in spaces]
            mistakes.append(
                f"space: {optimizer} can train {' or '.join(where)}, but not {settings.space}; "
                f"methods that can train {settings.space}: {', '.join(able)}"
            )
    mistakes += _about_the_rate(settings)
    mistakes += _about_unread_settings(settings)
    mistakes += _about_peft(settings)
    if optimizer not in ZEROTH_ORDER and settings.objective in ("metric", PROFILED):
        trained = "a metric" if settings.objective == "metric" else "a profiled loss"
        mistakes.append(
            f"objective: {optimizer} cannot train {trained}, unlike zeroth-order methods; "
            "choose prge or mezo, or another objective"
        )
    if settings.objective == PROFILED and settings.adapter.label_bias:
        mistakes.append(
            "adapter.label-bias: a profiled loss fits a bias at every step; leave this setting out"
        )
    mistakes += [
        f"adapter.{key}: samara tune trains an adapter from zero; leave adapter.{key} out"
        for key in ("basis", "start")
        if getattr(settings.adapter, key)
    ]
    mistakes += _about_perturbations(settings)
    if settings.tf32 and not settings.model.torch_device.startswith("cuda"):
        mistakes.append(
            f"tf32: {settings.model.torch_device} has no TF32; set model.torch-device to cuda, or "
            "leave tf32 out"
        )
    mistakes += _about_the_prefix(settings)
    mistakes += _about_the_classifier(settings)
    mistakes += _about_scaling(settings)
    mistakes += _about_gradients(settings) if settings.is_first_order else []
    mistakes += refusals(settings.features, TUNING_EXCLUSIONS)
    mistakes += _about_derivatives(settings)
    if settings.stream_compression != "none" and (
        settings.space != "full" or settings.model.stream not in ("host", "disk")
    ):
        mistakes.append(
            "stream-compression: applies only if all parameters are trained and streamed; set "
            "space to full and model.stream to host or disk, or leave stream-compression out"
        )
    return mistakes


def _about_the_rate(settings: TuneFields) -> list[str]:
    mistakes = []
    if settings.optimizer == "fo-sgd" and settings.learning_rate == "auto":
        mistakes.append(
            "learning-rate: fo-sgd has no default; set learning-rate to a number. MeZO's table 15 "
            "lists 1e-4 to 1e-2 for training all parameters"
        )
    if settings.estimates_its_rate:
        if settings.learning_rate_schedule != "constant" or settings.warm_up:
            mistakes.append(
                "learning-rate-schedule, warm-up: an estimated learning rate has no schedule; "
                "leave both settings out, or set learning-rate to a number"
            )
        if settings.differences == "one-point":
            mistakes.append(
                "differences: the learning rate is estimated from the curvature, which needs more "
                "than one loss per direction; set learning-rate to a number, or "
                "differences to central"
            )
        if settings.rate_per_query:
            mistakes.append(
                "rate-per-query: an estimated learning rate already depends on the number of "
                "directions; leave rate-per-query out, or set learning-rate to a number"
            )
    if settings.warm_up >= settings.steps:
        mistakes.append(
            f"warm-up: with {settings.warm_up} of {settings.steps} steps no step has the full "
            "learning rate; lower warm-up, or raise steps"
        )
    return mistakes


def _about_peft(settings: TuneFields) -> list[str]:
    """Return the mistakes in settings for an adapter that PEFT computes."""
    space, mistakes = settings.trained_space, []
    if space not in BY_PEFT:
        return []
    if settings.model.stream in ("host", "disk"):
        mistakes.append(
            f"model.stream: PEFT computes {space} from the weights of all blocks at once; set "
            "model.stream to off, or space to lora"
        )
    if settings.adapter.label_bias:
        mistakes.append(
            f"adapter.label-bias: {space} has no label bias; leave adapter.label-bias out, or set "
            "space to lora"
        )
    if space == "dora" and settings.gradients == "forward-mode":
        mistakes.append(
            "gradients: PEFT treats the norm in dora as a constant, so forward-mode would not "
            "compute the derivative of the loss; set gradients to differences, or space to lora"
        )
    return mistakes


def _about_the_prefix(settings: TuneFields) -> list[str]:
    """Return the mistakes in the settings of a network that computes the prefix."""
    if settings.prefix_width and settings.prefix_start == "activations":
        return [
            "prefix-start: with prefix-width, a network also computes the prefix's start; set "
            "prefix-start to random, or prefix-width to 0"
        ]
    return []


def _about_the_classifier(settings: TuneFields) -> list[str]:
    """Return the mistakes in settings for a classifier in place of label words."""
    mistakes: list[str] = []
    if settings.classifier == "label-words":
        return mistakes
    if settings.trained_space != "full" or settings.optimizer == "zero-offload":
        mistakes.append(
            "classifier: a linear layer in place of label words can only be trained together with "
            "all parameters; set space to full and optimizer to mezo, fo-adam or fo-sgd"
        )
    if settings.objective == "likelihood":
        mistakes.append(
            "objective: a classifier's scores are not the likelihoods of texts; set objective to "
            "cross-entropy, or classifier to label-words"
        )
    if settings.model.stream in ("host", "disk"):
        mistakes.append(
            "classifier: only parameters in the model's files can be streamed; set model.stream "
            "to off, or classifier to label-words"
        )
    return mistakes


def _about_perturbations(settings: TuneFields) -> list[str]:
    """Return the mistakes in settings about parameters that a zeroth-order method perturbs."""
    mistakes, optimizer, space = [], settings.optimizer, settings.trained_space
    other = "one-point" if optimizer == "prge" else "forward"
    if optimizer in ZEROTH_ORDER and settings.differences == other:
        mistakes.append(
            f"differences: {optimizer} has no {settings.differences} differences; choose central"
            + (" or forward" if optimizer == "prge" else " or one-point")
        )
    if settings.in_place is True and space != "full" and "full" in SPACES[optimizer]:
        mistakes.append(
            f"in-place: in the space {space} the model's parameters are not perturbed; leave "
            "in-place out, or set space to full"
        )
    if optimizer in ZEROTH_ORDER and space == "full" and settings.model.quantization != "none":
        mistakes.append(
            f"model.quantization: a perturbation of all parameters cannot be added to weights in "
            f"{settings.model.quantization}; set model.quantization to none, or space to lora"
        )
    if optimizer in ZEROTH_ORDER and settings.autocast != "none":
        if settings.gradients != "differences" or settings.objective == "metric":
            mistakes.append(
                "autocast: zeroth-order methods use autocast for differences of losses only; leave "
                "autocast out, or set gradients to differences and objective to cross-entropy"
            )
        if settings.features["adapter"] in ("readout", "both") and space == "lora-fa":
            mistakes.append(
                "autocast: a readout's differences need float32; leave autocast out, or set "
                "adapter.layers to top:1"
            )
    if settings.in_place is True and settings.stream_compression != "none":
        mistakes.append(
            "in-place: parameters that are perturbed in place keep the type in which the model "
            "computes; leave stream-compression out"
        )
    return mistakes


def _about_derivatives(settings: TuneFields) -> list[str]:
    """Return the mistakes in settings for exact derivatives in a zeroth-order method."""
    mistakes: list[str] = []
    if settings.gradients == "differences" or settings.optimizer not in ZEROTH_ORDER:
        return mistakes
    if settings.model.stream in ("host", "disk"):
        mistakes.append(NO_STREAMED_GRADIENTS)
    if settings.gradients == "exact" and settings.optimizer in MEZO:
        mistakes.append(
            f"gradients: {settings.optimizer} has a separate batch for every direction, but exact "
            "derivatives use a single backward pass for all directions; set gradients to "
            "forward-mode, or optimizer to prge"
        )
    if settings.gradients == "forward-mode":
        if settings.differences != "central":
            mistakes.append(
                "differences: forward-mode computes derivatives without differences; leave "
                "differences out"
            )
        if settings.features["adapter"] in ("readout", "both"):
            mistakes.append(
                "gradients: forward-mode is for parameters inside the model; set gradients to "
                "exact, which costs little for a readout"
            )
        if settings.objective == "metric":
            mistakes.append(
                "gradients: a metric has no derivative; set gradients to differences, or choose "
                "another objective"
            )
        if settings.in_place is True and settings.estimates_its_rate:
            mistakes.append(
                "in-place: the learning rate is estimated from perturbations, whose rounding "
                "errors in place would change a forward-mode run; set learning-rate to a number, "
                "or in-place to false"
            )
    return mistakes


def _about_scaling(settings: TuneFields) -> list[str]:
    """Return the mistakes in settings for scaled directions and the norms of groups."""
    scaling, mistakes = settings.scaling, []
    if scaling.modify == "nothing" or settings.optimizer not in MEZO:
        return []
    if settings.trained_space == "lora-fa":
        mistakes.append(
            "scaling.modify: directions of the space lora-fa cannot be scaled; set space to lora, "
            "full or prefix"
        )
    if settings.estimates_its_rate:
        mistakes.append(
            "scaling.modify: the estimate of the learning rate assumes directions of equal scale; "
            "set learning-rate to a number"
        )
    if settings.differences == "one-point":
        mistakes.append(
            "scaling.modify: MeZO's definitions 6 and 7 need two losses for each direction; set "
            "differences to central"
        )
    if settings.in_place is True and scaling.norms == "gradients":
        mistakes.append(
            "scaling.norms: perturbing single groups in place would leave rounding errors that "
            "replay does not repeat; set scaling.norms to parameters, or in-place to false"
        )
    if scaling.norms == "backward" and settings.objective == "metric":
        mistakes.append(
            "scaling.norms: a metric has no gradient; set scaling.norms to gradients, or choose "
            "another objective"
        )
    if scaling.norms == "backward" and (
        settings.trained_space != "full"
        or settings.model.dtype != "float32"
        or settings.model.stream in ("host", "disk")
    ):
        mistakes.append(
            "scaling.norms: backward needs all parameters in float32 and all blocks at once; set "
            "scaling.norms to gradients, or space to full, model.dtype to float32 and "
            "model.stream to off"
        )
    return mistakes


def _about_gradients(settings: TuneFields) -> list[str]:
    """Return the mistakes in settings for a first-order method."""
    mistakes, optimizer, space = [], settings.optimizer, settings.trained_space
    if settings.autocast == "float16":
        mistakes.append(
            "autocast: small gradients of a backward pass are zero in float16; choose bfloat16"
        )
    fine = ("float32", "bfloat16") if optimizer == "lsp" else ("float32",)
    if space != "lora-fa" and settings.model.dtype not in fine:
        mistakes.append(
            f"model.dtype: {optimizer} in the space {space} trains the model's own weights, and "
            f"{settings.model.dtype} is too coarse for the updates; set model.dtype to "
            f"{' or '.join(fine)}"
        )
    if settings.model.quantization != "none":
        mistakes.append(
            f"model.quantization: updates of {optimizer} are smaller than the distance between "
            "quantized weights, so rounding would remove them; set model.quantization to none"
        )
    if settings.model.stream in ("host", "disk"):
        mistakes.append(
            f"model.stream: the backward pass of {optimizer} needs all blocks at once; set "
            "model.stream to off"
        )
    is_one_core = settings.model.torch_device == "cpu" and settings.threads == 1
    if settings.offload.emulates and not is_one_core:
        mistakes.append(
            "offload: an emulated accelerator is one core of the CPU; set model.torch-device "
            "to cpu and threads to 1, or leave out the offload settings for memory, bandwidth "
            "and slowdowns"
        )
    if settings.offload.emulates and settings.offload.schedule == "none":
        mistakes.append(
            "offload.schedule: an emulated accelerator offloads work to its host, but the schedule "
            "none offloads nothing; set offload.schedule to layer-wise or zero"
        )
    return mistakes


def _about_unread_settings(settings: TuneFields) -> list[str]:
    flat = settings.flat()
    return [
        f"{key}: {settings.optimizer} does not read this setting; leave it out, or choose "
        + " or ".join(described.read_by)
        for key, described in describe(type(settings)).items()
        if not described.is_read_by(settings.optimizer)
        and flat[key] not in (described.default, described.before)
    ]


def _about_the_data(settings: TuneFields) -> list[str]:
    mistakes = []
    if settings.data.per_label:
        mistakes += [
            f"data.{split}: data.per-label already sets the number of examples; leave one of the "
            "two settings out"
            for split in ("train", "validation")
            if getattr(settings.data, split) != LOW_DATA[split]
        ]
    if settings.data.path != EMBEDDED_DATA:
        if settings.model.path == EMBEDDED_MODEL:
            mistakes.append(
                "model: the embedded model knows the words of generated messages only; "
                "set model.path to a model that can read your data"
            )
        if settings.task == EMBEDDED_DATA:
            mistakes.append(
                f"task: {EMBEDDED_DATA} asks about generated messages; set task to a shipped task "
                "or a task file that fits your data"
            )
    return mistakes
