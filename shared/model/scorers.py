"""Scorers: they convert texts to prompts, and the output of a model's body to scores.

Every pair of a model family and a kind of task has its scorer. The scores of a causal LM are the
log-likelihoods of the label words after the question, of a row's candidates, or of the given
answer. The scores of a masked LM are the log-likelihoods of the label words at the mask. The scores
of a sentence encoder are the cosines to the label prompts, divided by a temperature. A scorer does
not run the blocks: a forward engine passes the body's output to the scorer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError, TaskError
from samara.shared.model.chat_template import ChatTemplate
from samara.shared.model.head import (
    log_likelihoods,
    mean_log_likelihoods,
    separate_rows,
    tiled_logits,
    token_predictions,
    word_logits,
)
from samara.shared.model.loading import BaseModel
from samara.shared.model.prompt_frame import PromptFrame, check_form, frame_of, text_frame
from samara.shared.model.truncation import truncate
from samara.shared.model.word_tokens import Ids, continuation_tokens, word_tokens
from samara.shared.tasks.base_task import Span
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task

COSINE_TEMPERATURE = 0.05

RunBody = Callable[[Sequence[Ids]], Tensor]
"""Function that runs the base model, without adapter, on m sequences and returns [m, S, hidden]."""


@dataclass(frozen=True)
class Prompt:
    """An example in the form that the model reads.

    Attributes:
        sequences: token ids of one sequence, or of a sequence for each candidate continuation.
        supervised: positions whose output is used, for each sequence.
        targets: token whose log-likelihood is used at each of these positions, for each sequence;
            empty if a scorer uses the same tokens for every prompt.
        target_bytes: number of UTF-8 bytes of the target text, for generations.
    """

    sequences: tuple[Ids, ...]
    supervised: tuple[tuple[int, ...], ...]
    targets: tuple[Ids, ...] = ()
    target_bytes: int = 0

    def only(self, index: int) -> "Prompt":
        """Return the prompt with only one of its candidate continuations."""
        chosen = slice(index, index + 1)
        parts = self.sequences[chosen], self.supervised[chosen], self.targets[chosen]
        return Prompt(*parts, self.target_bytes)


class Scorer(ABC):
    """A scorer of one family of models and kind of task.

    Attributes:
        labels: number of scores of a row; 0 if this number varies.
        prefix: tokens with which every prompt of the task begins, whatever its text.
    """

    labels: int
    prefix: Ids = ()
    _by_rows = False

    def __init__(self, base: BaseModel, task: Task, max_length: int) -> None:
        self.base, self._name, self._task = base, task.name, task.digest
        self.max_length = min(max_length, base.context)
        if self.max_length > base.batch_context:
            raise ModelError(
                f"{base.folder}: this model rotates all texts of a batch by other frequencies if "
                f"one has more than {base.batch_context} tokens (longrope), so that the loss of a "
                "text would depend on the other texts; set model.max-length to at most "
                f"{base.batch_context}"
            )

    @abstractmethod
    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize an example. If it is too long, only its text is shortened.

        Args:
            text: text of an `Example`.
            answers: answers of an `Example`.
            cut: part of the text that is shortened first if the text is too long.
        """

    @abstractmethod
    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the scores under P perturbations from the body's output.

        Args:
            hidden: [P·m, S, hidden], the m sequences of the prompts under each perturbation.
            lengths: number of tokens of each sequence, int64 [m].
            prompts: n prompts.

        Returns:
            float32 [P, n, width]. Rows with fewer scores are padded with −∞, which adds nothing to
            a softmax.
        """

    def whole_scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute scores as log-likelihoods, with the constant per row that `scores` may omit."""
        return self.scores(hidden, lengths, prompts)

    def width(self, prompts: Sequence[Prompt]) -> int:
        """Return the largest number of scores of a row."""
        return self.labels or max((len(prompt.sequences) for prompt in prompts), default=0)

    def _ids(self, text: str, special: bool) -> Ids:
        return self.base.token_ids(text, special)

    def _remaining_tokens(self, used: int, by: str) -> int:
        if self.max_length <= used:
            raise TaskError(
                f"task {self._name}: {used} tokens are needed for {by} alone, but the limit is "
                f"{self.max_length}; raise model.max-length"
            )
        return self.max_length - used


