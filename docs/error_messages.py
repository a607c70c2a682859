"""The error messages that the code can give, read from its source, with … for what varies.

A message is the text of an error of Samara where it is made, of a mistake that checks of settings
and tasks raise or collect, of a reason that a code or a function stands for, of a combination of
features that is refused, of a check of the preflight, or of a warning in a log.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("shared", "client", "server", "devices", "simulations", "samara")
BASE = "SamaraError"
VARIES = "…"
CHECKED = ("shared/config.py", "shared/fleet_settings.py", "shared/sections.py", "shared/tasks/")
"""Files whose ValueErrors become part of an error of Samara."""
OTHERS = {"Exclusion": 1, "PydanticCustomError": 1, "CertificateProblem": 0, "exclusive_lock": 1}
"""Calls that hold a message, and in which argument."""
CHECK = "CheckResult"
COLLECTED = re.compile(r"_*(mistakes|problems|reasons|complaints)")
"""Names of lists whose texts become an error of Samara."""
SENTENCES = re.compile(r"_*(SENTENCES\w*|REASONS|REMEDIES|BY_THE_SERVER)")
"""Names of tables with a message for each code."""
TELLING = re.compile(r"_*(find_|explain_)?\w*(mistakes?|reason|missing_fields|rejection|refusal)")
"""Names of functions that return messages."""
REPORTING = re.compile(r"_*(report|refuse|refuse_if|complain)")
"""Names of functions that are given a message as their last argument."""
LOGGED = ("warning", "error")
PLACEHOLDER = re.compile(r"\{[\w.:!,]+\}|%[\d.]*[sdfrgx]")
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

Values = Mapping[str, Sequence[ast.expr]]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
ASSIGNING = ast.Assign | ast.AnnAssign
MAKING = ast.Call | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.FunctionDef


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


def error_classes(modules: Iterable["Module"]) -> set[str]:
    """Return the names of SamaraError and of all classes that derive from it."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
    }
    found = {BASE}
    while more := {name for name, parents in bases.items() if parents & found} - found:
        found |= more
    return found


class Module:
    """A module's tree, and what names stand for in it: constants, functions, imports.

    Args:
        file: path under the repository.
        tree: the parsed file.
    """

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.constants = {name: [value] for _, name, value in assignments(tree.body)}
        self.functions = {
            node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)
        }
        self.imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in self.nodes
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }


@cache
def modules() -> dict[str, Module]:
    """Return the product's modules by their dotted names."""
    found = {}
    for path in sources():
        file = path.relative_to(ROOT)
        name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(file.as_posix(), ast.parse(path.read_text(encoding="utf-8")))
    return found


class Scope(NamedTuple):
    """What names stand for at a place.

    Attributes:
        module: the module of the place.
        names: the values that names were given before it.
        entered: functions whose texts are being read, which are not read again.
    """

    module: Module
    names: Values
    entered: frozenset[str] = frozenset()

    def texts(self, node: ast.expr) -> list[str]:
        """Return what an expression may be as text: alternatives are one text each."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return _joined([self._part(part) for part in parts])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined([self.texts(left), self.texts(right)])
            case ast.IfExp(body=body, orelse=other):
                return self.texts(body) + self.texts(other)
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.texts(value)]
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [text for part in parts for text in self.texts(part)]
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.Starred(value=part):
                return self.texts(part)
            case ast.Dict(values=values):
                return [text for value in values for text in self.texts(value)]
            case ast.Name(id=name):
                return self._of_name(name)
            case ast.Call(func=ast.Attribute(value=ast.Name() as template, attr="format")):
                return self.texts(template)
            case ast.Call(func=ast.Name(id="cut_foreign_text"), args=[text]):
                return self.texts(text)
            case ast.Call(func=ast.Name(id=name)):
                return self._of_function(name)
        return [VARIES]

    def of_all(self, nodes: Sequence[ast.expr]) -> list[str]:
        """Return the texts of all of these: those with words if there are any."""
        found = list(dict.fromkeys(text for node in nodes for text in self.texts(node)))
        return [text for text in found if text != VARIES] or [VARIES]

    def _part(self, part: ast.expr) -> list[str]:
        """Return the texts of a part of an f-string: words that the code holds, or ``…``."""
        value = part.value if isinstance(part, ast.FormattedValue) else part
        held = isinstance(value, ast.Constant | ast.IfExp | ast.Name)
        return self.texts(value) if held else [VARIES]

    def _of_name(self, name: str) -> list[str]:
        if name in self.names:
            others = {key: values for key, values in self.names.items() if key != name}
            return Scope(self.module, others, self.entered).of_all(self.names[name])
        home, name = self._home(name)
        if home and name in home.constants:
            return Scope(home, {}, self.entered).of_all(home.constants[name])
        return [VARIES]

    def _of_function(self, name: str) -> list[str]:
        home, name = self._home(name)
        if not home or name not in home.functions or f"{home.file}:{name}" in self.entered:
            return [VARIES]
        return home_texts(home, home.functions[name], self.entered)

    def _home(self, name: str) -> tuple[Module | None, str]:
        """Return the module that defines a name, and its name there."""
        if name in self.module.imported:
            home, name = self.module.imported[name]
            return modules().get(home), name
        return self.module, name


def home_texts(home: Module, function: ast.FunctionDef, entered: frozenset[str]) -> list[str]:
    """Return what a function may return as text."""
    within = entered | {f"{home.file}:{function.name}"}
    nodes = list(ast.walk(function))
    found = []
    for node in nodes:
        if isinstance(node, ast.Return | ast.Yield) and node.value:
            found += Scope(home, values_before(node.lineno, nodes), within).texts(node.value)
    return [text for text in dict.fromkeys(found) if text] or [VARIES]


def _joined(parts: Sequence[list[str]]) -> list[str]:
    return ["".join(alternative) for alternative in product(*parts)]


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield line, name and value of all assignments among statements, in order of lines."""
    assigned = [node for node in nodes if isinstance(node, ASSIGNING)]
    for each in sorted(assigned, key=lambda node: node.lineno):
        if isinstance(each, ast.AnnAssign):
            if isinstance(each.target, ast.Name) and each.value:
                yield each.lineno, each.target.id, each.value
        else:
            target = each.targets[0]
            if isinstance(target, ast.Name):
                yield each.lineno, target.id, each.value
            elif isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                for name, value in zip(target.elts, each.value.elts, strict=False):
                    if isinstance(name, ast.Name):
                        yield each.lineno, name.id, value


