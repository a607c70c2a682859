"""In-context learning with a client's most similar training examples before each prompt.

Nothing is trained: the base model reads its user's earlier answers. Similarity is the cosine of
TF-IDF vectors, one of the retrievers of Salemi et al., "LaMP: When large language models meet
personalization" (2024).
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from samara.client.training.client_data import ClientData, ExampleTokenizer
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.chats import ANSWERING
from samara.shared.tasks.demonstrations import demonstration
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example


class OwnDemonstrations:
    """Retrieval of demonstrations for a prompt from a client's training examples.

    Args:
        task: task of prompts and answers.
        data: examples of the client.
        tokenize: tokenization of the model that reads the demonstrations.
        count: maximum number of demonstrations before a prompt.
    """

    def __init__(
        self, task: GenerationTask, data: ClientData, tokenize: ExampleTokenizer, count: int
    ) -> None:
        self._task = task
        self._tokenize = tokenize
        self._count = count
        self._examples = data.in_split(Split.TRAIN)

    def before(self, example: Example) -> Example:
        """Return an example preceded by as many demonstrations as the model can read completely.

        The most similar demonstration comes last, next to the text.
        """
        chosen = self._most_similar(example)
        while chosen:
            extended = replace(example, text=self._joined(chosen, example.text), cut=None)
            if self._tokenize.fits(extended):
                return extended
            chosen = chosen[1:]
        return example

    def _most_similar(self, example: Example) -> list[Example]:
        """Return the most similar training examples, in ascending order of similarity."""
        if not self._examples:
            return []
        vectorizer, vectors = self._index
        similar = (vectors @ vectorizer.transform([example.text]).T).toarray()[:, 0]
        order = np.argsort(similar, kind="stable")[-self._count :]
        return [self._examples[index] for index in order]

    @cached_property
    def _index(self) -> tuple[Any, Any]:
        """Vectorizer of the training texts, and the texts' vectors, sparse [n, words]."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(token_pattern=r"\w+")
        return vectorizer, vectorizer.fit_transform([one.text for one in self._examples])

    def _joined(self, demonstrations: Sequence[Example], text: str) -> str:
        """Return a text after demonstrations, which become earlier turns in a chat."""
        if not self._task.chat:
            return "".join(demonstration(self._task, one) for one in demonstrations) + text
        turns: list[dict[str, str]] = []
        for one in demonstrations:
            turns += [turn for turn in json.loads(one.text) if turn["role"] != "system"]
            turns.append({"role": ANSWERING, "content": one.answers[0]})
        chat = json.loads(text)
        first = [turn for turn in chat[:1] if turn["role"] == "system"]
        return json.dumps([*first, *turns, *chat[len(first) :]], ensure_ascii=False)


def own_demonstrations(
    task: object, data: ClientData, tokenize: ExampleTokenizer, count: int
) -> OwnDemonstrations | None:
    """Return the retrieval of a client's demonstrations, or None if the run uses none.

    Args:
        task: task of the run.
        data: examples of the client.
        tokenize: tokenization of the model that reads the demonstrations.
        count: maximum number of demonstrations before a prompt; 0 means none.

    Returns:
        The retrieval; None if `count` is 0, or if the task has no prompts with answers. A
        classification that compares labels has no prompts, and plain texts have no answers.
    """
    if not count or not isinstance(task, GenerationTask) or task.is_plain_text:
        return None
    return OwnDemonstrations(task, data, tokenize, count)
