"""The error messages that the code can give, read from its source, with … for what varies.

A message is the text of an error of Samara where it is made, of a mistake that checks of settings
and tasks raise, of a combination of features that is refused, or of a check of the preflight.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("shared", "client", "server", "devices", "simulations", "samara")
BASE = "SamaraError"
VARIES = "…"
CHECKED = ("shared/config.py", "shared/fleet_settings.py", "shared/sections.py", "shared/tasks/")
"""Files whose ValueErrors become part of an error of Samara."""
OTHERS = {"Exclusion": 1, "PydanticCustomError": 1, "CertificateProblem": 0}
"""Calls that hold a message, and in which argument."""
CHECK = "CheckResult"
PLACEHOLDER = re.compile(r"\{\w+\}")
LEAST_WORDS = 1
FAMILIES = {
    "settings": ("shared/", "client/personal/methods.py", "simulations/", "samara"),
    "data": (
        "shared/tasks/data.py",
        "shared/tasks/growing.py",
        "shared/tasks/messages.py",
        "shared/tasks/partition.py",
        "shared/tasks/row_files.py",
        "shared/tasks/rows.py",
        "shared/tasks/sampling.py",
        "shared/tasks/text_folders.py",
        "client/training/client_data.py",
        "client/training/growing_data.py",
        "client/training/own_examples.py",
        "simulations/project/",
    ),
    "tasks": ("shared/tasks/",),
    "models": (
        "shared/model/",
        "shared/basis.py",
        "shared/start.py",
        "client/forward/",
        "client/streaming/",
        "client/spaces/",
        "client/training/informed_basis.py",
        "client/offload/",
        "simulations/basis.py",
        "simulations/damping_file.py",
        "devices/hardware/model_shape.py",
    ),
    "training": ("client/", "client/training/", "client/tuning/", "shared/replay", "shared/step"),
    "runs": (
        "shared/ledger/",
        "shared/events.py",
        "shared/layout.py",
        "shared/result.py",
        "shared/run_settings.py",
        "shared/runs.py",
        "server/store.py",
        "server/rounds/recorded_cohorts.py",
        "server/rounds/clusters.py",
        "simulations/adapter.py",
        "simulations/comparison/",
        "simulations/finished.py",
        "simulations/quick_look.py",
        "client/personal/model_folder.py",
        "client/personal/personalizations.py",
    ),
    "server": ("server/",),
    "client": (
        "devices/",
        "client/protocol/",
        "shared/blob",
        "shared/certificates.py",
        "shared/run_terms.py",
        "shared/signed_scenario.py",
        "shared/signing.py",
    ),
    "phones": ("devices/phone/",),
    "estimates": ("devices/hardware/", "devices/commands.py"),
    "network": (
        "shared/frames/",
        "shared/wire.py",
        "shared/round_delta.py",
        "shared/client_index.py",
        "server/transport/",
        "server/rounds/",
    ),
}
"""Families of messages, by the beginnings of the paths where they are made; the longest counts."""

Names = Mapping[str, ast.expr]


class Message(NamedTuple):
    """A message, and where it is made.

    Attributes:
        file: path under the repository.
        line: line of the call that makes the error.
        error: name of its class.
        text: its text; ``…`` stands for what varies.
    """

    file: str
    line: int
    error: str
    text: str

    @property
    def family(self) -> str:
        """Return the family whose longest beginning fits the file."""
        fits = {
            beginning: name
            for name, beginnings in FAMILIES.items()
            for beginning in beginnings
            if self.file.startswith(beginning)
        }
        return fits[max(fits, key=len)]


def sources() -> list[Path]:
    """Return the product's Python files."""
    roots = [ROOT / name for name in PACKAGES]
    files = [f for root in roots for f in ([root] if root.suffix else sorted(root.rglob("*.py")))]
    return [file for file in files if file.is_file() and "_pb2" not in file.name]


def error_classes(trees: Sequence[ast.Module]) -> set[str]:
    """Return the names of SamaraError and of all classes that derive from it."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {BASE}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found


def texts(node: ast.expr, names: Names) -> list[str]:
    """Return what an expression may be as text: the alternatives of a condition are one text each.

    Args:
        node: the expression.
        names: the last values that names were given before it.
    """
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return _joined([_part(part, names) for part in parts])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([texts(left, names), texts(right, names)])
        case ast.IfExp(body=body, orelse=other):
            return texts(body, names) + texts(other, names)
        case ast.Name(id=name) if name in names:
            return texts(names[name], {key: value for key, value in names.items() if key != name})
    return [VARIES]


def _part(part: ast.expr, names: Names) -> list[str]:
    """Return the texts of a part of an f-string: words that the code holds, or ``…``."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    held = isinstance(value, ast.Constant | ast.IfExp | ast.Name)
    return texts(value, names) if held else [VARIES]


def _joined(parts: Sequence[list[str]]) -> list[str]:
    return ["".join(alternative) for alternative in product(*parts)]


def assignments(node: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield line, name and value of all assignments in a function or module."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            target = each.targets[0]
            if isinstance(target, ast.Name):
                yield each.lineno, target.id, each.value
            elif isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                for name, value in zip(target.elts, each.value.elts, strict=False):
                    if isinstance(name, ast.Name):
                        yield each.lineno, name.id, value


def messages() -> list[Message]:
    """Return the messages of every place where an error of Samara is made, in order of files."""
    parsed = [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in sources()]
    classes = error_classes([tree for _, tree in parsed])
    return [
        message
        for file, tree in parsed
        for message in _of_module(file.relative_to(ROOT).as_posix(), tree, classes)
    ]


def _of_module(file: str, tree: ast.Module, classes: set[str]) -> Iterator[Message]:
    constants = {
        name: value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for _, name, value in assignments(statement)
    }
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen = set()
    for scope in [
        *sorted(functions, key=lambda f: -f.lineno),
        tree,
    ]:  # inner ones before outer ones
        local = sorted(assignments(scope), key=lambda a: a[0]) if scope is not tree else []
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and id(node) not in seen:
                seen.add(id(node))
                before = {name: value for line, name, value in local if line < node.lineno}
                yield from _of_call(file, node, classes, constants | before)


def _of_call(file: str, call: ast.Call, classes: set[str], names: Names) -> Iterator[Message]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    checked = name == "ValueError" and file.startswith(CHECKED)
    place = 0 if name in classes or checked else OTHERS.get(name, len(call.args))
    found = texts(call.args[place], names) if place < len(call.args) else []
    if name == CHECK and isinstance(call.args[0], ast.Attribute) and call.args[0].attr != "PASS":
        parts = [texts(part, names) for part in call.args[1:]]
        found = [
            ": ".join(each[:2]) + " → " + each[2] for each in product(*parts) if len(each) == 3
        ]
    for text in dict.fromkeys(found):
        plain = PLACEHOLDER.sub(VARIES, " ".join(text.split()))
        if len(re.findall(r"\w{2,}", plain)) >= LEAST_WORDS:
            yield Message(file, call.lineno, name, plain)


def of_family(family: str, known: Sequence[Message]) -> list[str]:
    """Return the texts of a family, each once, in the order of their words."""
    found = {message.text for message in known if message.family == family}
    return sorted(found, key=lambda text: (re.sub(r"[^a-z ]", "", text.lower()).strip(), text))
