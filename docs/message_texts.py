"""Possible texts of expressions in the source code; … stands for the variable parts."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("shared", "client", "server", "devices", "simulations", "samara")
VARIES = "…"
Values = Mapping[str, Sequence[ast.expr]]
ASSIGNING = ast.Assign | ast.AnnAssign


def sources() -> list[Path]:
    """Return the Python files of the product."""
    files = [file for name in PACKAGES for file in sorted((ROOT / name).rglob("*.py"))]
    return [file for file in files if "_pb2" not in file.name]


class Module:
    """A parsed module, with the constants, functions and imports that names in it refer to.

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
    """Return all modules of the product by dotted name."""
    found = {}
    for path in sources():
        file = path.relative_to(ROOT)
        parts = file.with_suffix("").parts
        parts = parts if parts[0] == "samara" else ("samara", *parts)
        name = ".".join(parts).removesuffix(".__init__")
        found[name] = Module(file.as_posix(), ast.parse(path.read_text(encoding="utf-8")))
    return found


class Scope(NamedTuple):
    """The values of names at one place of a module.

    Attributes:
        module: the module of the place.
        names: expressions assigned to each name before the place.
        entered: functions whose texts are already being read; they are not entered again.
    """

    module: Module
    names: Values
    entered: frozenset[str] = frozenset()

    def texts(self, node: ast.expr) -> list[str]:
        """Return the possible texts of an expression, one for each alternative."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return _joined([self._part(part) for part in parts])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _joined([self.texts(left), self.texts(right)])
            case ast.IfExp(body=one, orelse=other):
                return self.texts(one) + self.texts(other)
            case (
                ast.BoolOp(values=parts)
                | ast.Dict(values=parts)
                | ast.Tuple(elts=parts)
                | ast.List(elts=parts)
            ):
                return [text for part in parts for text in self.texts(part)]
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) | ast.Starred(value=part):
                return self.texts(part)
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
        """Return the possible texts of several expressions.

        The text ``…`` is left out unless it is the only text.
        """
        found = list(dict.fromkeys(text for node in nodes for text in self.texts(node)))
        return [text for text in found if text != VARIES] or [VARIES]

    def _part(self, part: ast.expr) -> list[str]:
        """Return the possible texts of a part of an f-string: texts in the source, or ``…``."""
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
        return returned_texts(home, home.functions[name], self.entered)

    def _home(self, name: str) -> tuple[Module | None, str]:
        """Return the module that defines a name, and the name in that module."""
        if name in self.module.imported:
            home, name = self.module.imported[name]
            return modules().get(home), name
        return self.module, name


def returned_texts(module: Module, function: ast.FunctionDef, entered: frozenset[str]) -> list[str]:
    """Return the possible texts that a function returns."""
    within = entered | {f"{module.file}:{function.name}"}
    nodes = list(ast.walk(function))
    found = []
    for node in nodes:
        if isinstance(node, ast.Return | ast.Yield) and node.value:
            found += Scope(module, values_before(node.lineno, nodes), within).texts(node.value)
    return [text for text in dict.fromkeys(found) if text] or [VARIES]


def _joined(parts: Sequence[list[str]]) -> list[str]:
    return ["".join(alternative) for alternative in product(*parts)]


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield (line, name, value) of all assignments among some nodes, in the order of lines."""
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
    """Return the values that are assigned to each name above a line."""
    values: dict[str, list[ast.expr]] = {}
    for at, name, value in assignments(nodes):
        if at < line:
            values.setdefault(name, []).append(value)
    return values
