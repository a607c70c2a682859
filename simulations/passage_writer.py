"""Has the base, global and personal models of a finished run write after the same beginnings."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from samara.client.personal.own_demonstrations import OwnDemonstrations, own_demonstrations
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.client.training.text_generation import Sampling, generate
from samara.shared.columns import GLOBAL, IN_CONTEXT, PERSONALIZED, ZERO_SHOT
from samara.shared.frames.instructions import Split
from samara.shared.model.perturbations import Perturbations
from samara.shared.tasks.chats import describe_chat
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example
from samara.simulations.adapter import FinishedRun
from samara.simulations.simulate import load_simulation
from samara.simulations.writing.passages import PASSAGES_FILE, Passage, write_passages

BEGINNING_WORDS = 16
"""The most words of a plain text that are given as its beginning, which is at most half of it."""
CONTINUED_TOKENS = 32
"""The most tokens that are written after the beginning of a plain text or of a training text."""
TEMPERATURE, TOP_P = 0.8, 0.95
"""The divisor of the logits, and the share of the probability that tokens of a sampled text are
drawn from (Holtzman et al., 2020)."""

Beginning = tuple[Example, tuple[str, ...]]
"""An example that ends where the model goes on, and what it may go on with."""


class Writer(NamedTuple):
    """A model that writes.

    Attributes:
        adapter: adapter that the base model runs with.
        own: examples that precede a prompt; None for none.
    """

    adapter: Perturbations
    own: OwnDemonstrations | None = None


Models = Mapping[str, Writer]

log = logging.getLogger("samara.simulation")


def write_missing_passages(folder: Path) -> None:
    """Write what the models of a simulated generation write, where the run has not done so yet.

    Args:
        folder: folder of a finished run.

    Raises:
        SamaraError: if the run is damaged, or model or data cannot be used.
    """
    if (folder / PASSAGES_FILE).exists():
        return
    run = FinishedRun.at(folder)
    count = run.config.evaluate.passages
    loaded = load_simulation(run.config) if count else None
    if loaded is None or not isinstance(loaded.runtime.task, GenerationTask):
        return
    clients = len(loaded.shares)
    log.info("the models write after %d beginnings of each of %d clients", count, clients)
    passages = [
        passage
        for share in loaded.shares
        for passage in _passages_of(
            loaded.runtime, share, _models(run, loaded.runtime, share), count
        )
    ]
    write_passages(folder, passages)


def _models(run: FinishedRun, runtime: ModelRuntime, share: ClientData) -> Models:
    """Return the base model, also in context, the global and the client's personal model."""
    base = runtime.perturbation(None)
    models = {ZERO_SHOT: Writer(base)}
    retrieved = run.config.evaluate.retrieved
    if own := own_demonstrations(runtime.task, share, runtime.tokenize, retrieved):
        models[IN_CONTEXT] = Writer(base, own)
    if run.config.federated_rounds:
        owner = share.client if run.result.groups else None
        models[GLOBAL] = Writer(runtime.perturbation(run.model(owner)))
    if run.config.makes_personal_models:
        models[PERSONALIZED] = Writer(runtime.perturbation(run.model(share.client)))
    return models


def _passages_of(
    runtime: ModelRuntime, share: ClientData, models: Models, count: int
) -> Iterator[Passage]:
    task = runtime.task
    assert isinstance(task, GenerationTask)
    for split in (Split.TEST, Split.TRAIN):
        for number, (example, accepted) in enumerate(
            beginnings(task, share.in_split(split))[:count]
        ):
            is_test = split is Split.TEST
            # A training example would be retrieved with its own answer.
            asked = {name: one for name, one in models.items() if is_test or one.own is None}
            most = task.tokens if is_test and not task.is_plain_text else CONTINUED_TOKENS
            greedy = Sampling(min(most, task.tokens), stop=_stops(task))
            drawn = replace(greedy, temperature=TEMPERATURE, top_p=TOP_P, seed=number)
            yield Passage(
                share.client,
                split.name.lower(),
                describe_chat(example.text) if task.chat else example.text,
                accepted,
                _written(runtime, asked, example, greedy),
                _written(runtime, asked, example, drawn) if is_test else {},
            )


def beginnings(task: GenerationTask, examples: Sequence[Example]) -> list[Beginning]:
    """Return the beginnings of texts, each with what may follow: answers, or the rest of the text.

    Args:
        task: task of the examples.
        examples: examples; later windows of a long text, and texts of one word, are left out.
    """
    if not task.is_plain_text:
        return [(replace(one, answers=()), one.answers) for one in examples]
    found: list[Beginning] = []
    for one in examples:
        words = one.answers[0].split()
        given = min(len(words) // 2, BEGINNING_WORDS)
        if given and not one.text:
            beginning, rest = " ".join(words[:given]), " ".join(words[given:])
            found.append((replace(one, text=beginning, answers=()), (rest,)))
    return found


def _stops(task: GenerationTask) -> tuple[str, ...]:
    stop = task.stop.strip(" ")
    return (stop,) if stop else ()


def _written(
    runtime: ModelRuntime, models: Models, example: Example, sampling: Sampling
) -> dict[str, str]:
    written = {}
    for name, writer in models.items():
        read = example if writer.own is None else writer.own.before(example)
        tokens = runtime.tokenize(read).sequences[0]
        written[name] = "".join(generate(runtime, writer.adapter, tokens, sampling)).strip()
    return written
