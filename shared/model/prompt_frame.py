"""The parts of a causal LM's prompt around a row's text, in the task's form.

The form ``chat`` follows the training of instruct models. The model's own chat template holds the
text as a user's message, and the label word or candidate is in the model's answer. The question is
divided: its whole sentences end the message, and an unfinished sentence, which the label word
completes, begins the answer.
"""

import re
from dataclasses import dataclass

from samara.shared.errors import TaskError
from samara.shared.model.chat_template import ChatTemplate
from samara.shared.model.loading import BaseModel
from samara.shared.model.truncation import truncate
from samara.shared.model.word_tokens import Ids, continuation_tokens
from samara.shared.tasks.base_task import Span
from samara.shared.tasks.kinds import AUTO_FORM, CHAT, ChoiceTask, ClassificationTask, Form, Task

_SENTENCE_END = re.compile(r"[.?!]\s+|[。？！]|\n")


@dataclass(frozen=True)
class PromptFrame:
    """The parts of a prompt that all texts of a task share.

    Attributes:
        start: tokens that begin the prompt, such as BOS.
        before: text before a row's text. In a chat, white space around the row's text is removed.
        after: text between a row's text and its answer; trailing spaces belong to the answer.
        is_chat: whether a chat template wrote `before` and `after`.
    """

    start: Ids
    before: str
    after: str
    is_chat: bool

    @property
    def stem(self) -> str:
        """The part of the prompt after a row's text. Its trailing spaces belong to the answer."""
        return self.after.rstrip(" ")

    def prefix(self, base: BaseModel) -> Ids:
        """Return tokens with which every prompt of a chat begins; empty without a chat.

        The last of them is special, because a text may merge with ordinary tokens before it.
        """
        ids = self.start + base.token_ids(self.before) if self.is_chat else ()
        added = base.tokenizer.added_tokens_decoder.items()
        special = {token for token, added_token in added if added_token.special}
        special -= {base.tokenizer.unk_token_id}  # unknown text
        return ids[: max((end for end, token in enumerate(ids, 1) if token in special), default=0)]

    def token_count(self, base: BaseModel) -> int:
        """Return the number of tokens around a text."""
        return len(self.start) + sum(len(base.token_ids(own)) for own in (self.before, self.stem))

    def ids(
        self, base: BaseModel, text: str, limit: int, cut: Span | None, keep_end: bool = False
    ) -> Ids:
        """Return the tokens of a prompt up to its answer.

        Args:
            base: model with the tokenizer.
            text: text of a row.
            limit: largest number of tokens of the text.
            cut: part of the text that is shortened first if the text is too long.
            keep_end: whether a text that is still too long loses its beginning, and not its end.
        """
        fitting = truncate(base, text, limit, cut, keep_end)
        if self.is_chat:
            fitting = fitting.strip()
        return self.start + base.token_ids(self.before + fitting + self.stem)

    def answer_tokens(self, base: BaseModel, answer: str) -> Ids:
        """Return the tokens that an answer adds to the text before it."""
        return continuation_tokens(base, self.after, answer.strip() if self.is_chat else answer)


def frame_of(base: BaseModel, task: ClassificationTask | ChoiceTask) -> PromptFrame:
    """Return the prompt frame of a task for a causal LM.

    Raises:
        ModelError: if the task's prompts have the form of a chat, and the model has no chat
            template.
    """
    question = task.question_before_word if isinstance(task, ClassificationTask) else ""
    if task.form != CHAT:
        return PromptFrame(first_tokens(base, task.form), "", question, is_chat=False)
    before, behind = ChatTemplate(base).around_message()
    asked, begun = split_question(question)
    return PromptFrame((), before, asked + behind + begun, is_chat=True)


def split_question(question: str) -> tuple[str, str]:
    """Split the text before a label word into whole sentences and an unfinished one.

    The end of a line also ends a sentence. ``" Yes or No?\n"`` leaves nothing unfinished; ``" It
    was "`` is unfinished.
    """
    end = max((found.end() for found in _SENTENCE_END.finditer(question)), default=0)
    return question[:end].rstrip(), question[end:].lstrip()


def text_frame(base: BaseModel) -> PromptFrame:
    """Return the prompt frame of generation tasks, which has only the tokens that begin a text."""
    return PromptFrame(first_tokens(base, AUTO_FORM), "", "", is_chat=False)


def first_tokens(base: BaseModel, form: Form) -> Ids:
    """Return the tokens that begin a text outside a chat.

    With the form ``plain``, these are the tokens that the tokenizer places before a text. With
    ``auto``, it is the BOS token if the tokenizer has one, as in versions without forms.
    """
    if form == AUTO_FORM:
        bos = base.tokenizer.bos_token_id
        return () if bos is None else (bos,)
    own, whole = base.token_ids("a"), base.token_ids("a", special=True)
    begin = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
    return whole[:begin]


def form_of(task: Task) -> Form:
    """Return the form of a task's prompts."""
    return task.form if isinstance(task, ClassificationTask | ChoiceTask) else AUTO_FORM


def check_form(base: BaseModel, task: Task) -> None:
    """Check that a task in the form of a chat has a causal language model.

    Raises:
        TaskError: if the form is chat, and the model is not a causal LM.
    """
    if form_of(task) == CHAT and base.family != "causal":
        raise TaskError(
            f"task {task.name} has the form of a chat, but {base.folder} is not a causal LM; set "
            "`form` to `plain`"
        )
