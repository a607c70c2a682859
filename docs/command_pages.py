"""The page about the command line, generated from the commands."""

from collections.abc import Iterator
from html import escape

import click
import typer

from samara.command import app


def command_line() -> click.Command:
    """Return the command ``samara``, with all of its subcommands."""
    return typer.main.get_command(app)


def leaves(command: click.Command, path: str = "samara") -> Iterator[tuple[str, click.Command]]:
    """Yield every command without subcommands, with its full name, in the order of the help."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from leaves(below, f"{path} {name}")
    else:
        yield path, command


def commands_page() -> str:
    """Return Markdown sections about all commands, with description, arguments and options."""
    sections = []
    group = ""
    for path, command in leaves(command_line()):
        before, _, _ = path.rpartition(" ")
        if before != group and before != "samara":
            sections.append(f"## {before}\n")
        group = before
        level = "##" if before == "samara" else "###"
        sections.append(f"{level} {path}\n\n{_section(path, command)}\n")
    return "\n".join(sections)


def _section(path: str, command: click.Command) -> str:
    # A command stores the help option that its first context creates.
    context = click.Context(command, info_name=path, **command_line().context_settings)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = ["```text", usage, "```", "", *_paragraphs(command.help or "")]
    if rows := [row for parameter in command.params if (row := _row(parameter, context))]:
        lines += ["", "| option | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
    """Return a docstring as Markdown, with examples as code."""
    lines = []
    for paragraph in text.split("\n\n"):
        words = " ".join(paragraph.split())
        if words.startswith("Example: "):
            lines += ["```sh", words.removeprefix("Example: "), "```", ""]
        else:
            lines += [escape(words, quote=False), ""]
    return lines


def _row(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        if parameter.hidden or parameter.name == "help":
            return ""
        names = ", ".join(
            f"`{name}`{{.option}}" for name in (*parameter.opts, *parameter.secondary_opts)
        )
        meaning = parameter.help or ""
    else:
        names = f"`{parameter.make_metavar(context)}`"
        meaning = getattr(parameter, "help", None) or ""
    if isinstance(parameter.type, click.Choice):
        meaning += " (" + ", ".join(f"`{choice}`" for choice in parameter.type.choices) + ")"
    default = "required" if parameter.required else _shown(parameter.default)
    return f"| {names} | {default} | {escape(meaning, quote=False).replace('|', chr(92) + '|')} |"


def _shown(default: object) -> str:
    value = getattr(default, "value", default)
    known = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
    return f"`{value}`" if known else ""
