"""Checks of a drafted project, which load the model and estimate the duration of the run."""

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from samara.shared.machine.process import cores
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import ChoiceTask, GenerationTask, Task
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.simulations.planning.plan import describe_plan
from samara.simulations.planning.prompt_form import FormChoice, choose_form
from samara.simulations.project.baselines import describe_baselines
from samara.simulations.project.drafts import (
    SCENARIO_FILE,
    TASK_FILE,
    DataSize,
    ProjectChoices,
    draft_scenario,
    quoted,
)
from samara.simulations.report.fleet import span_of
from samara.simulations.simulate import LoadedSimulation, load_simulation

_COUNTED_TEXTS = 2_000
EMBEDDED_CLIENTS = 8
TUNED_ROWS = 100
"""Number of examples per split with which a task for `samara tune` is tested."""


def checked_files(
    choices: ProjectChoices, task_text: str, folder: Path, say: Callable[[str], None]
) -> tuple[dict[str, str], str]:
    """Return the files of a project by name, and the command that runs it.

    The files are tested in a temporary folder.

    Args:
        choices: choices for the project.
        task_text: text of the task file.
        folder: absolute path of the project's folder.
        say: function that shows a line about a run's expected cost or a baseline.

    Raises:
        SamaraError: if a run of the project could not start.
    """
    files = {TASK_FILE: task_text}
    with tempfile.TemporaryDirectory(prefix="samara-new-") as temporary:
        task = Path(temporary) / TASK_FILE
        scenario = Path(temporary) / SCENARIO_FILE
        task.write_text(task_text, encoding="utf-8")
        size = _size_of(choices, task)
        if chosen := choose_form(_asking(choices, task)):
            say(f"form = {chosen.form}: {chosen.reason}")
            files[TASK_FILE] = task_text = with_form(task_text, chosen)
            task.write_text(task_text, encoding="utf-8")
        if not is_federated(load_task(str(task)), size.users):
            for line in check_tuning(choices, task):
                say(line)
            options = ["--task", str(folder / TASK_FILE), "--data", choices.data]
            options += ["--model", choices.model, "--out", str(folder / "run")]
            return files, shlex.join(["samara", "tune", *options])
        files[SCENARIO_FILE] = draft_scenario(choices, str(folder), size)
        scenario.write_text(files[SCENARIO_FILE], encoding="utf-8")
        places = [f"data.path={choices.data}", f"model.path={choices.model}"]
        for line in check_scenario(scenario, task, folder, places):
            say(line)
    return files, shlex.join(["samara", "simulate", str(folder / SCENARIO_FILE)])


def _asking(choices: ProjectChoices, task: Path) -> RunConfig:
    """Return run settings with a project's model, task and data."""
    paths = {"model.path": choices.model, "data.path": choices.data, "task": str(task)}
    return RunConfig.of(paths, "samara new")


def with_form(task_text: str, chosen: FormChoice) -> str:
    """Return a task file's text with the chosen form before it, outside all TOML tables."""
    return f"# {chosen.reason}\nform = {quoted(chosen.form)}\n{task_text}"


def is_federated(task: Task, users: int) -> bool:
    """Return whether a project of a task is a federation rather than `samara tune`.

    A federation needs equal labels in all rows. A federation on texts needs several users, because
    its aim is to learn each user's style.

    Args:
        task: task of the project.
        users: number of users that can be clients.
    """
    if isinstance(task, GenerationTask):
        return users > 1
    return not (isinstance(task, ChoiceTask) and task.list_names)


def check_scenario(
    scenario: Path, task: Path, folder: Path, places: Sequence[str]
) -> Iterator[str]:
    """Yield lines about the expected cost of a drafted scenario's run, and about its baselines.

    Args:
        scenario: scenario file in a temporary folder.
        task: task file in the same folder.
        folder: final folder of both files.
        places: assignments that replace the scenario's paths of data and model.

    Raises:
        SamaraError: as in `simulate`.
    """
    drafted = load_scenario(scenario, [f"task={task}", f"out={scenario.parent / 'run'}", *places])
    loaded = load_simulation(drafted)
    yield from describe_plan(drafted, loaded.runtime, loaded.shares, folder / "run")
    # for texts, the plan already contains the number of tokens
    if not isinstance(loaded.runtime.task, GenerationTask):
        yield _tokens(loaded)
    yield from describe_baselines(loaded.runtime, loaded.shares)


def _tokens(loaded: LoadedSimulation) -> str:
    """Return a line about the lengths of some training texts, and about texts that are cut."""
    base = loaded.runtime.base
    texts = [example.text for share in loaded.shares for example in share.in_split(Split.TRAIN)]
    texts = texts[:: max(1, len(texts) // _COUNTED_TEXTS)]
    lengths = np.array([len(base.tokenizer(text)["input_ids"]) for text in texts])
    most = min(loaded.of_client.model.max_length, base.context)
    line = f"tokens of a row: median {np.median(lengths):.0f}, at most {lengths.max():,}"
    long = float(np.mean(lengths > most))
    if long:
        line += f"; {long:.1%} of the rows are cut to {most:,} tokens (model.max-length)"
    return line


def check_tuning(choices: ProjectChoices, task: Path) -> Iterator[str]:
    """Yield lines about the zero-shot result on a drafted task, and the duration of `samara tune`.

    Raises:
        SamaraError: as in `tune`.
    """
    from samara.client.tuning.settings import TuneSettings
    from samara.client.tuning.tuning_setup import TuningSetup

    given = {"optimizer": "zero-shot", "task": str(task), "model.path": choices.model}
    counts = {f"data.{split}": TUNED_ROWS for split in ("train", "validation", "test")}
    whole = TuneSettings.of({"task": str(task)}, "tune").complete(cores())
    settings = TuneSettings.of(given | counts | {"data.path": choices.data}, "tune")
    setup = TuningSetup(settings.complete(cores()))
    split = setup.splits["validation"]
    begun = time.monotonic()
    base = setup.evaluate_base(split)
    row = (time.monotonic() - begun) / base.examples
    yield (
        f"zero-shot: {base.metric:.1%} {setup.task.metric}, loss {base.loss:.3f} on "
        f"{base.examples:,} validation rows"
    )
    if isinstance(setup.task, ChoiceTask):
        chance = np.mean([1 / len(example.answers) for example in split.examples])
        yield f"random answers: {chance:.1%}"
    rows = 2 * whole.queries * whole.batch * whole.steps
    yield (
        f"{whole.steps:,} steps of {whole.batch} rows and {whole.queries} directions take at most "
        f"about {span_of(rows * row)}, estimated from these rows"
    )


def _size_of(choices: ProjectChoices, task: Path) -> DataSize:
    """Return the numbers of users and rows in the data.

    Raises:
        SamaraError: if the data do not fit the task.
    """
    if choices.data == EMBEDDED_DATA:
        return DataSize(EMBEDDED_CLIENTS, EMBEDDED_CLIENTS, 0)
    examples = load_examples(choices.data, load_task(str(task)), 0)
    training = [example for example in examples if example.split == "train"]
    users = {example.user for example in training}
    named = choices.roles.user != "" and all(example.user for example in examples)
    return DataSize(len(users) if named else 0, len(training), len(examples) - len(training))
