"""A model's chat template: the format of a chat's messages, and the end of an answer."""

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
        ModelError: if the tokenizer has no template, or if the template does not place an answer
            directly after the messages.
    """

    def __init__(self, base: BaseModel) -> None:
        self._tokenizer: Any = base.tokenizer
        self._folder = base.folder
        if not self._tokenizer.chat_template:
            raise ModelError(
                f"{base.folder}: the tokenizer has no chat template; choose a model for chats, or "
                "turn the messages into prompts and responses and choose the task `responses`"
            )
        before = self._render(_PROBE)
        whole = self._render([*_PROBE, {"role": ANSWERING, "content": _ANSWER}], ends=True)
        if not whole.startswith(before + _ANSWER):
            raise ModelError(
                f"{base.folder}: the chat template does not put an answer directly after the "
                "generation prompt; choose another model, or the task `responses`"
            )
        self.stop = whole[len(before) + len(_ANSWER) :].rstrip("\n")

    def text(self, chat: str) -> str:
        """Fill the template with the messages of a chat, and return the text up to the answer.

        The text has no BOS token.

        Args:
            chat: messages before the answer, as JSON.

        Raises:
            ModelError: if the template refuses these messages.
        """
        text = self._render(json.loads(chat))
        bos = self._tokenizer.bos_token
        return text.removeprefix(bos) if bos else text

    def around_message(self) -> tuple[str, str]:
        """Return the texts that the template puts before and after the only message of a user.

        The first text includes the BOS token if the template writes one. The second text ends where
        the answer begins.

        Raises:
            ModelError: if the template changes or repeats the message.
        """
        parts = self._render([{"role": "user", "content": _MESSAGE}]).split(_MESSAGE)
        if len(parts) != 2:
            raise ModelError(
                f"{self._folder}: the chat template changes or repeats messages; set `form` to "
                "`plain`"
            )
        return parts[0], parts[1]

    def _render(self, messages: list[dict[str, str]], ends: bool = False) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not ends
            )
        # A template's own functions and Jinja raise errors of any type.
        except Exception as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ModelError(
                f"{self._folder}: the chat template refuses messages with the roles {roles} "
                f"({error}); correct the rows, or choose another model"
            ) from error
        return text
