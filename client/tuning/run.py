"""A tuning run from settings to result: steps, validations, the best state, the test at the end.

OUT/tune.json      what the run is: all settings, model, task, data
OUT/metrics.jsonl  every evaluation, as it happens
OUT/trajectory.bin, or checkpoint.safetensors and best.safetensors: what it goes on from
OUT/result.json    the summary, written at the end

A run that was killed goes on from what is in its folder, to the same result.
"""

import hashlib
import json
import logging
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from client.tuning.baselines.first_order import FirstOrder
from client.tuning.baselines.icl import InContext
from client.tuning.baselines.linear_probe import LinearProbe
from client.tuning.baselines.zero_shot import zero_shot
from client.tuning.learner import Learner
from client.tuning.settings import TuneSettings
from client.tuning.tuning_curves import Curves, curves_in
from client.tuning.tuning_setup import Figures, Split, TuningSetup
from client.tuning.zeroth_order import ZerothOrder
from shared import DISTRIBUTION
from shared.errors import ConfigError
from shared.events import append_event, read_events
from shared.files import make_folder, write_durably
from shared.machine import cores, peak_memory_bytes

log = logging.getLogger("samara.tune")

IDENTITY_FILE, METRICS_FILE, RESULT_FILE = "tune.json", "metrics.jsonl", "result.json"


def tune(
    settings: TuneSettings, on_step: Callable[[int, int], None] = lambda done, steps: None
) -> Path:
    """Run a method on one device; returns the run's folder.

    Model, task and data are loaded first, so that a mistake in them is found before anything is
    written. A folder that holds the beginning of the same run is continued, a finished one is left.

    Args:
        settings: of the run.
        on_step: called with the steps taken and those of the run.

    Raises:
        SamaraError: if the run cannot begin, or cannot go on.
    """
    begun = time.monotonic()
    bench = TuningSetup(settings.complete(cores()))
    identity = _identity(bench)
    settings_hash = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).digest()
    folder = Path(settings.out) if settings.out else Path("runs") / settings_hash[:8].hex()
    with _opened(folder, identity):
        result = folder / RESULT_FILE
        if result.exists():
            log.info("%s: the run has ended already", folder)
            return folder
        record = _Record(folder / METRICS_FILE, bench.task.metric)
        found = (
            _trained(bench, folder, settings_hash, record, on_step)
            if settings.trains
            else _untrained(bench, record)
        )
        summary = identity | found | _circumstances(bench, time.monotonic() - begun)
        write_durably(result, (json.dumps(summary, indent=2, sort_keys=True) + "\n").encode())
    return folder


def read_result(folder: Path) -> dict[str, Any]:
    """The summary of a run that has ended.

    Raises:
        ConfigError: if the file is missing or damaged.
    """
    file = folder / RESULT_FILE
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}; has the run ended?") from error
    return result


class _Record:
    """Evaluations of a run, kept in its metrics file; none is made twice.

    Args:
        file: the metrics.
        metric: the name of the task's own.
    """

    def __init__(self, file: Path, metric: str) -> None:
        self._file, self._metric = file, metric
        self._events = read_events(file)

    def of(self, state: str, split: str, step: int, evaluate: Callable[[], Figures]) -> Figures:
        """The figures of a state on a split, made now unless they are known."""
        place = {"event": state, "split": split, "step": step}
        for event in self._events:
            if place.items() <= event.items():
                return Figures(event["examples"], event["loss"], event[self._metric])
        figures = evaluate()
        event = place | self.shown(figures)
        append_event(self._file, event)
        self._events.append(event)
        log.info("%s", _line(state, split, step, figures, self._metric), extra={"event": event})
        return figures

    def shown(self, figures: Figures) -> dict[str, Any]:
        """Figures as files have them."""
        return {
            "examples": figures.examples,
            "loss": figures.loss,
            self._metric: figures.metric,
        }


def _line(state: str, split: str, step: int, figures: Figures, metric: str) -> str:
    begin = f"step {step}" if state == "step" else state
    return f"{begin}, {split}: loss {figures.loss:.4f}, {metric} {figures.metric:.2%}"


