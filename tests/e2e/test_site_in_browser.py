"""The documentation site in a real browser: searchable offline, no page wider than a phone."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from browsers import chromium, serve_folder
from driven_browser import Tab, driven
from helpers import ROOT, is_newest

from samara.shared.old_names import OLD_NAMES

pytest.importorskip("mkdocs", reason="needs the extra samara-fl[docs]")

pytestmark = pytest.mark.slow

OUTSIDE = re.compile(r"""(?:src|href)=["']?(?:https?:)?//(?!www\.w3\.org)[^"' >]*""")
FRAME = """<!DOCTYPE html><body><script>
const pages = PAGES, found = {}, frame = document.createElement("iframe");
frame.width = 390; frame.height = 800; document.body.append(frame);
const next = () => {
  if (!pages.length) return;
  const page = pages.pop();
  frame.onload = () => {
    const content = frame.contentDocument;
    found[page] = [content.documentElement.scrollWidth, content.querySelectorAll("h1").length];
    next();
  };
  frame.src = page;
};
next();
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of `make check`, or one that is built here if a source is newer."""
    folder = tmp_path_factory.mktemp("site") / "built"
    sources = [ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.*")]
    sources += [file for name in ("samara", *OLD_NAMES) for file in (ROOT / name).rglob("*.py")]
    built = ROOT / "build/site"
    if is_newest(built / "index.html", (file for file in sources if file.suffix != ".pyc")):
        return shutil.copytree(built, folder)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir"]
    done = subprocess.run([*command, folder], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A page of one browser for all tests, because starting a browser takes as long as a test."""
    with driven(chromium(), tmp_path_factory.mktemp("profile")) as started:
        yield started


def test_search_works_in_a_folder_without_a_server(site: Path, tab: Tab) -> None:
    address = f"{(site / 'guides/privacy.html').as_uri()}?q=digest"
    items = "document.querySelectorAll('.md-search-result__item').length > 3"
    meta = "document.querySelector('.md-search-result__meta').textContent"
    tab.open(address)
    tab.until(items, seconds=120)
    found = tab.run(meta)
    assert re.search(r"\d+ matching documents", found)


def test_an_error_message_is_found_by_its_words(site: Path, tmp_path: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts = [e["text"] for e in index["docs"] if e["location"].startswith("troubleshooting.html")]
    for words in ("another process is writing to it; end that process first", "has the run ended?"):
        assert any(words in unescape(text) for text in texts)


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    links = re.compile(r"<a [^>]*>")
    for page in site.rglob("*.html"):
        text = links.sub("", page.read_text(encoding="utf-8"))
        assert not OUTSIDE.search(text), page


WANTED = {
    "compare methods on my CSV": "samara compare runs/",
    "train three Jetsons": "devices/jetson/install.sh",
    "join my phone": "samara server invite anna",
    "use my model in Ollama": "ollama create",
    "reproduce P-RGE's table": "python -m benchmarks.papers",
}
"""Goals of readers, each with words of the page that leads to it."""
ROW = """[...document.querySelectorAll("td")].find((cell) => cell.textContent === WANT)
  .parentElement.querySelectorAll("a")"""


@pytest.mark.parametrize("want", WANTED)
def test_what_people_come_for_is_two_clicks_from_the_start(want: str, site: Path, tab: Tab) -> None:
    row, start = ROW.replace("WANT", json.dumps(want)), (site / "index.html").as_uri()
    at_start = f"location.href === {json.dumps(start)} && document.readyState === 'complete'"
    tab.open(start)
    tab.until(at_start)
    count = tab.run(f"({row}).length")
    found = []
    for number in range(count):
        tab.open(start)
        tab.until(at_start)
        tab.run(f"({row})[{number}].click()")
        tab.until("!location.pathname.endsWith('index.html')")
        tab.until("document.readyState === 'complete'")
        target = "decodeURIComponent(location.hash.slice(1))"
        assert tab.run(f"!location.hash || document.getElementById({target}) !== null")
        found.append(str(tab.run("document.querySelector('article').textContent")))
    assert any(WANTED[want] in text for text in found)


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with serve_folder(site) as found:
        yield found


def test_no_page_is_wider_than_a_phone(site: Path, address: str, tab: Tab) -> None:
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))
    pages.remove("404.html")
    (site / "frame.html").write_text(FRAME.replace("PAGES", json.dumps(pages)))
    try:
        tab.open(f"{address}/frame.html")
        for count in range(1, len(pages) + 1):  # so that the limit of time is one page's
            tab.until(f"Object.keys(found).length >= {count}")
        found = json.loads(tab.run("JSON.stringify(found)"))
    finally:
        (site / "frame.html").unlink()
    assert sorted(found) == pages
    assert {page: width for page, (width, _) in found.items() if width > 390} == {}
    assert {page for page, (_, titles) in found.items() if titles != 1} == set()
