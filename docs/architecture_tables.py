"""The tables of transformers' architectures, which show whether Samara computes each class right.

``python docs/architecture_tables.py`` tries a tiny model of every class and writes the tables
between their markers. This takes several minutes. ``make test-all`` also tries every class.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from architectures import (  # type: ignore  # noqa: E402
    CELLS,
    NOT_BUILT,
    Architecture,
    Cells,
    NotBuiltError,
    architectures,
    coded,
    row,
)

PAGE = ROOT / "docs" / "reference" / "architectures.md"
BEGIN, END = "<!-- made by docs/architecture_tables.py -->\n", "<!-- end -->"
FAMILIES = {"causal": "Causal LMs", "masked": "Masked LMs", "encoder": "Encoders"}


def tables(
    found: Mapping[Architecture, Mapping[str, str]], left: Mapping[Architecture, str]
) -> str:
    """Return the Markdown tables of all classes, grouped by family.

    The classes that are right in every column are only listed.

    Args:
        found: by class, the outcome of each cell.
        left: classes without a tiny model, each with the reason.
    """
    counts = Counter(_kind(outcomes) for outcomes in found.values())
    cells = Counter(_kind({"": o}) for outcomes in found.values() for o in outcomes.values())
    text = (
        f"Of {len(found) + len(left)} classes {counts['right']} are right in every column, "
        f"{counts['some']} in some and refused in the others, {counts['refused']} are refused in "
        f"every column, and {len(left)} are not built. Of "
        f"{sum(cells.values())} cells {cells['right']} are right and {cells['refused']} refused.\n"
    )
    for family, title in FAMILIES.items():
        of_family = {one: cells for one, cells in found.items() if one.family == family}
        right = [f"`{one.name}`" for one, cells in of_family.items() if _kind(cells) == "right"]
        text += f"\n## {title}\n\nRight in every column: {', '.join(right)}.\n"
        text += f"\n| class | {' | '.join(CELLS)} | refused because |\n"
        text += "|---" * (len(CELLS) + 2) + "|\n"
        text += "".join(
            f"{row(one, cells)}\n" for one, cells in of_family.items() if _kind(cells) != "right"
        )
    text += "\n## Not built\n\n| reason | classes |\n|---|---|\n"
    classes: dict[str, list[str]] = {}
    for one, why in left.items():
        classes.setdefault(why, []).append(f"{one.family} `{one.name}`")
    return text + "".join(f"| {why} | {', '.join(names)} |\n" for why, names in classes.items())


def _kind(outcomes: Mapping[str, str]) -> str:
    kinds = {outcome.partition(":")[0] for outcome in outcomes.values()}
    return kinds.pop() if len(kinds) == 1 else "some"


def main() -> None:
    """Try every class, and write the tables between the markers of the page."""
    found, left = {}, {}
    for one in architectures():
        print(one, flush=True)
        try:
            if reason := NOT_BUILT.get(str(one)):
                raise NotBuiltError(reason)
            with tempfile.TemporaryDirectory() as folder:
                found[one] = Cells(one, Path(folder)).all()
        except NotBuiltError as error:
            left[one] = coded(str(error).replace("|", "/"))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{tables(found, left)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