def _trained(
    bench: TuningSetup,
    folder: Path,
    settings_hash: bytes,
    record: _Record,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    validation, test = bench.splits["validation"], bench.splits["test"]
    before = {
        name: record.of("zero-shot", name, 0, partial(zero_shot, bench, split))
        for name, split in (("validation", validation), ("test", test))
    }
    learner: Learner = (
        FirstOrder(bench, folder, settings_hash)
        if bench.settings.method == "fo-adam"
        else ZerothOrder(bench, folder, settings_hash)
    )
    if learner.note:
        log.warning("%s", learner.note)
    with closing(learner), closing(curves_in(folder, learner.steps)) as curves:
        curve = _steps_taken(bench, learner, record, curves, on_step)
        best = _best(curve)
        learner.recall(best)
        after = record.of("best", "test", best, partial(learner.figures, test))
        digest = learner.digest()
    return {
        "zero_shot": {split: record.shown(figures) for split, figures in before.items()},
        "curve": [{"step": step} | record.shown(figures) for step, figures in curve.items()],
        "best_step": best,
        "validation": record.shown(curve[best]),
        "test": record.shown(after),
        "digest": digest,
    }


def _steps_taken(
    bench: TuningSetup,
    learner: Learner,
    record: _Record,
    curves: Curves,
    on_step: Callable[[int, int], None],
) -> dict[int, Figures]:
    """Take all steps that are left; returns the validations by step, from before the first on."""
    settings, validation = bench.settings, bench.splits["validation"]
    first = learner.steps
    stops = sorted({*range(0, settings.steps, settings.validate_every), settings.steps})
    curve = {}
    for stop in stops:
        while learner.steps < stop:
            loss = learner.step()
            curves.add("train/loss", loss, learner.steps)
            on_step(learner.steps, settings.steps)
        if stop >= first:
            learner.save()
        curve[stop] = own = record.of(
            "step", "validation", stop, _only_at(learner, stop, validation)
        )
        if _best(curve) == stop == learner.steps:
            learner.keep()
        if stop >= first:
            curves.add("validation/loss", own.loss, stop)
            curves.add(f"validation/{bench.task.metric}", own.metric, stop)
    return curve


def _only_at(learner: Learner, stop: int, split: Split) -> Callable[[], Figures]:
    def evaluate() -> Figures:
        if learner.steps != stop:
            raise ConfigError(
                f"{METRICS_FILE} lacks the validation after step {stop}, and the run is at step "
                f"{learner.steps}; begin it in another folder"
            )
        return learner.figures(split)

    return evaluate


def _best(curve: dict[int, Figures]) -> int:
    """The first of the steps that nothing on the validation split is better than."""
    return max(curve, key=lambda step: curve[step].rank)


def _untrained(bench: TuningSetup, record: _Record) -> dict[str, Any]:
    """Baselines that take no steps."""
    method = bench.settings.method
    splits = {name: bench.splits[name] for name in ("validation", "test")}
    evaluate: Callable[[Split], Figures] = partial(zero_shot, bench)
    more: dict[str, Any] = {}
    if method == "icl":
        context = InContext(bench, bench.settings.demonstrations)
        fewest = min(context.count(prompt) for own in splits.values() for prompt in own.prompts)
        evaluate, more = context.figures, {"fewest_demonstrations": fewest}
    elif method == "linear-probe":
        probe = LinearProbe(bench)
        evaluate, more = probe.figures, {"strength": probe.strength}
    found = {
        name: record.of(method, name, 0, partial(evaluate, split)) for name, split in splits.items()
    }
    return {name: record.shown(own) for name, own in found.items()} | more


def _identity(bench: TuningSetup) -> dict[str, Any]:
    """All that decides what a run does, by key."""
    return {
        "config": bench.settings.identity(),
        "model_id": bench.base.model_id.hex(),
        "task": bench.task.digest,
        "metric": bench.task.metric,
        "data": bench.data_hash,
        "examples": {name: len(split.labels) for name, split in bench.splits.items()},
    }


@contextmanager
def _opened(folder: Path, identity: dict[str, Any]) -> Iterator[None]:
    """Inside, the folder is this run's and this process's.

    Raises:
        ConfigError: if it holds another run, another process works in it, or it cannot be written.
    """
    try:
        make_folder(folder)
        try:
            lock = FileLock(folder / "lock").acquire(timeout=0)
        except Timeout:
            raise ConfigError(f"{folder}: another process is running it") from None
        with lock:
            _check_same(folder / IDENTITY_FILE, identity)
            yield
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error


def _check_same(file: Path, identity: dict[str, Any]) -> None:
    if not file.exists():
        write_durably(file, (json.dumps(identity, indent=2, sort_keys=True) + "\n").encode())
        return
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        there |= there.pop("config")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file}: damaged: {error!r}; begin the run in another folder") from error
    here = identity | identity["config"]
    del here["config"]
    different = [key for key in here | there if there.get(key) != here.get(key)]
    if different:
        said = ", ".join(
            f"{key} ({there.get(key)} there, {here.get(key)} here)" for key in different
        )
        raise ConfigError(f"{file}: another run is in this folder: {said}; use another folder")


def _circumstances(bench: TuningSetup, seconds: float) -> dict[str, Any]:
    """Where and how long the process that ended the run ran."""
    device = torch.device(bench.settings.model.torch_device)
    on_gpu = device.type == "cuda"
    return {
        "seconds": round(seconds, 3),
        "peak_memory_bytes": (
            torch.cuda.max_memory_allocated(device) if on_gpu else peak_memory_bytes()
        ),
        "versions": {
            DISTRIBUTION: version(DISTRIBUTION),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
        },
    }
