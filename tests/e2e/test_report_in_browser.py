"""The page of a comparison in a real browser: no errors, all figures, legible, not too wide."""

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest
from browsers import chromium
from driven_browser import driven
from results import result_of, write_result

from samara.simulations.comparison.comparison import compare_runs

pytest.importorskip("matplotlib", reason="needs the extra samara-fl[report]")

from samara.simulations.report.html import page_of

pytestmark = pytest.mark.slow

FRAME = """<!DOCTYPE html><body style="margin:0"><pre id="found"></pre>
<iframe style="border:0" width="{width}" height="900" srcdoc="{page}"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument;
  const size = (text) => parseFloat(getComputedStyle(text).fontSize)
    * text.ownerSVGElement.getScreenCTM().a;
  const sheet = frame.contentWindow.getComputedStyle(page.body);
  document.getElementById("found").textContent = JSON.stringify({{
    wide: page.documentElement.scrollWidth,
    cut: [...page.querySelectorAll("section > .scroll")].filter(
      (table) => table.scrollWidth > table.clientWidth + 1).length,
    paper: sheet.backgroundColor, ink: sheet.color,
    figures: [...page.querySelectorAll("figure")].map((figure) => {{
      const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll("text")];
      const inside = texts.every((text) => {{
        const own = text.getBoundingClientRect();
        return own.left >= box.left - 2 && own.right <= box.right + 2;
      }});
      return {{id: figure.id, width: box.width, height: box.height, inside,
        letters: Math.min(...texts.map(size)), texts: texts.length}};
    }}),
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    results = (result_of(16), result_of(16, gain=0.0, learning_rate=0.02))
    runs = [write_result(folder / str(i), result) for i, result in enumerate(results)]
    return page_of(compare_runs(runs))


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1440, True)])
def test_the_page_is_whole_and_legible(width: int, dark: bool, page: str, tmp_path: Path) -> None:
    file = tmp_path / "frame.html"
    file.write_text(FRAME.format(width=width, page=escape(page)))
    made = "document.getElementById('found').textContent"
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    with driven(chromium(), tmp_path / "profile", f"--window-size={max(width, 500)},1000") as tab:
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.open(file.as_uri())
        found: dict[str, Any] = json.loads(tab.until(made))
    assert tab.said == []
    assert found["wide"] <= width
    assert found["cut"] == 0
    assert sum(map(int, re.findall(r"\d+", found["paper"])[:3])) < 200 or not dark
    names = ["slopesA", "slopesB", "differences", "distribution", "learning", "loss", "cost"]
    assert [figure["id"] for figure in found["figures"]] == names
    for figure in found["figures"]:
        assert figure["width"] > min(width, 500) * 0.8
        assert figure["height"] > 100
        assert figure["inside"], figure
        assert figure["letters"] >= 9.5, figure
        assert figure["texts"] > 5
