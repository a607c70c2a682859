"""The table of transformers' architectures: what each class computes here, tried with tiny models.

``python docs/architectures.py`` tries every class and writes the table between its markers, in
several minutes. ``make test-all`` compares each row.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from architectures import CELLS, NOT_BUILT, Architecture, architectures, row  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "architectures.md"
BEGIN, END = "<!-- made by docs/architectures.py -->\n", "<!-- end -->"
FAMILIES = {"causal": "Causal LMs", "masked": "Masked LMs", "encoder": "Encoders"}


def table(tried: list[Architecture], rows: dict[Architecture, str]) -> str:
    """Return the counts, and the rows by family."""
    counts = Counter(_count(rows[one]) for one in tried if one in rows)
    left = [one for one in tried if one not in rows]
    text = (
        f"Of {len(tried)} classes {counts['right']} are right in every column, {counts['some']} "
        f"are right in some and refused in others, {counts['refused']} are refused in every "
        f"column, and {len(left)} are not built.\n"
    )
    for family, title in FAMILIES.items():
        text += f"\n## {title}\n\n| class | {' | '.join(CELLS)} | refused because |\n"
        text += "|---" * (len(CELLS) + 2) + "|\n"
        text += "".join(f"{rows[one]}\n" for one in tried if one.family == family and one in rows)
    text += "\n## Not built\n\n| class | reason |\n|---|---|\n"
    return text + "".join(f"| `{one.name}` | {NOT_BUILT[one.name]} |\n" for one in left)


def _count(line: str) -> str:
    cells = set(line.split(" | ")[1 : 1 + len(CELLS)])
    return cells.pop() if len(cells) == 1 else "some"


def main() -> None:
    """Try every class, and write the page."""
    tried, rows = architectures(), {}
    for one in tried:
        if one.name not in NOT_BUILT:
            with tempfile.TemporaryDirectory() as folder:
                rows[one] = row(one, Path(folder))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table(tried, rows)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
