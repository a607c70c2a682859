"""The documentation as a site: it has every page, and every link and anchor leads somewhere."""

import ast
import re
from pathlib import Path

import pytest
import yaml
from documented import FENCED, PAGES, headings, links, without_comments
from helpers import ROOT

DOCS = ROOT / "docs"
from error_messages import (  # noqa: E402
    COLLECTED,
    FAMILIES,
    TELLING,
    error_classes,
    made,
    messages,
    of_family,
)
from message_texts import modules  # noqa: E402

QUOTED = re.compile(r"^\| `(.*?)` \| .* \|$", re.MULTILINE)
OUTSIDE = re.compile(r"(src|href)=[\"']?(https?:)?//|@import|url\((https?:)?//")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert DOCS not in page.parents or DOCS in file.parents, f"{target} is not in the site"
        if anchor:
            text = without_comments(file.read_text(encoding="utf-8"))
            assert anchor in headings(text), target


def test_every_page_is_in_the_navigation_once() -> None:
    class Loader(yaml.SafeLoader):
        """A YAML loader that ignores the tags of Python objects."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)

    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        assert isinstance(values, list) or not isinstance(values, str)
        return [page for value in values for page in pages(value)]  # type: ignore[attr-defined]

    listed = pages(site["nav"])
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def test_pages_fetch_nothing_from_elsewhere() -> None:
    for file in [*DOCS.rglob("*.md"), *DOCS.rglob("*.svg"), *DOCS.rglob("*.css")]:
        text = FENCED.sub("\n", file.read_text(encoding="utf-8"))
        assert not OUTSIDE.search(text), file
    assert "font: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_what_belongs_to_an_item_of_a_list_is_in_it_on_the_site_too(page: Path) -> None:
    """The site's Markdown needs four spaces before a paragraph or table inside a list item."""
    text = FENCED.sub("\n", page.read_text(encoding="utf-8"))
    assert not re.search(r"^\n {1,3}\S", text, re.MULTILINE)


def test_every_message_that_troubleshooting_quotes_is_one_of_the_code() -> None:
    known = [message.text for message in messages()]
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = QUOTED.findall(page)
    assert len(quoted) > 50
    for quote in quoted:
        parts = [re.escape(part.strip()) for part in quote.split("…") if part.strip()]
        assert any(re.search(".*".join(parts), text) for text in known), quote


def test_troubleshooting_has_every_family_of_messages() -> None:
    known = messages()
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert len(known) > 500
    for family in FAMILIES:
        assert of_family(family, known)
        assert page.count(f"<!-- messages: {family} -->") == 1
    assert len(re.findall(r"<!-- messages: ", page)) == len(FAMILIES)


def test_a_message_is_read_where_it_is_made() -> None:
    texts = {(message.file, message.text) for message in messages()}
    assert ("shared/settings/config.py", "steps × queries must be at most 1,048,576") in texts
    assert ("shared/results/result.py", "…: does not exist; give the folder of a run") in texts


ELSEWHERE = {
    "client/protocol/private_report.py": "the error that it hides from the server",
    "shared/errors.py": "the text of the error that a disk caused",
    "shared/settings/config.py": "refusals of features, and mistakes of [privacy]",
    "shared/settings/features.py": "its table of exclusions",
    "shared/tasks/data.py": "the problems of the files, shortened",
    "shared/tasks/rows.py": "describe_missing_fields",
    "server/transport/blob_sender.py": "the sentences of refusals",
    "devices/jetson/resolution.py": "uv's own text",
    "devices/live/processes.py": "what its callers say of others that hold a lock",
    "simulations/project/records.py": "the report of a file's rows",
}
"""Files that raise an error whose text is made in other files, with these files."""


def test_every_error_has_words_that_are_read_or_passes_others_on() -> None:
    classes = error_classes(modules().values()) | {"ValueError"}
    wordless = {
        (message.file, message.line)
        for message in made()
        if message.error in classes and not re.search(r"\w{2,}", message.text)
    }
    unread = set()
    for module in modules().values():
        caught = {n.name for n in module.nodes if isinstance(n, ast.ExceptHandler) and n.name}
        for node in module.nodes:
            makes = isinstance(node, ast.Call) and getattr(node.func, "id", "") in classes
            if makes and (module.file, node.lineno) in wordless:
                names = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node)}
                told = any(COLLECTED.fullmatch(n) or TELLING.fullmatch(n) for n in names)
                if not told and not names & caught:
                    unread.add(module.file)
    assert unread == set(ELSEWHERE)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("shared/tasks/row_files.py", "is not UTF-8; save the file in UTF-8"),
        ("shared/settings/setting.py", "…: there is no such setting; did you mean …?"),
        ("shared/settings/privacy.py", "privacy.mode: … needs privacy.epsilon or …"),
        ("client/limits/privacy_budget.py", "data.epsilon-limit = …"),
        ("devices/live/join.py", "the invitation has ended; ask for another invitation"),
        ("devices/jetson/wheelhouse.py", "--from …: this folder is not a checkout of …"),
        (
            "shared/network/rejection.py",
            "this machine's clock is wrong; synchronize it with a time server",
        ),
        (
            "devices/live/owner/http_requests.py",
            "…: these models do not offer this parameter; leave it out",
        ),
        ("client/protocol/client.py", "client … refuses: …"),
    ],
)
def test_a_message_of_this_place_is_on_the_page(file: str, text: str) -> None:
    parts = ".*".join(re.escape(part) for part in text.split("…"))
    assert any(one.file == file and re.search(parts, one.text) for one in messages())


def test_pages_that_the_code_names_exist() -> None:
    named = re.compile(r"\bdocs/[\w/.-]+\.(?:md|svg|png)")
    folders = ("samara", "server", "client", "shared", "simulations", "devices", "benchmarks")
    found = [file for name in folders for file in (ROOT / name).rglob("*.*")]
    files = [file for file in found if "node_modules" not in file.parts]
    missing = {
        f"{file.relative_to(ROOT)}: {page}"
        for file in [*files, ROOT / "Makefile", *ROOT.glob("*.md")]
        if file.suffix in (".py", ".toml", ".sh", ".service", ".proto", ".md", ".ts", "")
        if file.name != "CHANGELOG.md"
        for page in named.findall(file.read_text(encoding="utf-8"))
        if not (ROOT / page).is_file()
    }
    assert not missing
