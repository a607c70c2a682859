"""All error messages of the code, extracted from its source; … stands for the variable parts.

The messages come from these places:

- constructors of Samara's errors
- mistakes that checks of settings and tasks raise or collect
- tables and functions that return the reason for a code
- combinations of features that are refused
- checks of the preflight
- warnings in a log
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from message_texts import ASSIGNING, VARIES, Module, Scope, modules, returned_texts, values_before

BASE = "SamaraError"
CHECKED = (
    "shared/settings/config.py",
    "shared/settings/fleet.py",
    "shared/settings/sections.py",
    "shared/tasks/",
)
"""Files and folders whose `ValueError` messages become part of a Samara error."""
OTHERS = {
    "CertificateProblem": 0,
    "Exclusion": 1,
    "PydanticCustomError": 1,
    "RequestError": 1,
    "exclusive_lock": 1,
}
"""Names of functions that receive a message, each with the index of that argument."""
CHECK = "CheckResult"
COLLECTED = re.compile(r"_*(mistakes|problems|reasons|complaints)")
"""Names of lists that collect messages for a Samara error."""
SENTENCES = re.compile(r"_*(SENTENCES\w*|REASONS|REMEDIES|BY_THE_SERVER|damaged|unwritable)")
"""Names of tables of messages by code, and of the messages in subclasses of `KeptFile`."""
TELLING = re.compile(
    r"_*(find_|explain_)?\w*(mistakes?|reason|missing_(fields|gain)|rejection|refusal)"
)
"""Names of functions that return messages."""
REPORTING = re.compile(r"_*(report|refuse|refuse_if|complain)")
"""Names of functions whose last argument is a message."""
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
        "shared/protocol/basis.py",
        "shared/protocol/start.py",
        "client/forward/",
        "client/streaming/",
        "client/spaces/",
        "client/training/informed_basis.py",
        "client/offload/",
        "simulations/exports/basis_file.py",
        "simulations/exports/damping_file.py",
        "devices/hardware/model_shape.py",
    ),
    "training": (
        "client/",
        "client/training/",
        "client/tuning/",
        "shared/protocol/replay",
        "shared/protocol/step",
    ),
    "runs": (
        "shared/protocol/ledger/",
        "shared/storage/events.py",
        "shared/protocol/layout.py",
        "shared/results/result.py",
        "shared/settings/run_settings.py",
        "shared/settings/runs.py",
        "server/store.py",
        "server/rounds/recorded_cohorts.py",
        "server/rounds/clusters.py",
        "simulations/exports/adapter.py",
        "simulations/comparison/",
        "simulations/finished.py",
        "simulations/exports/quick_look.py",
        "client/personal/model_folder.py",
        "client/personal/personalizations.py",
    ),
    "server": ("server/",),
    "client": (
        "devices/",
        "client/limits/",
        "client/protocol/",
        "client/questions/",
        "client/trainer/",
        "shared/settings/blobs",
        "shared/storage/blob",
        "shared/network/certificates.py",
        "shared/terms/run_terms.py",
        "shared/terms/signed_scenario.py",
        "shared/protocol/signing.py",
    ),
    "phones": ("devices/gateway/", "devices/phone/"),
    "estimates": ("devices/hardware/",),
    "network": (
        "shared/protocol/frames/",
        "shared/protocol/wire.py",
        "shared/protocol/round_delta.py",
        "shared/protocol/client_index.py",
        "server/transport/",
        "server/rounds/",
    ),
}
"""Families of messages, each with the beginnings of its files' paths. The longest match decides."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
MAKING = ast.Call | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.FunctionDef


class Message(NamedTuple):
    """A message, with its place in the source.

    Attributes:
        file: path under the repository.
        line: line of the call or assignment with the message.
        error: name of the error's class, or of the function or variable that receives the message.
        text: text of the message; ``…`` stands for a variable part.
    """

    file: str
    line: int
    error: str
    text: str

    @property
    def family(self) -> str:
        """Return the family with the longest path beginning that matches the file."""
        fits = {
            beginning: name
            for name, beginnings in FAMILIES.items()
            for beginning in beginnings
            if self.file.startswith(beginning)
        }
        return fits[max(fits, key=len)]


def error_classes(modules: Iterable[Module]) -> set[str]:
    """Return the names of `SamaraError` and all classes derived from it."""
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


@cache
def messages() -> list[Message]:
    """Return all messages that contain a word, in the order of the files."""
    return [one for one in made() if re.search(r"\w{2,}", one.text)]


@cache
def made() -> list[Message]:
    """Return all messages, including texts without any word."""
    classes = error_classes(modules().values())
    return [message for module in modules().values() for message in _of_module(module, classes)]


def _of_module(module: Module, classes: set[str]) -> Iterator[Message]:
    functions = [node for node in module.nodes if isinstance(node, FUNCTIONS)]
    seen = set()
    # inner functions come before the functions around them
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
    """Yield (name, message) for a syntax node: its function or variable, and its messages."""
    match node:
        case ast.Call():
            for text in _of_call(node, scope, classes):
                yield _name(node.func), text
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AugAssign(target=target, value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
        ):
            name = _name(target)
            if COLLECTED.fullmatch(name) or SENTENCES.fullmatch(name):
                yield from ((name, text) for text in scope.texts(value))
        case ast.FunctionDef(name=name) if TELLING.fullmatch(name):
            yield from ((name, text) for text in returned_texts(scope.module, node, frozenset()))


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
        # a check assigns finding and remedy together, so the latest values belong together
        latest = Scope(scope.module, {name: values[-1:] for name, values in scope.names.items()})
        for each in product(*map(latest.texts, call.args[1:])):
            if len(each) == 3:
                yield ": ".join(each[:2]) + " → " + each[2]


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name, or "" for another expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def of_family(family: str, known: Sequence[Message]) -> list[str]:
    """Return the texts of a family in alphabetical order, without repetitions."""
    found = {message.text for message in known if message.family == family}
    return sorted(found, key=lambda text: (re.sub(r"[^a-z ]", "", text.lower()).strip(), text))
