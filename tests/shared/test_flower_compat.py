"""Flower's private parts are as tested, and are imported in only one module."""

import ast
import inspect
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import sql_mixin
from flwr.supercore.state.alembic.utils import run_migrations
from forked import copy_flowers_tables
from helpers import ROOT
from sqlalchemy import create_engine

from samara.shared import flower_compat
from samara.shared.flower_compat import PARTS, FlowerPart, set_message_id
from samara.simulations.engines.in_process import InProcessGrid

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
PUBLIC |= {"flwr.simulation"}


def flower_imports(file: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of every import from Flower in a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.split(".")[0] == "flwr")


@pytest.mark.parametrize("name", PARTS)
def test_flower_has_every_part_that_is_not_public(name: str) -> None:
    assert getattr(flower_compat, name) is not None


def test_a_missing_part_is_named_with_the_installed_and_the_tested_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flower_compat, "version", lambda name: "1.99.0")
    for module in ("flwr.supercore.run", "flwr.no_such_module"):
        monkeypatch.setitem(PARTS, "Gone", FlowerPart(module, "1.41.0"))
        with pytest.raises(ImportError, match=rf"^Flower 1\.99\.0 has no {module}\.Gone\. .*1\.41"):
            flower_compat.Gone  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Unheard'"):
        from samara.shared.flower_compat import Unheard  # type: ignore[attr-defined]  # noqa: F401


def test_what_is_used_of_the_parts_is_there() -> None:
    """Samara relies on these parameters and attributes besides the names."""
    assert "max_tries_per_object" in inspect.signature(flower_compat.pull_objects).parameters
    assert hasattr(flower_compat.HttpGrid, "_runtime_client")
    assert hasattr(flower_compat.HttpGrid, "get_nodes")
    InProcessGrid(ClientApp(), 1, {})  # a message can be made only where Flower knows its run
    message = Message(RecordDict(), 1, "train")
    set_message_id(message, "an id")
    assert message.metadata.message_id == "an id"


@pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # Flower's
def test_forked_superlinks_copy_the_tables_of_a_migrated_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines_of(name: str) -> list[str]:
        sql_mixin.run_migrations(engine := create_engine(f"sqlite:///{tmp_path / name}"))
        engine.dispose()
        with closing(sqlite3.connect(tmp_path / name)) as database:
            lines = "\n".join(database.iterdump()).split("\n")
            return sorted(line.strip("\t, ") for line in lines)  # Flower's order is a set's

    monkeypatch.setattr(sql_mixin, "run_migrations", run_migrations)
    expected = lines_of("migrated.db")
    copy_flowers_tables()
    assert lines_of("copied.db") == expected
    monkeypatch.setattr(sql_mixin, "run_migrations", run_migrations)
    assert lines_of("copied.db") == expected  # Flower finds nothing to migrate


def test_no_other_file_imports_parts_that_are_not_public() -> None:
    folders = ("server", "client", "devices", "shared", "simulations", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    others = {
        f"{file.relative_to(ROOT)}: {module}"
        for file in files
        if file != ROOT / "shared" / "flower_compat.py"
        for module, _ in flower_imports(file)
        if module not in PUBLIC
    }
    assert others == set()


def test_type_checkers_see_the_parts_that_are_imported() -> None:
    typed = set(flower_imports(ROOT / "shared" / "flower_compat.py"))
    assert typed - {("flwr.app", "Message")} == {(part.module, n) for n, part in PARTS.items()}


def test_no_server_part_is_imported_for_a_client_part() -> None:
    code = (
        "import sys; from samara.shared.flower_compat import ErrorCode; "
        "assert not [name for name in sys.modules if name.startswith('flwr.superlink')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
