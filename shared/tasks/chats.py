"""Chats: rows of messages whose last message, by the assistant, is the answer.

An example keeps the messages before the answer as JSON. The model's chat template defines how the
model reads them (`samara.shared.model.chat_template`).
"""

import json

from samara.shared.errors import DataError

ROLES = ("system", "user", "assistant")
ANSWERING = "assistant"

Chat = list[dict[str, str]]
"""A chat: messages with a ``role`` and a ``content``."""


def read_chat(value: object, name: str) -> tuple[str, str]:
    """Return the messages before the answer, as JSON, and the answer.

    Args:
        value: value of a row's field.
        name: name of the field.

    Raises:
        DataError: if the value is not a chat that ends with a message by the assistant.
    """
    if not isinstance(value, list) or len(value) < 2:
        raise DataError(f"{name!r} is not a list of two or more messages")
    chat: Chat = []
    for number, message in enumerate(value, 1):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ROLES or not isinstance(content, str) or not content.strip():
            raise DataError(
                f"message {number} of {name!r} needs a role ({', '.join(ROLES)}) and a content "
                "that is not empty"
            )
        chat.append({"role": role, "content": content})
    *before, last = chat
    if last["role"] != ANSWERING:
        raise DataError(
            f"the last message of {name!r} has the role {last['role']}; it must be the answer, "
            f"with the role {ANSWERING}"
        )
    return json.dumps(before, ensure_ascii=False), last["content"]


def describe_chat(text: str) -> str:
    """Format a chat, given as JSON, as readable text with one message per line."""
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in json.loads(text))
