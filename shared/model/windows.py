"""Windows: parts of a long plain text. Each is an example with the text before it as context."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from samara.shared.model.scorers import GenerationScorer
from samara.shared.tasks.rows import Example


def cut_into_windows(examples: Sequence[Example], scorer: GenerationScorer) -> list[Example]:
    """Split examples of plain texts so that none has more tokens than an answer may have.

    A longer text becomes several consecutive windows. Every token is in one window. The prompt of
    a window is as much of the preceding text as fits the model. Where possible, windows begin
    before white space, so that few words are split.

    Args:
        examples: examples whose answer is the text; short examples stay unchanged.
        scorer: scorer of the examples' task for the model.
    """
    return [window for example in examples for window in _windows(example, scorer)]


def _windows(example: Example, scorer: GenerationScorer) -> Iterator[Example]:
    text = example.answers[0]
    if len(scorer.answer_tokens(example.text, text)) <= scorer.most_tokens:
        yield example
        return
    offsets = scorer.base.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    begins = [begin for begin, _ in offsets["offset_mapping"]]
    start = 0
    while text[start:].strip():
        first = bisect_left(begins, start)
        context = text[begins[max(0, first - scorer.max_length)] : start] if start else ""
        after = first + scorer.most_tokens
        end = begins[after] if after < len(begins) else len(text)
        end = max(end, start + 1)
        while True:
            if end < len(text):
                end = _before_white_space(text, start, end)
            piece = text[start:end]
            fits = len(scorer.answer_tokens(context, piece)) <= scorer.most_tokens
            if fits or len(piece) == 1:
                break
            end = start + (len(piece) * 9) // 10
        yield replace(example, text=context, answers=(piece,))
        start = end


def _before_white_space(text: str, start: int, end: int) -> int:
    """Return the last end of a word before white space in text[start:end + 1], or `end`."""
    for position in range(end, start, -1):
        if text[position].isspace() and not text[position - 1].isspace():
            return position if text[start:position].strip() else end
    return end
