"""A tuning run from settings to result: steps, validations, the best state, and the final test.

OUT/tune.json      identity of the run: all settings, model, task, data
OUT/metrics.jsonl  every evaluation, written immediately
OUT/trajectory.bin, or checkpoint.safetensors and best.safetensors: the state of the training
OUT/classifier.safetensors: initial weights of a classifier in place of label words
OUT/start.safetensors: the state with the lowest validation loss, for `adapter.start`
OUT/model          the best state as a model folder, if the method trains the model's own weights
OUT/result.json    the summary, written at the end

If a run is killed, the next start continues from the files in its folder, to the same result.
"""

import json
import logging
import platform
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samara.client.tuning.baselines.first_order import FirstOrder
from samara.client.tuning.baselines.icl import InContext
from samara.client.tuning.baselines.linear_probe import LinearProbe
from samara.client.tuning.classifier import write_classifier
from samara.client.tuning.classifier_start import start_classifier
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.training_method import TrainingMethod
from samara.client.tuning.tuning_curves import Curves, open_curves
from samara.client.tuning.tuning_folder import (
    MODEL_PATH,
    RESULT_FILE,
    find_ended,
    hash_of,
    identity_of,
    locked,
)
from samara.client.tuning.tuning_setup import (
    EvaluationResult,
    ScoresAndAnswers,
    TaskSplit,
    TuningSetup,
)
from samara.client.tuning.zeroth_order import ZerothOrder
from samara.shared import DISTRIBUTION
from samara.shared.errors import ConfigError, ModelError, TaskError
from samara.shared.machine.installed_code import samara_version
from samara.shared.machine.process import cores, peak_memory_bytes
from samara.shared.model.loading import check_torch_device
from samara.shared.protocol.start import START_FILE
from samara.shared.settings.features import kind_of
from samara.shared.settings.runs import RUNS_FOLDER, check_results_folder, folder_name
from samara.shared.storage.events import append_event, read_events
from samara.shared.storage.files import write_durably
from samara.shared.tasks.profiled_loss import fitted_shift

log = logging.getLogger("samara.tune")

METRICS_FILE = "metrics.jsonl"

EvaluateSplit = Callable[[TaskSplit], EvaluationResult]


