"""The generated tables: settings, features, metrics, and the run config in pyproject.toml.

The same command also generates the terms of a run in TypeScript, which the page of phones reads.

``python docs/tables.py`` writes the tables between their markers. With ``--check``, it fails if a
table is outdated.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from methods_column import with_places
from supported_features import find_supported

from samara.client.tuning.settings import TuneSettings
from samara.server.watch.metrics import metrics_table
from samara.shared.settings.choices import AUTO, OPEN
from samara.shared.settings.config import RunConfig
from samara.shared.settings.data import FOLLOWS_SEED
from samara.shared.settings.features import (
    DIMENSIONS,
    EXCLUSIONS,
    FURTHER_EXCLUSIONS,
    TUNING_EXCLUSIONS,
    Exclusion,
)
from samara.shared.settings.fleet import DeviceGroup
from samara.shared.settings.rehearsal import Fault
from samara.shared.settings.setting import Section, Setting, describe, fixed_in
from samara.shared.terms.values import TERMS, Term

ROOT = Path(__file__).resolve().parents[1]

DOCS = ROOT / "docs"
METHODS = DOCS / "reference/methods.md"
PAGE = ROOT / "devices/phone/web/src/term-settings.ts"
LINK = re.compile(r"\]\(([\w/-]+\.md)")
BEGIN, END = "<!-- made by docs/tables.py: {} -->", "<!-- end -->"


def settings_table(
    section: type[Section], defaults: Mapping[str, object], prefix: str, *, run: bool = False
) -> str:
    """Return the Markdown table of the settings whose keys begin with a prefix.

    Args:
        section: class that declares the settings.
        defaults: value of each setting by dotted key.
        prefix: ``cohort.``, or empty for the settings outside of sections.
        run: whether to name owner and identity, which exist only for settings of a run.
    """
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key, setting in describe(section).items():
        if key.startswith(prefix) and "." not in key[len(prefix) :] and not setting.retired:
            meaning = setting.help + _notes(setting, run)
            lines.append(f"| `{key}` | {_shown(defaults.get(key))} | {meaning} |")
    return "\n".join(lines)


def _shown(default: object) -> str:
    if default is None:
        return "required"
    return f"`{json.dumps(default, ensure_ascii=False)}`" if default not in ("", ()) else "empty"


def _notes(setting: Setting, run: bool) -> str:
    notes = []
    if setting.page:
        notes.append(f" ([{_title(setting.page.split('#')[0])}]({setting.page}))")
    if setting.read_by:
        notes.append(f". Read by {', '.join(f'`{name}`' for name in setting.read_by)}")
    if run and setting.owner != "server":
        notes.append(". *Device*" if setting.owner == "device" else ". *Device, if set there*")
    if run and not setting.identity:
        notes.append(". *Not in the run id*")
    return "".join(notes)


def _title(page: str) -> str:
    """Return the first heading of a page, given the page's path under docs/."""
    return (DOCS / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def relative_links(table: str, folder: Path) -> str:
    """Return a table whose links are relative to a given folder instead of docs/."""
    return LINK.sub(lambda link: f"]({os.path.relpath(DOCS / link[1], folder)}", table)


def blocks() -> dict[str, str]:
    """Return the content of every generated block by its name."""
    run = RunConfig().flat() | OPEN | {"data.seed": FOLLOWS_SEED}
    tune = TuneSettings().flat() | {"adapter.layers": AUTO}
    sections = tuple(dict.fromkeys(key.split(".")[0] for key in run if "." in key))
    group, fault = _defaults(DeviceGroup), _defaults(Fault)
    found = {"run": settings_table(RunConfig, run, "", run=True)}
    found |= {name: settings_table(RunConfig, run, f"{name}.", run=True) for name in sections}
    found["group"] = settings_table(DeviceGroup, group, "")
    found["fault"] = settings_table(Fault, fault, "")
    found["tune"] = settings_table(TuneSettings, tune, "")
    found["tune data"] = settings_table(TuneSettings, tune, "data.")
    found["tune scaling"] = settings_table(TuneSettings, tune, "scaling.")
    found["tune lsp"] = settings_table(TuneSettings, tune, "lsp.")
    found["tune offload"] = settings_table(TuneSettings, tune, "offload.")
    found["tune apart"] = apart_table()
    found["fixed"] = fixed_table()
    found["metrics"] = metrics_table()
    return found | {f"features: {name}": table for name, table in feature_tables().items()}


def apart_table() -> str:
    """Return the table of run settings that `samara tune` declares again, with both defaults."""
    run = RunConfig().flat() | OPEN
    lines = ["| key | default here | of a run | why it differs |", "|---|---|---|---|"]
    for key, setting in describe(TuneSettings).items():
        if setting.apart:
            own = [_shown(value) for value in (setting.default, run[key])]
            lines.append(f"| `{key}` | {' | '.join(own)} | {setting.apart} |")
    return "\n".join(lines)


def fixed_table() -> str:
    """Return the table of settings that only earlier versions offered, with their values."""
    lines = ["| key | value | of | now | another value |", "|---|---|---|---|---|"]
    of = {"runs": RunConfig, "`samara tune`": TuneSettings}
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for name, section in of.items():
        for key, setting in describe(section).items():
            if setting.retired:
                row = key, _shown(setting.default), setting.retired, "obeyed if recorded"
                found.setdefault(row, []).append(name)
        for key, fixed in fixed_in(section).items():
            other = "ignored" if fixed.instead else "refused by name"
            found.setdefault((key, _shown(fixed.value), fixed.instead, other), []).append(name)
    for (key, value, now, other), names in found.items():
        both = "both" if len(names) == len(of) else names[0]
        lines.append(f"| `{key}` | {value} | {both} | {now or 'this value'} | {other} |")
    return "\n".join(lines)


def feature_tables() -> dict[str, str]:
    """Return Markdown tables of combinations that are not supported.

    There is one table for each of method, engine and kind of client, and one of refusals.
    """
    made = {name: _table(name) for name in ("method", "engine", "clients")}
    refused = (*EXCLUSIONS, *FURTHER_EXCLUSIONS)
    return made | {"refused": _refusals(refused), "tune": _refusals(TUNING_EXCLUSIONS)}


def _refusals(exclusions: Sequence[Exclusion]) -> str:
    lines = ["| refused | reason |", "|---|---|"]
    for exclusion in exclusions:
        sides = [f"{name} {', '.join(map(_code, own))}" for name, own in exclusion.values.items()]
        lines.append(f"| {' with '.join(sides)} | {exclusion.reason} |")
    return "\n".join(lines)


def _table(columns: str) -> str:
    """Return a table with a row for each value that is unsupported with some column's value."""
    values = DIMENSIONS[columns]
    lines = [
        f"| | {' | '.join(map(_code, values))} |",
        "|---" * (len(values) + 1) + "|",
    ]
    for name, rows in DIMENSIONS.items():
        for row in rows if name != columns else ():
            cells = [
                "yes" if find_supported({columns: value, name: row}) else "no" for value in values
            ]
            if "no" in cells:
                lines.append(f"| {name} {_code(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _code(value: str) -> str:
    return f"`{value}`"


def _defaults(section: type[Section]) -> dict[str, object]:
    """Return the default of each setting that has a default."""
    described = describe(section).items()
    return {key: setting.default for key, setting in described if setting.default is not None}


def filled(text: str, content: Mapping[str, str]) -> str:
    """Return a page with all its generated blocks replaced.

    Args:
        text: text of the page.
        content: content of each block by name.

    Raises:
        ValueError: if a block has no end.
    """
    for name, table in content.items():
        begin = BEGIN.format(name)
        if begin in text:
            before, _, rest = text.partition(begin)
            _, end, after = rest.partition(END)
            if not end:
                raise ValueError(f"{begin}: the block has no {END}")
            text = f"{before}{begin}\n{table}\n{END}{after}"
    return text


def with_config(project: str) -> str:
    """Return pyproject.toml with the table of Flower's run config generated again."""
    heading = "[tool.flwr.app.config]\n"
    before, _, rest = project.partition(heading)
    after = rest[rest.index("\n[") :]
    retired = {key for key, setting in describe(RunConfig).items() if setting.retired}
    default = {k: v for k, v in (RunConfig().flat() | OPEN).items() if k not in retired}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in default.items()]
    return before + heading + "".join(lines) + after


def page_terms() -> str:
    """Return TypeScript code with the ranges and defaults of a run's terms.

    The seed is left out, because JavaScript's numbers cannot represent it.
    """
    usual = asdict(Term())
    lines = []
    for key, term in TERMS.items():
        own = {name: value for name, value in asdict(term).items() if value != usual[name]}
        told = ", ".join(f"{name}: {json.dumps(value)}" for name, value in own.items())
        lines.append(f"  {json.dumps(key)}: {{ {told} }},".replace("{  }", "{}"))
    without_seed = "\n".join(line for line in lines if not line.startswith('  "seed"'))
    return (
        "/** The settings from which a run's terms are derived; generated by docs/tables.py. */\n\n"
        "/** The range of a setting; `Term` in shared/terms/values.py explains it. */\n"
        "export interface Term {\n"
        "  readonly least?: number;\n  readonly most?: number;\n  readonly above?: boolean;\n"
        "  readonly default?: boolean | number | string;\n"
        "  readonly words?: readonly string[];\n  readonly pattern?: string;\n}\n\n"
        f"export const TERMS = {{\n{without_seed}\n}} satisfies Readonly<Record<string, Term>>;\n\n"
        "export type TermKey = keyof typeof TERMS;\n"
    )


def outdated() -> dict[Path, str]:
    """Return the new text of each file whose generated content is outdated."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    content = blocks()
    made = {
        page: filled(
            text, {name: relative_links(table, page.parent) for name, table in content.items()}
        )
        for page, text in pages.items()
    }
    made[METHODS] = with_places(made[METHODS])
    project = ROOT / "pyproject.toml"
    pages[project] = project.read_text(encoding="utf-8")
    made[project] = with_config(pages[project])
    pages[PAGE], made[PAGE] = PAGE.read_text(encoding="utf-8"), page_terms()
    return {file: text for file, text in made.items() if text != pages[file]}


def main() -> None:
    """Write all outdated files, or with ``--check`` only name them."""
    changed = outdated()
    if "--check" in sys.argv[1:]:
        if changed:
            names = ", ".join(str(file.relative_to(ROOT)) for file in changed)
            sys.exit(f"out of date: {names}; run python docs/tables.py")
        return
    for file, text in changed.items():
        file.write_text(text, encoding="utf-8")
        print(f"written: {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