def values_before(line: int, nodes: Iterable[ast.AST]) -> Values:
    """Return the values that statements above a line give to each name."""
    values: dict[str, list[ast.expr]] = {}
    for at, name, value in assignments(nodes):
        if at < line:
            values.setdefault(name, []).append(value)
    return values


@cache
def messages() -> list[Message]:
    """Return the messages of every place where one is made, in order of files."""
    return [one for one in made() if re.search(r"\w{2,}", one.text)]


def made() -> list[Message]:
    """Return the texts of all these places, those without a word of their own, too."""
    classes = error_classes(modules().values())
    return [message for module in modules().values() for message in _of_module(module, classes)]


def _of_module(module: Module, classes: set[str]) -> Iterator[Message]:
    functions = [node for node in module.nodes if isinstance(node, FUNCTIONS)]
    seen = set()
    # inner functions before outer ones
    for scope in [*sorted(functions, key=lambda f: -f.lineno), None]:
        within = list(ast.walk(scope)) if scope else module.nodes
        given = [node for node in within if isinstance(node, ASSIGNING)] if scope else []
        for node in within:
            if id(node) in seen or not isinstance(node, MAKING):
                continue
            seen.add(id(node))
            line = node.lineno
            names = Scope(module, values_before(line, given))
            for kind, text in dict.fromkeys(_of_node(node, names, classes)):
                plain = PLACEHOLDER.sub(VARIES, " ".join(text.split()))
                yield Message(module.file, line, kind, re.sub(f"{VARIES}{{2,}}", VARIES, plain))


def _of_node(node: ast.AST, scope: Scope, classes: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the messages that a node makes, each with the name of what makes it."""
    match node:
        case ast.Call():
            for text in _of_call(node, scope, classes):
                yield _name(node.func), text
        case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
            name = _name(target)
            if COLLECTED.fullmatch(name) or SENTENCES.fullmatch(name):
                yield from ((name, text) for text in scope.texts(value))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            if COLLECTED.fullmatch(_name(target)) or SENTENCES.fullmatch(_name(target)):
                yield from ((_name(target), text) for text in scope.texts(value))
        case ast.FunctionDef(name=name) if TELLING.fullmatch(name):
            yield from ((name, text) for text in home_texts(scope.module, node, frozenset()))


def _of_call(call: ast.Call, scope: Scope, classes: set[str]) -> Iterator[str]:
    name = _name(call.func)
    checked = name == "ValueError" and scope.module.file.startswith(CHECKED)
    match call.func:
        case ast.Attribute(value=holder, attr="append" | "extend") if COLLECTED.fullmatch(
            _name(holder)
        ):
            place = 0
        case ast.Attribute(value=ast.Name(id="log"), attr=level) if level in LOGGED:
            place = 0
        case _ if REPORTING.fullmatch(name):
            place = len(call.args) - 1
        case _:
            place = 0 if name in classes or checked else OTHERS.get(name, len(call.args))
    if call.args and place < len(call.args):
        yield from scope.texts(call.args[place])
    if name == CHECK and isinstance(call.args[0], ast.Attribute) and call.args[0].attr != "PASS":
        # finding and remedy were given their values together
        latest = Scope(scope.module, {name: values[-1:] for name, values in scope.names.items()})
        for each in product(*map(latest.texts, call.args[1:])):
            if len(each) == 3:
                yield ": ".join(each[:2]) + " → " + each[2]


def _name(node: ast.expr) -> str:
    """Return the last part of a name; empty if the expression is no name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def of_family(family: str, known: Sequence[Message]) -> list[str]:
    """Return the texts of a family, each once, in the order of their words."""
    found = {message.text for message in known if message.family == family}
    return sorted(found, key=lambda text: (re.sub(r"[^a-z ]", "", text.lower()).strip(), text))
