"""A comparison as one self-contained HTML page, without network access or scripts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from math import isnan
from typing import Any

import tomli_w

from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.hello import SPLIT_BYTES, SPLIT_TOKENS
from samara.shared.settings.config import RunConfig, non_default_settings
from samara.shared.settings.setting import nest
from samara.simulations.comparison.columns import explain_columns
from samara.simulations.comparison.comparison import Comparison, format_p
from samara.simulations.comparison.variants import Variant
from samara.simulations.report.figures import DRAWN_CLIENTS, figures_of
from samara.simulations.report.fleet import kinds_of, unit_of_parts
from samara.simulations.report.fleet_figures import fleet_figures
from samara.simulations.report.writing import read_writing, shown_share

try:
    from jinja2 import Environment, StrictUndefined
except ImportError as missing:
    raise SamaraError(
        "a report needs jinja2; install it with: pip install 'samara-fl[report]'"
    ) from missing

PAGE_KIND = b"<title>Samara"
"""Mark of every page, for `write_requested`."""
_KEY_CHARACTERS = 24
_VALUE_CHARACTERS = 120
_NO_SETTINGS = {"out", "threads"}
_ALIKE = {"fingerprints", "examples", "split_examples", SPLIT_TOKENS, SPLIT_BYTES}


@dataclass(frozen=True)
class Kind:
    """A group of clients with equal device information.

    Attributes:
        who: indices of the clients as ranges, such as 0–3, 7.
        count: number of clients.
        facts: information about the device, by name.
    """

    who: str
    count: int
    facts: dict[str, str]


def page_of(comparison: Comparison) -> str:
    """Return the HTML page of a comparison.

    Raises:
        SamaraError: if matplotlib or jinja2 is not installed.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    measure = comparison.measure
    environment.filters |= {
        "level": measure.level,
        "size": measure.size,
        "gain": measure.gain,
        "second": measure.second_level,
        "second_gain": measure.second_gain,
        "p": format_p,
        "known": lambda number: not isnan(number),
        "number": lambda number: f"{number:,.0f}",
        "share": shown_share,
    }
    folder = resources.files("samara.simulations.report")
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    variants = comparison.runs.variants
    return template.render(
        comparison=comparison,
        measure=measure,
        field=comparison.runs,
        style=(folder / "page.css").read_text(encoding="utf-8"),
        figures=figures_of(comparison),
        fleets={
            variant.label: (
                kinds := kinds_of(fleet),
                unit_of_parts(kinds),
                fleet_figures(variant.label, variant.first),
            )
            for variant in variants
            if (fleet := variant.first.fleet)
        },
        writings={
            variant.label: writing
            for variant in variants
            if (writing := read_writing(variant.runs[0].folder, variant.first))
        },
        several=len(variants) > 1,
        shown=DRAWN_CLIENTS,
        labels=comparison.labels(),
        explained=explain_columns(
            dict.fromkeys(line.condition.name for line in comparison.summaries)
        ),
        costs={variant.label: comparison.cost(variant) for variant in variants},
        devices={variant.label: list(_kinds(variant)) for variant in variants},
        scenarios={variant.label: scenario(variant.first.config) for variant in variants},
        settings=_settings(comparison),
    )


def scenario(config: Mapping[str, bool | int | float | str]) -> str:
    """Return the non-default settings as TOML that `samara simulate` accepts."""
    changed = non_default_settings(config).items()
    return tomli_w.dumps(nest({k: v for k, v in changed if k not in _NO_SETTINGS})).strip()


def _settings(comparison: Comparison) -> list[tuple[str, list[str], bool]]:
    """Return each setting, its value per variant, and whether a value differs from the default."""
    defaults = RunConfig().flat()
    configs = [variant.first.config for variant in comparison.runs.variants]
    keys = sorted({key for config in configs for key in config} - _NO_SETTINGS)
    return [
        (
            key,
            [str(config.get(key, "")) for config in configs],
            any(config.get(key) != defaults.get(key) for config in configs),
        )
        for key in keys
    ]


def _kinds(variant: Variant) -> Iterator[Kind]:
    """Yield the clients of the first run, grouped by equal device information."""
    facts = {
        client: {
            _short(key, _KEY_CHARACTERS): _short(value, _VALUE_CHARACTERS)
            for key, value in sorted(device.facts.items())
            if key not in _ALIKE
        }
        for client, device in variant.first.clients.items()
    }
    order = sorted(facts, key=lambda client: (json.dumps(facts[client]), client))
    for _, alike in groupby(order, key=lambda client: facts[client]):
        clients = list(alike)
        yield Kind(_ranges(clients), len(clients), facts[clients[0]])


def _short(value: Any, most: int) -> str:
    """Return a fact about a client as one line of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value)
    text = "".join(letter if letter.isprintable() else "�" for letter in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as ranges, for example 0–3, 7."""
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in pairs] for _, pairs in runs]
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)
