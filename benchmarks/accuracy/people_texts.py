"""Texts written by people, as files of plain texts with their authors as users.

    python -m benchmarks.accuracy.people_texts chats CHECKOUT --out chats.jsonl [--seed 0]
    python -m benchmarks.accuracy.people_texts news CHECKOUT --out news.jsonl [--seed 0]

`chats` reads lines of #ubuntu with nicknames and times, without the lines of two bots
(github.com/jkkummerfeld/irc-disentanglement, Kummerfeld et al., 2019, at 82ed04f9). `news` reads
the first paragraph of each article (ReutersC50 of github.com/jgscott/STA380 at 691d1b0d), so that
no article is in two splits. Some of the people with the most texts are drawn. The same number of
texts is drawn from each person, and texts are cut to their first words. In chats, the texts of a
person are consecutive.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

LINE = re.compile(r"\[(\d\d:\d\d)\] <([^>]+)> (.*)")
BOTS = ("ubottu", "ubotu")
FEWEST_WORDS = 4
PEOPLE_DRAWN_FROM = 50
Rows = dict[str, list[dict[str, object]]]


def chats(checkout: Path) -> Rows:
    """Return every person's lines in chronological order."""
    found: Rows = defaultdict(list)
    for file in sorted(checkout.glob("data/*/[0-9]*.raw.txt"), key=lambda file: file.name):
        day = file.name[:10]
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            match = LINE.match(line)
            if match and match[2] not in BOTS:
                time = datetime.fromisoformat(f"{day}T{match[1]}").isoformat()
                found[match[2]].append({"text": match[3].strip(), "time": time})
    return found


def news(checkout: Path) -> Rows:
    """Return the first paragraph of every article."""
    found: Rows = defaultdict(list)
    for file in sorted(checkout.glob("data/ReutersC50/C50*/*/*.txt")):
        first = file.read_text(encoding="utf-8", errors="replace").splitlines()[0]
        found[file.parent.name].append({"text": first.strip()})
    return found


SETS: dict[str, Callable[[Path], Rows]] = {"chats": chats, "news": news}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--texts", type=int, default=120, help="of each person")
    parser.add_argument("--words", type=int, default=24, help="most words of a text")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    random = np.random.default_rng(given.seed)
    long_enough = {
        person: [row for row in rows if len(str(row["text"]).split()) >= FEWEST_WORDS]
        for person, rows in SETS[given.set](given.checkout).items()
    }
    most = sorted(long_enough, key=lambda person: (-len(long_enough[person]), person))
    candidates = [p for p in most[:PEOPLE_DRAWN_FROM] if len(long_enough[p]) >= given.texts]
    drawn = random.choice(len(candidates), min(given.people, len(candidates)), replace=False)
    with given.out.open("w", encoding="utf-8") as out:
        for person in sorted(candidates[index] for index in drawn):
            rows = long_enough[person]
            if given.set == "chats":
                start = int(random.integers(len(rows) - given.texts + 1))
                rows = rows[start : start + given.texts]
            else:
                rows = [rows[i] for i in sorted(random.permutation(len(rows))[: given.texts])]
            for row in rows:
                text = " ".join(str(row["text"]).split()[: given.words])
                out.write(json.dumps({"user": person, **row, "text": text}) + "\n")


if __name__ == "__main__":
    main()
