"""The files and functions of Samara that run in one round.

    python -m benchmarks.round_trace [--functions] [--write]

The trace covers the second round of a simulation of one client, from the end of the first round to
the end of the second. It records every call of a function of Samara in every thread. The program
prints the files with their functions in the order of the first call. It also prints the functions
that only pass their arguments on. With --write, it writes the files into
docs/concepts/architecture.md.
"""

import argparse
import ast
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

ROOT = Path(__file__).parents[1]
PARTS = ("samara", "shared", "client", "server", "devices", "simulations")
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "data.clients": 1,
    "personal.rounds": 0,
    "evaluate.every": 0,
}
_FIRST_OF_A_ROUND, _LAST_OF_A_ROUND = "run_round", "append_round"
"""Names of the functions with which the server begins and ends a round."""
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
BEGIN, END = "<!-- round: begin -->\n", "<!-- round: end -->\n"


@contextmanager
def traced_round(number: int) -> Iterator[dict[CodeType, None]]:
    """Trace a round inside the context, and yield the code of called functions, by first call."""
    ended = 0
    calls: dict[CodeType, None] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal ended
        code = frame.f_code
        if event == "call" and ended == number - 1:
            calls.setdefault(code)
        if event == "return" and code.co_name == _LAST_OF_A_ROUND:
            ended += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def by_file(calls: dict[CodeType, None]) -> dict[Path, list[str]]:
    """Return the names of called Samara functions by file, relative to the checkout."""
    codes = list(calls)
    begin = next(i for i, code in enumerate(codes) if code.co_name == _FIRST_OF_A_ROUND)
    files: dict[Path, list[str]] = {}
    for code in codes[begin:] + codes[:begin]:
        path = Path(code.co_filename).resolve()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PARTS:
            names = files.setdefault(path.relative_to(ROOT), [])
            if "<" not in code.co_qualname.rpartition(".")[2] and code.co_qualname not in names:
                names.append(code.co_qualname)
    return files


def forwarders(file: Path, called: list[str]) -> list[str]:
    """Return the functions of a file that only pass their arguments on to another function."""
    names = {name.rpartition(".")[2] for name in called}
    found = []
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name in names and _passes_on(node):
            found.append(node.name)
    return found


def _passes_on(function: ast.FunctionDef) -> bool:
    """Return whether a function consists of a single call that passes on all its parameters."""
    body = [node for node in function.body if not _is_docstring(node)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    parameters = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
    if not isinstance(call, ast.Call) or not parameters:
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [each.id for each in given if isinstance(each, ast.Name)] == parameters and len(
        given
    ) == len(parameters)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def table(files: dict[Path, list[str]]) -> str:
    """Return the files of a round as a Markdown table."""
    rows = [f"A round of one client goes through {len(files)} files:", ""]
    rows += ["| file | about |", "|---|---|"]
    for file in files:
        docstring = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
        about = docstring.partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{file}` | {about} |")
    return "\n".join(rows) + "\n"


def trace() -> dict[Path, list[str]]:
    """Trace the second round of a simulation of one client, and return its functions by file."""
    with tempfile.TemporaryDirectory() as folder, traced_round(2) as calls:
        simulate(RunConfig.of(SETTINGS | {"out": folder}, "the traced run"))
    return by_file(calls)


def main() -> None:
    """Trace the second round, and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--functions", action="store_true", help="also name the functions")
    parser.add_argument("--write", action="store_true", help=f"write the files into {PAGE.name}")
    options = parser.parse_args()
    files = trace()
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(files) + END + rest.partition(END)[2], "utf-8")
    for file, names in files.items():
        lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
        print(f"{file}  {lines} lines, {len(names)} functions")
        if options.functions:
            print("    " + ", ".join(names))
    passing = {file: forwarders(file, names) for file, names in files.items()}
    print(f"{len(files)} files, {sum(map(len, files.values()))} functions")
    for file, found in passing.items():
        if found:
            print(f"only passes its arguments on: {file}: {', '.join(found)}")


if __name__ == "__main__":
    main()
