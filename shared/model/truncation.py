"""Shortening texts to a number of tokens."""

from samara.shared.model.loading import BaseModel
from samara.shared.tasks.base_task import Span


def truncate(
    base: BaseModel, text: str, limit: int, cut: Span | None, keep_end: bool = False
) -> str:
    """Shorten a text to at most `limit` tokens.

    Args:
        base: model whose tokenizer defines the tokens.
        text: text to shorten.
        limit: largest number of tokens.
        cut: part that is shortened first, from the part's end.
        keep_end: whether a text that is still too long loses its beginning, and not its end.
    """
    while True:
        offsets = base.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        excess = len(offsets) - limit
        if excess <= 0:
            return text
        start, end = cut or (0, 0)
        inside = [begin for begin, stop in offsets if start <= begin < stop <= end]
        if inside:
            kept = inside[-min(excess, len(inside))]
            text = text[:kept] + text[end:]
            cut = (start, kept)
        elif keep_end:
            # Several tokens of one character have equal offsets, so at least one character is
            # removed.
            text = text[max(1, offsets[excess][0]) :]
            cut = None
        else:
            kept = min(offsets[limit - 1][1], offsets[limit][0], len(text) - 1)
            text = text[:kept]
            cut = None