def tune(
    settings: TuneSettings, on_step: Callable[[int, int], None] = lambda done, steps: None
) -> Path:
    """Execute a tuning run on this machine, and return its folder.

    Model, task and data are loaded first, so that mistakes in them are reported before anything is
    written. If the folder holds an unfinished part of the same run, the run is continued. A
    finished run is left unchanged.

    Args:
        settings: settings of the run.
        on_step: function that is called with the number of steps taken and the total number of
            steps.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    begun = time.monotonic()
    settings = settings.complete(cores())
    check_results_folder(settings.out)
    check_torch_device(settings.model.torch_device)
    if ended := find_ended(settings):
        log.info("%s already holds the result of this run", ended)
        return ended
    log.info("loading the model and reading the data")
    setup = TuningSetup(settings)
    identity = identity_of(settings, setup.task, setup.base.model_id, setup.examples)
    settings_hash = hash_of(identity)
    classifier = start_classifier(setup)
    folder = RUNS_FOLDER / folder_name(settings.task, settings_hash.hex())
    folder = Path(settings.out) if settings.out else folder
    with locked(folder, identity):
        result_file = folder / RESULT_FILE
        if result_file.exists():
            log.info("%s: the run has already ended", folder)
            return folder
        if classifier is not None:
            write_classifier(classifier, folder)
        evaluations = _EvaluationLog(folder / METRICS_FILE, setup.task.metric)
        results = (
            _train(setup, folder, settings_hash, evaluations, on_step)
            if settings.trains
            else _evaluate_baseline(setup, evaluations)
        )
        summary = identity | results | _environment(setup, time.monotonic() - begun)
        content = json.dumps(summary, indent=2, sort_keys=True) + "\n"
        write_durably(result_file, content.encode())
    return folder


def read_result(folder: Path) -> dict[str, Any]:
    """Read the summary of a finished run.

    Raises:
        ConfigError: if the file is missing or damaged.
    """
    file = folder / RESULT_FILE
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{file}: cannot be read: {why}; has the run ended? Repeat its command until it has"
        ) from error
    return result


class _EvaluationLog:
    """The evaluations in a run's metrics file, each of which is computed only once.

    Args:
        file: metrics file of the run.
        metric: name of the task's metric.
    """

    def __init__(self, file: Path, metric: str) -> None:
        self._file = file
        self._metric = metric
        self._events = read_events(file)

    def result(
        self, state: str, split: str, step: int, evaluate: Callable[[], EvaluationResult]
    ) -> EvaluationResult:
        """Return the stored result of a state on a split; without one, evaluate and store it.

        Args:
            state: name of the state, used as the event's name.
            split: name of the split.
            step: number of steps taken.
            evaluate: function that evaluates the state.
        """
        key = {"event": state, "split": split, "step": step}
        for event in self._events:
            if key.items() <= event.items():
                figures = (event["examples"], event["loss"], event[self._metric])
                return EvaluationResult(*figures, event.get("auc"))
        result = evaluate()
        event = key | self.to_json(result)
        append_event(self._file, event)
        self._events.append(event)
        log.info("%s", _log_line(state, split, step, result, self._metric), extra={"event": event})
        return result

    def to_json(self, result: EvaluationResult) -> dict[str, Any]:
        """Return a result as the object written to files."""
        return {
            "examples": result.examples,
            "loss": result.loss,
            self._metric: result.metric,
            **({} if result.auc is None else {"auc": result.auc}),
        }


def _log_line(state: str, split: str, step: int, result: EvaluationResult, metric: str) -> str:
    begin = f"step {step}" if state == "step" else state
    area = "" if result.auc is None else f", AUC {result.auc:.3f}"
    return f"{begin}, {split}: loss {result.loss:.4f}, {metric} {result.metric:.2%}{area}"


def _train(
    setup: TuningSetup,
    folder: Path,
    settings_hash: bytes,
    evaluations: _EvaluationLog,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    """Evaluate the base model, train it, and evaluate its best state on the test split."""
    validation = setup.splits["validation"]
    test = setup.splits["test"]
    before = {
        name: evaluations.result("zero-shot", name, 0, partial(setup.evaluate_base, split))
        for name, split in (("validation", validation), ("test", test))
    }
    method: TrainingMethod = (
        FirstOrder(setup, folder, settings_hash)
        if setup.settings.is_first_order
        else ZerothOrder(setup, folder, settings_hash)
    )
    if method.warning:
        log.warning("%s", method.warning)
    with closing(method), closing(open_curves(folder, method.steps)) as curves:
        at_zero = None if setup.settings.space == "prefix" else before["validation"]
        validations = _take_steps(setup, method, evaluations, curves, on_step, folder, at_zero)
        best = _tested_step(setup.settings, validations)
        method.restore_best(best)
        after = evaluations.result("best", "test", best, partial(method.evaluate, test))
        digest = method.digest()
        cost = method.emulated_cost()
        method.export()
    to_json = evaluations.to_json
    start = _log_start(validations) if (folder / START_FILE).exists() else {}
    return (start | ({"emulated": cost} if cost else {})) | {
        "zero_shot": {split: to_json(result) for split, result in before.items()},
        "curve": [{"step": step} | to_json(result) for step, result in validations.items()],
        "best_step": best,
        "validation": to_json(validations[best]),
        "test": to_json(after),
        "digest": digest,
    }


def _log_start(validations: dict[int, EvaluationResult]) -> dict[str, int]:
    """Log the step whose state is the start, and return it as a part of the result."""
    step = _start_step(validations)
    if step == 0:
        log.warning(
            "%s is the base model: no later state has a lower validation loss; use more "
            "training examples, or a lower learning-rate",
            START_FILE,
        )
    else:
        loss = validations[step].loss
        log.info("%s: the state after step %d, validation loss %.4f", START_FILE, step, loss)
    return {"start_step": step}


def _write_start(method: TrainingMethod, file: Path) -> None:
    """Write the current state as a federation's start, if an adapter can have this state."""
    try:
        start = method.make_start()
    except ModelError as error:
        file.unlink(missing_ok=True)
        log.warning("%s is not written: %s", file, error)
        return
    if start is not None:
        write_durably(file, start.encode())


def _take_steps(
    setup: TuningSetup,
    method: TrainingMethod,
    evaluations: _EvaluationLog,
    curves: Curves,
    on_step: Callable[[int, int], None],
    folder: Path,
    at_zero: EvaluationResult | None,
) -> dict[int, EvaluationResult]:
    """Take all remaining steps, and return the validation results of the whole run by step.

    A start is written whenever the validation loss reaches a new minimum. At step 0 the model is
    the base model. Its validation result is `at_zero`, or is computed if that is None.
    """
    settings = setup.settings
    validation = setup.splits["validation"]
    first = method.steps
    stops = sorted({*range(0, settings.steps, settings.validate_every), settings.steps})
    validations = {}
    for stop in stops:
        while method.steps < stop:
            loss = method.step()
            curves.add("train/loss", loss, method.steps)
            on_step(method.steps, settings.steps)
        if stop >= first:
            method.save()
        evaluate = partial(_evaluate_at, method, stop, validation)
        if stop == 0 and at_zero is not None:
            evaluate = partial(_same, at_zero)
        validations[stop] = result = evaluations.result("step", "validation", stop, evaluate)
        if _tested_step(settings, validations) == stop == method.steps:
            method.keep_best()
        if _start_step(validations) == stop == method.steps:
            _write_start(method, folder / START_FILE)
        if stop >= first:
            curves.add("validation/loss", result.loss, stop)
            curves.add(f"validation/{setup.task.metric}", result.metric, stop)
    return validations


