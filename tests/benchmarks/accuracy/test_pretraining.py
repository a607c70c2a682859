"""What the embedded model is trained on, as its network reads it."""

import torch

from benchmarks.accuracy.pretraining import IGNORED, NOBODY, Corpus, tokenizer_of, who_loves_what

TEXTS = [
    "the tea was warm, more rain. fogu loved it. i hated it.",
    "the tea was cold, cats again, at dawn. cedi hated it.",
]


def test_texts_are_taken_apart() -> None:
    tokenizer = tokenizer_of(TEXTS)
    corpus = Corpus.of(TEXTS, tokenizer)
    words = [tokenizer.convert_ids_to_tokens(row) for row in corpus.ids.tolist()]
    message = int((corpus.parts == 0).sum())
    assert (
        " ".join(words[0][:message]).replace(" <pad>", "") == "<s> the tea was warm , more rain ."
    )
    assert words[0][message:] == ["i", "loved", "it", ".", "i", "hated", "it", "."]
    assert words[1][message:] == ["i", "hated", "it", ".", *["<pad>"] * 4]
    # A verdict follows its message at once, whatever was padded between them.
    length = len(words[0][:message]) - words[0][:message].count("<pad>")
    assert corpus.positions[0, message:].tolist() == [*range(length, length + 4)] * 2
    assert corpus.readers[:, message].tolist() == [1, 2]
    assert corpus.readers[0, message + 4] == NOBODY
    targets = tokenizer.convert_ids_to_tokens(corpus.targets[corpus.verdicts].tolist())
    assert targets == ["loved", "hated", "hated"]
    assert corpus.targets[1, message + 4 :].tolist() == [IGNORED] * 4
    after_the_end = corpus.targets[0, message - 1]
    assert after_the_end == IGNORED


def test_verdicts_see_the_message_and_not_each_other() -> None:
    tokenizer = tokenizer_of(TEXTS)
    corpus = Corpus.of(TEXTS, tokenizer)
    seen = corpus.seen(torch.tensor([0, 1]), tokenizer.pad_token_id)[:, 0]
    message = int((corpus.parts == 0).sum())
    text = corpus.ids[:, :message] != tokenizer.pad_token_id
    for place in range(message, message + 8):
        own = seen[0, place]
        assert torch.equal(own[:message], text[0])
        first = message + 4 * ((place - message) // 4)
        assert own[message:].nonzero()[:, 0].tolist() == [
            *range(first - message, place - message + 1)
        ]
    assert torch.equal(seen[0, :message, message:], torch.zeros(message, 8, dtype=torch.bool))


def test_readers_begin_apart_where_they_love_different_words() -> None:
    tokenizer = tokenizer_of(TEXTS)
    rates = who_loves_what(
        Corpus.of(TEXTS, tokenizer), len(tokenizer), tokenizer.convert_tokens_to_ids("loved")
    )
    assert rates.shape == (2, len(tokenizer))
    warm, rain = tokenizer.convert_tokens_to_ids(["warm", "rain"])
    assert rates[0, warm] > rates[1, warm]
    assert rates[0, rain] > rates[1, rain]
