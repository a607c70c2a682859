"""Old forms of commands, which keep working for one version with a one-line warning.

Old forms are not registered as commands. A command line in an old form is converted to the new form
before it is parsed. Only the first version with a new form accepts the old form.
"""

from collections.abc import Sequence

COMMANDS = {
    "tasks": "simulate --list",
    "privacy plan": "privacy",
    "server watch": "server status --watch",
    "server inspect": "server status --rounds",
    "server verify": "server check --replay",
    "server doctor": "server check",
    "server keys add": "server keys create",
    "server keys revoke": "server invite --revoke",
    "server keys renew": "server keys rotate",
    "server keys operator": "server sign --make-key",
    "server keys sign": "server sign",
    "server keys list": "server status --keys",
    "device list": "device estimate --list",
    "client doctor": "client status --report",
    "client unlearn": "client learn --delete",
    "client import": "client move --here",
}
"""First words of command lines in the new form, by first words in the old form."""

_OPTIONS_OF_CLIENT = {
    "--stream": "--set model.stream={}",
    "--max-temperature": "--set owner.max-temperature={}",
    "--mains-only": "--set owner.mains-only=true",
    "--min-battery": "--set owner.min-battery={}",
    "--idle-only": "--set owner.idle-only=true",
    "--unmetered-only": "--set owner.unmetered-only=true",
    "--hours": "--set owner.hours={}",
    "--nice": "--set owner.nice={}",
    "--idle-io": "--set owner.idle-io=true",
    "--power-mode": "--set owner.power-mode={}",
    "--share-energy": "--set owner.share-energy=true",
}
_OPTIONS_OF_TUNE = {
    "--method": "--optimizer {}",
    "--train": "--set data.train={}",
    "--validation": "--set data.validation={}",
    "--test": "--set data.test={}",
    "--queries": "--set queries={}",
    "--batch": "--set batch={}",
    "--epsilon": "--set epsilon={}",
    "--validate-every": "--set validate-every={}",
    "--stream": "--set model.stream={}",
}
_OPTIONS_OF_ESTIMATE = {
    "--method": "--optimizer {}",
    "--queries": "--set queries={}",
    "--grouping": "--set grouping={}",
    "--differences": "--set differences={}",
    "--top": "--set adapter.layers=top:{}",
    "--rank": "--set adapter.rank={}",
    "--subspace": "--set lsp.subspace-size={}",
    "--nonzeros": "--set lsp.nonzeros={}",
    "--layer-wise": "--set offload.schedule=layer-wise",
    "--checkpointing": "--set offload.checkpointing=on",
    "--no-checkpointing": "--set offload.checkpointing=off",
    "--supervised": "--set supervised={}",
    "--stream": "--set model.stream={}",
    "--readout": "--set readout-labels={}",
}
OPTIONS = {
    "client up": _OPTIONS_OF_CLIENT,
    "tune": _OPTIONS_OF_TUNE,
    "device estimate": _OPTIONS_OF_ESTIMATE,
}
"""Replacements of old options, by command in the new form. {} stands for the option's value."""


def in_new_form(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line in the new form, and a description of each change.

    Args:
        words: words of the command line after ``samara``.
    """
    new = list(words)
    changes = []
    for count in range(min(3, len(new)), 0, -1):
        old = " ".join(new[:count])
        if old in COMMANDS:
            new[:count] = COMMANDS[old].split()
            changes.append(f"`samara {old}` is now `samara {COMMANDS[old]}`")
            break
    for command, options in OPTIONS.items():
        begin = command.split()
        if new[: len(begin)] == begin:
            rest, found = _with_new_options(new[len(begin) :], options)
            return [*begin, *rest], changes + found
    return new, changes


def _with_new_options(words: Sequence[str], options: dict[str, str]) -> tuple[list[str], list[str]]:
    new = list[str]()
    changes = list[str]()
    left = iter(words)
    for word in left:
        if word == "--":
            return [*new, word, *left], changes
        name, equals, value = word.partition("=")
        if name not in options:
            new.append(word)
            continue
        form = options[name]
        changes.append(f"{name} is now {form.replace('{}', 'VALUE')}")
        if "{}" in form and not equals:
            value = next(left, "")
        new += [word.replace("{}", value) for word in form.split()]
    return new, changes
