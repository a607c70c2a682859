"""Texts of seven kinds of writing, as a file of plain texts of seven users.

    python -m benchmarks.accuracy.text_sources SOURCES --out texts.jsonl [--texts 120] [--words 24]

SOURCES is the folder of source data that `data_sets` describes. A user is a kind of writing: who
writes encyclopaedias, news, comments, questions, everyday sentences, fiction and dialogues, or
examples for a dictionary, chooses other words and builds other sentences, so that each has a
language of its own that a personal model can learn. None of these texts is a film review of IMDB,
which the small language model beside the sources was trained on.

Each user has as many texts in each run, its first ones in an order by the seed, cut to their first
words; so no user has more text to learn from because a source is larger.
"""

import argparse
import json
from pathlib import Path

import numpy as np

SOURCES = {
    "encyclopaedia": ("boolq/train_1000.jsonl", "passage"),
    "news": ("mrpc/train.jsonl", "sentence1"),
    "comments": ("popquorn_offensiveness/all.jsonl", "text"),
    "questions": ("trec6/train.jsonl", "text"),
    "everyday": ("copa/train.jsonl", "premise"),
    "fiction": ("cb/train.jsonl", "premise"),
    "dictionary": ("wic/train.jsonl", "sentence1"),
}
"""The file and the field of each user's texts."""
_FEWEST_WORDS = 4


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=120, help="of each user")
    parser.add_argument("--words", type=int, default=24, help="most words of a text")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    with arguments.out.open("w", encoding="utf-8") as out:
        for user, (file, field) in SOURCES.items():
            lines = (arguments.sources / file).read_text(encoding="utf-8").splitlines()
            texts = dict.fromkeys(
                " ".join(str(json.loads(line)[field]).split()[: arguments.words]) for line in lines
            )
            long_enough = [text for text in texts if len(text.split()) >= _FEWEST_WORDS]
            chosen = rng.permutation(len(long_enough))[: arguments.texts]
            for index in chosen:
                row = {"user": user, "text": long_enough[index]}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
