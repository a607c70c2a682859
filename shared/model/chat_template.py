"""A model's chat template: how it reads the messages of a chat, and what ends an answer."""

import json
from typing import Any

from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.tasks.chats import ANSWERING

_PROBE = [{"role": "user", "content": "a"}]
_ANSWER = "b"
_MESSAGE = "the text of the message"


class ChatTemplate:
    """The chat template of a model's tokenizer.

    Args:
        base: the model.

    Attributes:
        stop: text that ends an answer.

    Raises:
        ModelError: if it has none, or writes an answer elsewhere than behind its messages.
    """

    def __init__(self, base: BaseModel) -> None:
        self._tokenizer: Any = base.tokenizer
        self._folder = base.folder
        if not self._tokenizer.chat_template:
            raise ModelError(
                f"{base.folder}: its tokenizer has no chat template; choose a model for chats, or "
                "make prompts and responses of the messages, for the task responses"
            )
        before = self._render(_PROBE)
        whole = self._render([*_PROBE, {"role": ANSWERING, "content": _ANSWER}], ends=True)
        if not whole.startswith(before + _ANSWER):
            raise ModelError(
                f"{base.folder}: its chat template does not write an answer right behind what "
                "begins it; choose another model, or the task responses"
            )
        self.stop = whole[len(before) + len(_ANSWER) :].rstrip("\n")

    def text(self, chat: str) -> str:
        """Return the text before an answer, given the messages before it as JSON.

        Raises:
            ModelError: if the template refuses these messages.
        """
        text, bos = self._render(json.loads(chat)), self._tokenizer.bos_token
        return text.removeprefix(bos) if bos else text

    def around_message(self) -> tuple[str, str]:
        """Return the texts that it writes before and behind a user's only message.

        What it writes before has the BOS token, if it writes one; behind is the begin of an answer.

        Raises:
            ModelError: if it does not write such a message once.
        """
        parts = self._render([{"role": "user", "content": _MESSAGE}]).split(_MESSAGE)
        if len(parts) != 2:
            raise ModelError(
                f"{self._folder}: its chat template does not write a message as it is; set form to "
                "plain"
            )
        return parts[0], parts[1]

    def _render(self, messages: list[dict[str, str]], ends: bool = False) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not ends
            )
        # A template may raise anything, by a function of its own or of Jinja.
        except Exception as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(
                f"{self._folder}: its chat template refuses messages of {roles} ({error}); correct "
                "the rows, or choose another model"
            ) from error
        return text