class CausalScorer(Scorer):
    """Scores each label word by its mean log-likelihood per token after the question.

    Args:
        compares: whether a row's scores are only compared with each other. The scorer then omits
            their common constant.

    Attributes:
        frame: prompt frame of the task.
        label_tokens: tokens that each label word adds to the question.
    """

    def __init__(
        self, base: BaseModel, task: ClassificationTask, max_length: int, compares: bool = False
    ) -> None:
        super().__init__(base, task, max_length)
        self.labels = len(task.words)
        self.frame = frame_of(base, task)
        self.prefix = self.frame.prefix(base)
        self.label_tokens = word_tokens(task, partial(self.frame.answer_tokens, base))
        self._used = self.frame.token_count(base) + max(map(len, self.label_tokens))
        self._one_token = all(len(word) == 1 for word in self.label_tokens)
        self._words = [word[0] for word in self.label_tokens] if self._one_token else []
        self._by_rows = compares and self._one_token and separate_rows(base, self._words)

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize an example: one sequence, or one per label if a word has several tokens."""
        limit = self._remaining_tokens(self._used, "the question")
        stem = self.frame.ids(self.base, text, limit, cut)
        if self._one_token:
            return Prompt((stem,), ((len(stem) - 1,),))
        return _continued(stem, self.label_tokens)

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the label words' log-likelihoods, or their logits if scores are only compared."""
        if not self._one_token:
            return _mean_log_likelihoods(self.base, hidden, lengths, prompts)
        return _word_scores(self.base, hidden, lengths, prompts, self._words, self._by_rows)

    def whole_scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the log-softmax over the vocabulary at supervised positions."""
        if not self._one_token:
            return self.scores(hidden, lengths, prompts)
        return _word_scores(self.base, hidden, lengths, prompts, self._words, False)


class _ContinuationScorer(Scorer):
    """Scores a row's own continuations by mean log-likelihood per token."""

    def __init__(self, base: BaseModel, task: Task, max_length: int, frame: PromptFrame) -> None:
        super().__init__(base, task, max_length)
        self._frame, eos = frame, base.tokenizer.eos_token_id
        self.prefix = frame.prefix(base)
        self._around = max(1, frame.token_count(base))
        # A token is scored from the hidden state of the token before it.
        self._begin: Ids = () if eos is None else (eos,)

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the log-softmax over the vocabulary at the tokens of candidates or answers."""
        return _mean_log_likelihoods(self.base, hidden, lengths, prompts)

    def _stem(self, text: str, reserved: int, by: str, cut: Span | None) -> Ids:
        """Tokenize a text, shortened so that `reserved` tokens fit after it."""
        limit = self._remaining_tokens(reserved + self._around, by)
        stem = self._frame.ids(self.base, text.rstrip(" "), limit, cut, keep_end=True)
        if not (stem or self._begin):
            raise TaskError(
                f"task {self._name}: the prompts begin with the answer, and the tokenizer of "
                f"{self.base.folder} has no token that begins a text; put a text before the answer"
            )
        return stem or self._begin

    def answer_tokens(self, text: str, answer: str) -> Ids:
        """Return the tokens that an answer adds to a text.

        Raises:
            TaskError: if the answer adds no tokens.
        """
        words = text.rstrip().rfind(" ") + 1
        tokens = continuation_tokens(self.base, text[words:], answer)
        if not tokens:
            raise TaskError(
                f"task {self._name}: the answer {answer!r} has no token in the vocabulary of "
                f"{self.base.folder}; remove the row or choose another model"
            )
        return tokens


class ChoiceScorer(_ContinuationScorer):
    """Scores each candidate by its mean log-likelihood per token after the text."""

    def __init__(self, base: BaseModel, task: ChoiceTask, max_length: int) -> None:
        super().__init__(base, task, max_length, frame_of(base, task))
        self.labels = 0 if task.list_names else len(task.candidates)

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize an example as one sequence per candidate."""
        before = text
        if self._frame.is_chat:
            before = self._frame.after
            answers = [answer.strip() for answer in answers]
        candidates = [self.answer_tokens(before, answer) for answer in answers]
        longest = max(len(candidate) for candidate in candidates)
        return _continued(self._stem(text, longest, "a candidate", cut), candidates)


