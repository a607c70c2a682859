"""The page of a comparison: its content, all of which is only text."""

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from results import result_of, write_result

from samara.shared.settings.config import load_scenario
from samara.simulations.comparison.comparison import compare_runs

pytest.importorskip("matplotlib", reason="needs the extra samara-fl[report]")
pytest.importorskip("jinja2", reason="needs the extra samara-fl[report]")

from samara.simulations.report.html import page_of, scenario

FIGURES = ["slopesA", "differences", "distribution", "learning", "loss", "cost"]
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}\x1b[31m$\\frac$'


class Parsed(HTMLParser):
    """The elements and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]


def page(folder: Path, *results: dict[str, Any]) -> str:
    return page_of(compare_runs([write_result(folder / str(i), r) for i, r in enumerate(results)]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(tmp_path_factory.mktemp("plain"), result_of(clients=20))


def test_the_page_answers_first_and_has_every_figure(plain: str) -> None:
    parsed = Parsed(plain)
    assert [figure["id"] for figure in parsed.named("figure")] == FIGURES
    assert "personalized serves clients better than global" in parsed.texts
    drawings = parsed.named("svg")
    assert [svg["role"] for svg in drawings] == ["img"] * len(FIGURES)
    assert all(len(svg["aria-label"] or "") > 40 for svg in drawings)


def test_the_page_has_the_mean_auc_of_every_column(tmp_path: Path, plain: str) -> None:
    assert len(re.findall(r'<td data-label="AUC">0\.\d{3}</td>', plain)) == 7
    content = result_of()
    for evaluation in content["evaluations"]:
        for column in evaluation["columns"].values():
            for own in column["clients"].values():
                del own["auc"]
    assert "AUC" not in page(tmp_path, content)


def test_the_page_needs_no_network_and_no_script(plain: str) -> None:
    parsed = Parsed(plain)
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in parsed.elements}
    for tag, attributes in parsed.elements:
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"@import|url\((?!#)", plain)


def test_ids_are_unique_and_what_is_referred_to_is_there(plain: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', plain)
    assert len(ids) == len(set(ids))
    referred = re.findall(r'(?:href="#|url\(#|aria-labelledby=")([^")]+)', plain)
    assert set(referred) <= set(ids)


def test_colours_come_from_the_page(plain: str) -> None:
    """Dark pages and print can thus have their own colours."""
    drawings = "".join(re.findall(r"<svg.*?</svg>", plain, re.DOTALL))
    assert "var(--ink)" in drawings
    assert not re.search(r"#[0-9a-f]{6}\b", drawings.replace("#000000", ""))


def test_colours_of_variants_are_not_those_of_losing(plain: str) -> None:
    colours = re.findall(r"--(\w+): (#[0-9a-f]{6});", plain)
    losing = {colour for name, colour in colours if name == "down"}
    series = {colour for name, colour in colours if name.startswith("series")}
    assert len(losing) == 3  # light, dark and print
    assert not losing & series


def test_a_curve_is_seen_under_another_one(tmp_path: Path) -> None:
    """Two runs with equal validations have lines of different styles."""
    text = page(tmp_path, result_of(), result_of(learning_rate=0.02))
    learning = re.search(r'<figure id="learning">.*?</figure>', text, re.DOTALL)
    assert learning is not None
    lines = re.findall(r'style="[^"]*stroke: var\(--series[^"]*"', learning[0])
    assert len({"stroke-dasharray" in line for line in lines}) == 2


def test_cells_say_their_column_where_a_phone_shows_rows_as_cards(plain: str) -> None:
    cards = re.findall(r'<table class="[^"]*cards">.*?</table>', plain, re.DOTALL)
    assert len(cards) == 4
    for table in cards:
        heads = re.findall(r'<th scope="col">([^<]+)</th>', table)
        for row in table.partition("<tbody>")[2].split("</tr>")[:-1]:
            assert re.findall(r'<td data-label="([^"]*)"', row) == heads


def test_a_model_below_the_best_other_column_is_warned_about(tmp_path: Path) -> None:
    text = " ".join(Parsed(page(tmp_path, result_of(gain=-0.2))).texts)
    assert "points below global, which may be due to chance" in text or "worse than global" in text
    assert "points below global, the best other column" in text
    assert "Try method = global" in text


def test_the_same_runs_make_the_same_page(plain: str, tmp_path: Path) -> None:
    again = page(tmp_path, result_of(clients=20))
    named = re.compile(r"[^ >]*/0 ends after")
    assert named.sub("", again) == named.sub("", plain)


def test_what_runs_say_is_text(tmp_path: Path) -> None:
    result = result_of()
    result["clients"]["3"] |= {"platform": HOSTILE, HOSTILE: {"deep": [HOSTILE] * 99}}
    result["config"]["task"] = HOSTILE
    result["versions"][HOSTILE] = HOSTILE
    folder = write_result(tmp_path / "<b>$x", result)
    text = page_of(compare_runs([folder]))
    parsed = Parsed(text)
    assert not {"script", "img", "b"} & {tag for tag, _ in parsed.elements}
    assert not any(name.startswith("on") for _, own in parsed.elements for name in own)
    assert "49" not in "".join(t for t in parsed.texts if "alert" in t)
    assert "1 device: client 3" in " ".join(" ".join(parsed.texts).split())
    assert len(max(parsed.texts, key=len)) < 20_000


def test_large_federations_make_small_pages(tmp_path: Path) -> None:
    text = page(tmp_path, result_of(clients=400))
    assert "400 devices: clients 0" in text
    assert len(text.encode()) < 2**20
    assert "300 of 400 clients are drawn" in text


def test_without_personal_models_or_validations_there_is_less(tmp_path: Path) -> None:
    result = result_of(personal=False)
    result["evaluations"] = [e for e in result["evaluations"] if e["split"] == "test"]
    figures = [figure["id"] for figure in Parsed(page(tmp_path, result)).named("figure")]
    assert figures == FIGURES[:3]


def test_one_client_and_one_seed_are_enough(tmp_path: Path) -> None:
    assert "nan" not in " ".join(Parsed(page(tmp_path, result_of(clients=1))).texts).split()


def test_the_scenario_of_the_page_is_the_run(tmp_path: Path) -> None:
    config = result_of(learning_rate=0.02, adapter__layers="top:2", seed_policy="shared")["config"]
    text = scenario(config)
    assert len(tomllib.loads(text)) >= 4
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert load_scenario(file).flat() == config
