"""Writing of passages: all models of a run continue the same beginnings of texts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from samara.client.personal.own_demonstrations import OwnDemonstrations, own_demonstrations
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.client.training.text_generation import Mix, Sampling, generate_together
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.chats import describe_chat
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example
from samara.shared.terms.columns import GLOBAL, IN_CONTEXT, OWN_WORDS, PERSONALIZED, ZERO_SHOT
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.simulate import load_simulation
from samara.simulations.writing.passages import PASSAGES_FILE, Passage, write_passages

BEGINNING_WORDS = 16
"""Maximum number of words in the beginning of a plain text; it is at most half of the text."""
CONTINUED_TOKENS = 32
"""Maximum number of tokens that a model writes after the beginning of a text.

It applies to plain texts and to training texts.
"""
TEMPERATURE = 0.8
"""Sampling temperature (Holtzman et al., 2020)."""
TOP_P = 0.95
"""Share of the probability mass from which tokens are sampled (Holtzman et al., 2020)."""

Beginning = tuple[Example, tuple[str, ...]]
"""An example whose text a model continues, and its accepted continuations."""


class Writer(NamedTuple):
    """A model that writes texts, with its in-context examples and own words.

    Attributes:
        adapter: adapter of the base model.
        own: in-context examples before a prompt; None without such examples.
        mix: function that mixes the client's own words into the logits; None without own words.
    """

    adapter: Perturbations
    own: OwnDemonstrations | None = None
    mix: Mix | None = None


Models = Mapping[str, Writer]

log = logging.getLogger("samara.simulation")


def write_missing_passages(folder: Path) -> None:
    """Write passages by the models of a simulated generation, unless the run has passages.

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
    runtime, clients = loaded.runtime, len(loaded.shares)
    log.info("the models continue %d beginnings of texts for each of %d clients", count, clients)
    shared = {ZERO_SHOT: Writer(runtime.perturbation(None))}
    if run.config.federated_rounds and not run.result.groups:
        shared[GLOBAL] = Writer(runtime.perturbation(run.model(None)))
    adapters = {id(one.adapter) for one in shared.values()}
    passages: list[Passage] = []
    of_all: list[_Asked] = []
    for share in loaded.shares:
        models = _models(run, runtime, share, shared)
        own_passages, asked = _passages_of(runtime, share, models, count)
        passages += own_passages
        of_all += [one for one in asked if id(one.writer.adapter) in adapters]
        _write(runtime, [one for one in asked if id(one.writer.adapter) not in adapters])
    _write(runtime, of_all)
    write_passages(folder, passages)


class _Asked(NamedTuple):
    """A pending request for one text of one model.

    Attributes:
        texts: texts of a passage by model, to which the written text is added.
        name: name of the model.
        writer: the model.
        tokens: tokens of the prompt.
        sampling: rules for choosing tokens and ending the text.
    """

    texts: dict[str, str]
    name: str
    writer: Writer
    tokens: Sequence[int]
    sampling: Sampling


def _models(run: FinishedRun, runtime: ModelRuntime, share: ClientData, shared: Models) -> Models:
    """Return the base, global and personal models of a client, by column.

    Args:
        run: the run.
        runtime: loaded model.
        share: data of the client.
        shared: models of all clients.
    """
    models = {ZERO_SHOT: shared[ZERO_SHOT]}
    retrieved = run.config.evaluate.retrieved
    if own := own_demonstrations(runtime.task, share, runtime.tokenize, retrieved):
        models[IN_CONTEXT] = shared[ZERO_SHOT]._replace(own=own)
    if run.config.federated_rounds:
        own_group = shared.get(GLOBAL) or Writer(runtime.perturbation(run.model(share.client)))
        models[GLOBAL] = own_group
    if run.config.makes_personal_models:
        models[PERSONALIZED] = Writer(runtime.perturbation(run.model(share.client)))
        if own_words := run.own_words(share.client):
            models[OWN_WORDS] = models[PERSONALIZED]._replace(mix=own_words.mix_logits)
    return models


def _passages_of(
    runtime: ModelRuntime, share: ClientData, models: Models, count: int
) -> tuple[list[Passage], list[_Asked]]:
    """Return a client's passages without texts, and requests for these texts."""
    task = runtime.task
    assert isinstance(task, GenerationTask)
    passages: list[Passage] = []
    texts: list[_Asked] = []
    for split in (Split.TEST, Split.TRAIN):
        for number, (example, accepted) in enumerate(
            beginnings(task, share.in_split(split))[:count]
        ):
            is_test = split is Split.TEST
            # for a training text, retrieval would find the text itself, with its answer
            asked = {name: one for name, one in models.items() if is_test or one.own is None}
            most = task.tokens if is_test and not task.is_plain_text else CONTINUED_TOKENS
            greedy = Sampling(min(most, task.tokens), stop=_stops(task))
            drawn = replace(greedy, temperature=TEMPERATURE, top_p=TOP_P, seed=number)
            passage = Passage(
                share.client,
                split.name.lower(),
                describe_chat(example.text) if task.chat else example.text,
                accepted,
                dict.fromkeys(asked, ""),
                dict.fromkeys(asked, "") if is_test else {},
            )
            passages.append(passage)
            for name, writer in asked.items():
                read = example if writer.own is None else writer.own.before(example)
                tokens = runtime.tokenize(read).sequences[0]
                texts.append(_Asked(passage.greedy, name, writer, tokens, greedy))
                if is_test:
                    texts.append(_Asked(passage.sampled, name, writer, tokens, drawn))
    return passages, texts


def _write(runtime: ModelRuntime, asked: Sequence[_Asked]) -> None:
    """Write the requested texts into their passages; texts of one model share forward passes."""
    by_model: dict[tuple[int, int], list[_Asked]] = {}
    for one in asked:
        by_model.setdefault((id(one.writer.adapter), id(one.writer.mix)), []).append(one)
    for alike in by_model.values():
        writer = alike[0].writer
        prompts = [(one.tokens, one.sampling) for one in alike]
        written = generate_together(runtime, writer.adapter, prompts, writer.mix)
        for one, text in zip(alike, written, strict=True):
            one.texts[one.name] = text.strip()


def beginnings(task: GenerationTask, examples: Sequence[Example]) -> list[Beginning]:
    """Return the beginnings of texts, each with the example's answers or the end of its text.

    Args:
        task: task of the examples.
        examples: examples; later windows of a long text, and one-word texts, are left out.
    """
    if not task.is_plain_text:
        return [(replace(one, answers=()), one.answers) for one in examples]
    found: list[Beginning] = []
    for one in examples:
        words = one.answers[0].split()
        given = min(len(words) // 2, BEGINNING_WORDS)
        if given and not one.text:
            beginning = " ".join(words[:given])
            rest = " ".join(words[given:])
            found.append((replace(one, text=beginning, answers=()), (rest,)))
    return found


def _stops(task: GenerationTask) -> tuple[str, ...]:
    stop = task.stop.strip(" ")
    return (stop,) if stop else ()