class GenerationScorer(_ContinuationScorer):
    """Scores an example's first answer by its mean log-likelihood per token, and decodes answers.

    A row's second score is the share of the answer's tokens that are the likeliest at their
    position.

    Attributes:
        stop: text that ends an answer.
        most_tokens: largest number of tokens in an answer.
        is_plain_text: whether examples are plain texts, which are scored as a whole.
    """

    labels = 1

    def __init__(self, base: BaseModel, task: GenerationTask, max_length: int) -> None:
        super().__init__(base, task, max_length, text_frame(base))
        self._chat = ChatTemplate(base) if task.chat else None
        self.stop = self._chat.stop if self._chat else task.stop
        self.most_tokens, self.is_plain_text = task.tokens, task.is_plain_text
        if self.is_plain_text:  # half of a sequence is context before a window
            self.most_tokens = max(1, min(task.tokens, self.max_length // 2))

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize a text, followed by the first answer and the stop text if answers are given."""
        text = self._chat.text(text) if self._chat else text
        stem = self._stem(text, self.most_tokens, "an answer", cut)
        if not answers:
            return Prompt((stem,), ((len(stem) - 1,),))
        answer = answers[0] + self.stop
        most = self.most_tokens
        tokens = self.answer_tokens(text, answer)
        if len(tokens) > most:
            tokens = tokens[:most]
            answer = truncate(self.base, answer, most, None)
        return replace(_continued(stem, [tokens]), target_bytes=len(answer.encode()))

    def width(self, prompts: Sequence[Prompt]) -> int:
        """Return 2, the number of scores of a row."""
        return 2

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute mean log-likelihoods per token, and shares of tokens that are the likeliest."""
        tokens = [token for prompt in prompts for token in prompt.targets[0]]
        predictions = token_predictions(self.base, hidden, lengths, _supervised(prompts), tokens)
        counts = [len(prompt.targets[0]) for prompt in prompts]
        parts = [torch.split(of_tokens.float(), counts, dim=1) for of_tokens in predictions]
        return torch.stack([torch.stack([r.mean(1) for r in rows], 1) for rows in parts], dim=-1)

    def next_tokens(self, last: Tensor) -> list[int]:
        """Return the likeliest token after each of m sequences.

        Args:
            last: hidden states of the sequences' last tokens, [m, hidden].
        """
        return torch.cat([logits.argmax(1) for logits in tiled_logits(self.base, last)]).tolist()

    def answer(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """Return the answer in the tokens decoded so far, and whether it is complete."""
        eos = self.base.tokenizer.eos_token_id
        ended = len(tokens) >= self.most_tokens or eos in tokens
        before_eos = tokens[: tokens.index(eos)] if eos in tokens else tokens
        text: str = self.base.tokenizer.decode(before_eos, skip_special_tokens=True)
        if stop := self.stop.strip(" "):
            text, separator, _ = text.partition(stop)
            ended = ended or bool(separator)
        return text.strip(), ended


class MaskedScorer(Scorer):
    """Scores each label word by its log-likelihood at the mask.

    Args:
        compares: whether the scores of a row are only compared with each other.
    """

    def __init__(
        self, base: BaseModel, task: ClassificationTask, max_length: int, compares: bool = False
    ) -> None:
        super().__init__(base, task, max_length)
        self.labels = len(task.words)
        words = word_tokens(task, partial(continuation_tokens, base, task.question_before_word))
        if long := [w for w, t in zip(task.words, words, strict=True) if len(t) > 1]:
            raise TaskError(
                f"task {task.name}: a masked LM needs label words of one token, but these have "
                f"more: {', '.join(long)}; choose other words"
            )
        self._words = [word[0] for word in words]
        self._by_rows = compares and separate_rows(base, self._words)
        mask = base.tokenizer.mask_token
        if mask is None:
            raise ModelError(
                f"{base.folder}: the tokenizer has no mask token; use the model's own tokenizer"
            )
        self._before = mask if task.word_is_inside else task.question_before_word + mask
        self._after = task.question_after_word

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize text and question, with the mask in place of the label word."""
        before = self._before
        after = self._after
        mask = self.base.tokenizer.mask_token_id
        # If text precedes the word, the text after it gets at most half of the tokens.
        if answers:
            room = self._remaining_tokens(len(self._ids(before, special=True)) + 1, "the mask")
            after = truncate(self.base, answers[0], max(1, room // 2) if text else room, None)
        limit = self._remaining_tokens(len(self._ids(before + after, special=True)), "the question")
        ids = self._ids(truncate(self.base, text, limit, cut) + before + after, special=True)
        masks = [position for position, token in enumerate(ids) if token == mask]
        own = masks[-1 - self._ids(after, special=False).count(mask)]
        return Prompt((ids,), ((own,),))

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the log-softmax over the vocabulary, or the words' logits, at the mask."""
        return _word_scores(self.base, hidden, lengths, prompts, self._words, self._by_rows)

    def whole_scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the log-softmax over the vocabulary at the mask."""
        return _word_scores(self.base, hidden, lengths, prompts, self._words, False)


class EncoderScorer(Scorer):
    """Scores a label by the cosine between the text and the label's prompt, divided by 0.05.

    Attributes:
        label_embeddings: unit vectors, float32 [labels, hidden].
    """

    def __init__(
        self, base: BaseModel, task: ClassificationTask, max_length: int, body: RunBody
    ) -> None:
        super().__init__(base, task, max_length)
        self.labels = len(task.words)
        prompts = [self.prompt(text) for text in task.prompts()]
        sequences = [prompt.sequences[0] for prompt in prompts]
        lengths = torch.tensor([len(ids) for ids in sequences])
        self.label_embeddings = self.pooled(body(sequences), lengths)

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize the text alone, with the tokenizer's special tokens."""
        limit = self._remaining_tokens(len(self._ids("", special=True)), "special tokens")
        return Prompt((self._ids(truncate(self.base, text, limit, cut), special=True),), ((),))

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Compute the cosines of pooled hidden states and label embeddings, divided by 0.05."""
        perturbations = len(hidden) // len(lengths)
        pooled = self.pooled(hidden, lengths.repeat(perturbations))
        cosines = nn.functional.linear(pooled, self.label_embeddings)
        return cosines.view(perturbations, len(prompts), self.labels) / COSINE_TEMPERATURE

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return pooled and normalised hidden states, float32 [P·m, hidden]."""
        pooled = self.base.pooling(hidden.float(), lengths.to(hidden.device))
        return nn.functional.normalize(pooled, dim=-1)


class HeadlessScorer(Scorer):
    """Scores all labels equally, because a model that is cut below its head has no scores.

    Args:
        scorer: scorer of the whole model.

    Attributes:
        whole: scorer of the whole model.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.whole, self.labels, self.prefix = scorer, scorer.labels, scorer.prefix
        self.base, self.max_length = scorer.base, scorer.max_length

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Tokenize an example as the scorer of the whole model does."""
        return self.whole.prompt(text, answers, cut)

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Return zeros, float32 [P, n, labels]."""
        perturbations = len(hidden) // len(lengths)
        return torch.zeros(perturbations, len(prompts), self.labels, device=hidden.device)


def scorer_for(
    base: BaseModel, task: Task, max_length: int, body: RunBody, compares: bool = False
) -> Scorer:
    """Create the scorer for a whole or cut model, by the model's family and the task's kind.

    Args:
        base: the model.
        task: the task.
        max_length: largest number of tokens of a sequence.
        body: function that runs the model's body.
        compares: whether the scores of a row are only compared with each other.

    Raises:
        TaskError, ModelError: as in `_scorer_of_family`.
    """
    check_form(base, task)
    scorer = _scorer_of_family(base, task, max_length, body, compares)
    return HeadlessScorer(scorer) if base.depth and base.family != "encoder" else scorer


def _scorer_of_family(
    base: BaseModel, task: Task, max_length: int, body: RunBody, compares: bool
) -> Scorer:
    """Create the scorer for a model's family and a task's kind.

    Raises:
        TaskError: if the family does not support the kind of task, or the tokenizer does not suit
            the task's label words.
        ModelError: if the tokenizer lacks a token that the family needs.
    """
    if not isinstance(task, ClassificationTask):
        if base.family != "causal":
            family = {"masked": "a masked LM", "encoder": "a sentence encoder"}[base.family]
            raise TaskError(
                f"task {task.name} is a {task.kind}, but {base.folder} is {family}, which supports "
                "only classification; choose a causal LM"
            )
        if isinstance(task, ChoiceTask):
            return ChoiceScorer(base, task, max_length)
        return GenerationScorer(base, task, max_length)
    if task.word_is_inside and base.family != "masked":
        raise TaskError(
            f"task {task.name} has its label word inside the text, but {base.folder} is not a "
            "masked LM and cannot fill it in; write the task's question after the text"
        )
    if base.family == "encoder":
        return EncoderScorer(base, task, max_length, body)
    scorer = CausalScorer if base.family == "causal" else MaskedScorer
    return scorer(base, task, max_length, compares)


def _word_scores(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    prompts: Sequence[Prompt],
    words: list[int],
    by_rows: bool,
) -> Tensor:
    """Return the log-likelihoods, or the logits, of one-token label words, float32 [P, n, w]."""
    supervised = _supervised(prompts)
    if by_rows:
        return word_logits(base, hidden, lengths, supervised, words)
    return log_likelihoods(base, hidden, lengths, supervised, [words] * len(prompts))


def _continued(stem: Ids, continuations: Sequence[Ids]) -> Prompt:
    """Make a prompt of one sequence per continuation; its last token is only a target."""
    first = len(stem) - 1
    return Prompt(
        tuple(stem + tokens[:-1] for tokens in continuations),
        tuple(tuple(range(first, first + len(tokens))) for tokens in continuations),
        tuple(continuations),
    )


def _mean_log_likelihoods(
    base: BaseModel, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]
) -> Tensor:
    """Return the mean log-likelihood of each sequence's targets, float32 [P, n, width]."""
    targets = [tokens for prompt in prompts for tokens in prompt.targets]
    counts = [len(prompt.sequences) for prompt in prompts]
    return mean_log_likelihoods(base, hidden, lengths, _supervised(prompts), targets, counts)


def _supervised(prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Return the supervised positions of every sequence."""
    return [positions for prompt in prompts for positions in prompt.supervised]