def _evaluate_at(method: TrainingMethod, step: int, split: TaskSplit) -> EvaluationResult:
    """Evaluate the current state of a method that has taken a given number of steps."""
    if method.steps != step:
        raise ConfigError(
            f"{METRICS_FILE} lacks the validation after step {step}, but the run is already "
            f"at step {method.steps}; begin the run in another folder"
        )
    return method.evaluate(split)


def _same(result: EvaluationResult) -> EvaluationResult:
    return result


def _tested_step(settings: TuneSettings, validations: dict[int, EvaluationResult]) -> int:
    """Return the validated step whose state is tested and kept."""
    return max(validations) if settings.tested_state == "last" else _best_step(validations)


def _best_step(validations: dict[int, EvaluationResult]) -> int:
    """Return the first step with the best validation result."""
    return max(validations, key=lambda step: validations[step].rank)


def _start_step(validations: dict[int, EvaluationResult]) -> int:
    """Return the first step with the lowest validation loss.

    The start is chosen by the loss rather than by the metric. An accuracy on a few hundred examples
    has an error of several points, which hides the effect of training on other data. The loss on
    the same examples distinguishes the states.
    """
    return min(validations, key=lambda step: validations[step].loss)


def _evaluate_baseline(setup: TuningSetup, evaluations: _EvaluationLog) -> dict[str, Any]:
    """Evaluate a method that takes no steps."""
    method = setup.settings.optimizer
    splits = {name: setup.splits[name] for name in ("validation", "test")}
    scores = setup.base_scores
    details: dict[str, Any] = {}
    if method == "icl":
        context = InContext(setup, setup.settings.demonstrations)
        fewest = min(context.count(prompt) for split in splits.values() for prompt in split.prompts)
        scores = context.scores
        details = {"fewest_demonstrations": fewest}
    evaluate: EvaluateSplit = partial(_evaluate_scored, setup, scores)
    if method == "linear-probe":
        probe = LinearProbe(setup)
        evaluate = probe.evaluate
        details = {"strength": probe.strength}
    elif setup.settings.adapter.label_bias:
        evaluate = _with_fitted_bias(setup, scores)
    results = {
        name: evaluations.result(method, name, 0, partial(evaluate, split))
        for name, split in splits.items()
    }
    return {name: evaluations.to_json(result) for name, result in results.items()} | details


def _evaluate_scored(
    setup: TuningSetup, scores: Callable[[TaskSplit], ScoresAndAnswers], split: TaskSplit
) -> EvaluationResult:
    return setup.result_of(*scores(split), split)


def _with_fitted_bias(
    setup: TuningSetup, scores: Callable[[TaskSplit], ScoresAndAnswers]
) -> EvaluateSplit:
    """Return an evaluation of scores plus a label bias that is fitted to the validation split.

    Raises:
        TaskError: if the rows have no common labels.
    """
    if (kind := kind_of(setup.task)) in ("open choice", "generation"):
        raise TaskError(
            f"task {setup.task.name!r} is a task of the kind {kind}, whose rows have no common "
            "labels; leave adapter.label-bias out"
        )
    of_split = cache(lambda split: scores(split)[0])
    validation = setup.splits["validation"]

    def evaluate(split: TaskSplit) -> EvaluationResult:
        (bias,) = fitted_shift(of_split(validation)[None], validation.labels)
        return setup.result_of(of_split(split) + bias.astype(np.float32), [], split)

    return evaluate


def _environment(setup: TuningSetup, seconds: float) -> dict[str, Any]:
    """Return the model's path, and this process's duration, peak memory and library versions."""
    device = torch.device(setup.settings.model.torch_device)
    on_gpu = device.type == "cuda"
    model = setup.settings.model.path
    return {
        MODEL_PATH: str(Path(model).resolve()) if Path(model).is_dir() else model,
        "seconds": round(seconds, 3),
        "peak_memory_bytes": (
            torch.cuda.max_memory_allocated(device) if on_gpu else peak_memory_bytes()
        ),
        "versions": {
            DISTRIBUTION: samara_version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
        },
    }
