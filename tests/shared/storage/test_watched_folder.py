"""A folder of keys is listed after a change, not for every key."""

import os
import time
from pathlib import Path

import pytest
from gateways import keys_in

from samara.devices.gateway.admitted_keys import SEARCH_SECONDS, AdmittedKeys
from samara.server.live.keys import ClientKeys
from samara.shared.storage.watched_folder import WatchedFolder


def settle(folder: Path) -> None:
    """Make a folder look as if it had not been changed for an hour."""
    long_ago = time.time() - 3600.0
    os.utime(folder, (long_ago, long_ago))


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were listed, in order."""
    folders, scandir = list[Path](), os.scandir

    def scan(folder: Path) -> object:
        folders.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    return folders


def test_a_file_is_read_when_it_is_new_or_has_changed(tmp_path: Path) -> None:
    read = list[str]()

    def content(file: Path) -> str:
        read.append(file.name)
        return file.read_text()

    watched = WatchedFolder(tmp_path, ".txt", content)
    assert watched.search() == {}
    for name in ("b.txt", "a.txt", "c.other"):
        (tmp_path / name).write_text(name)
    settle(tmp_path)
    assert list(watched.search().items()) == [("a.txt", "a.txt"), ("b.txt", "b.txt")]
    stamp = watched.modification_stamp()
    assert not watched.may_have_changed("a.txt")
    (tmp_path / "a.txt").write_text("longer")
    assert not watched.may_have_changed("b.txt")
    assert watched.may_have_changed("a.txt")
    assert watched.modification_stamp() != stamp
    assert watched.search()["a.txt"] == "longer"
    assert read == ["a.txt", "b.txt", "a.txt"]
    (tmp_path / "b.txt").unlink()
    assert watched.may_have_changed()
    assert watched.search() == {"a.txt": "longer"}
    assert WatchedFolder(tmp_path / "none", ".txt", content).search() == {}


def test_a_thousand_admissions_search_the_folder_once(tmp_path: Path, searched: list[Path]) -> None:
    first, second, stranger = keys_in(tmp_path)
    folder, now = tmp_path / "phones", 0.0
    folder.mkdir()
    for number, key in enumerate((first, second)):
        (folder / f"{number}.pem").write_bytes(key.public)
    settle(folder)
    admitted = AdmittedKeys(folder, lambda: now)
    for _ in range(500):
        assert admitted(first.public)
        assert admitted(second.public)
        assert not admitted(stranger.public)
    assert searched == [folder]
    (folder / "0.pem").write_bytes(stranger.public)  # in place, so that the folder is the same
    settle(folder)
    assert not admitted(first.public)
    now += SEARCH_SECONDS
    assert admitted(stranger.public)
    (folder / "1.pem").unlink()
    assert not admitted(second.public)


def test_a_thousand_checks_of_client_keys_search_the_folder_once(
    tmp_path: Path, searched: list[Path]
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    for name in ("kitchen", "garage"):
        keys.create(name)
    settle(tmp_path / "keys")
    public = [key.public_key.encode() for key in keys.read_all()]
    searched.clear()
    for _ in range(500):
        for each in public:
            assert keys.refusal(each) is None
    assert len(searched) == 0
    keys.revoke("kitchen")
    assert sum(keys.refusal(each) is not None for each in public) == 1
