"""Blobs: a store that checks all bytes, and settings that name files by path or hash."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import BlobError, ConfigError, MissingBlobError
from samara.shared.settings.blobs import publish_blobs, published_blobs, with_local_blobs
from samara.shared.settings.setting import Section, Settings, describe, setting
from samara.shared.storage.blob_store import (
    MAX_BLOB_BYTES,
    BlobStore,
    blob_hash,
    parse_reference,
    resolve_blob,
    to_reference,
)

CONTENT = bytes(range(256)) * 5
BLOB = hashlib.sha256(CONTENT).digest()


class _Inner(Section):
    basis: str = setting("", "a file, or a word", blob=True, words=("random-tokens",))
    rank: int = setting(2, "a number")


class _Config(Settings):
    inner: _Inner = setting(_Inner(), "Inner")
    start: str = setting("", "a file", blob=True)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "store")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "basis.bin"
    path.write_bytes(CONTENT)
    return path


def test_the_default_folder_is_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert BlobStore().folder == tmp_path / "samara" / "blobs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert BlobStore().folder == tmp_path / ".cache" / "samara" / "blobs"


def test_an_added_file_is_found_by_its_hash(store: BlobStore, file: Path) -> None:
    assert store.find(BLOB) is None
    assert store.add(file) == store.add(file) == blob_hash(file) == BLOB
    found = store.find(BLOB)
    assert found is not None
    assert found.read_bytes() == CONTENT
    assert [path.name for path in store.folder.iterdir()] == [BLOB.hex()]


def test_a_damaged_blob_is_not_found_and_can_be_stored_again(store: BlobStore, file: Path) -> None:
    store.add(file)
    (store.folder / BLOB.hex()).write_bytes(CONTENT[:-1] + b"x")
    assert store.find(BLOB) is None
    store.add(file)
    assert store.find(BLOB) is not None


def test_what_is_no_blob_is_not_added(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "large").open("wb") as large:
        large.truncate(MAX_BLOB_BYTES + 1)
    for name, message in {
        "empty": "0 bytes",
        "large": str(MAX_BLOB_BYTES),
        "missing": "cannot be read",
        ".": "not a file",
    }.items():
        with pytest.raises(BlobError, match=message):
            store.add(tmp_path / name)
    assert not store.folder.exists()


@given(cuts=st.sets(st.integers(1, len(CONTENT) - 1)), restarts=st.booleans())
def test_parts_in_order_make_the_blob(
    tmp_path_factory: pytest.TempPathFactory, cuts: set[int], restarts: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = BlobStore(folder)
    ends = [*sorted(cuts), len(CONTENT)]
    for start, end in zip([0, *ends], ends, strict=False):
        if restarts:
            store = BlobStore(folder)
        assert store.find(BLOB) is None
        assert store.received_bytes(BLOB) == start
        assert store.receive(BLOB, len(CONTENT), start, CONTENT[start:end]) == end
    assert store.find(BLOB) is not None
    assert store.receive(BLOB, len(CONTENT), 0, CONTENT[:1]) == len(CONTENT)
    assert [path.name for path in folder.iterdir()] == [BLOB.hex()]


def test_a_part_that_does_not_follow_is_left_out(store: BlobStore) -> None:
    assert store.receive(BLOB, len(CONTENT), 100, CONTENT[100:]) == 0
    assert store.receive(BLOB, len(CONTENT), 0, CONTENT[:100]) == 100
    assert store.receive(BLOB, len(CONTENT), 0, CONTENT[:100]) == 100
    assert store.receive(BLOB, len(CONTENT), 200, CONTENT[200:300]) == 100


def test_content_with_another_hash_is_deleted(store: BlobStore) -> None:
    store.receive(BLOB, len(CONTENT), 0, CONTENT[:100])
    with pytest.raises(BlobError, match=BLOB.hex()[:12]):
        store.receive(BLOB, len(CONTENT), 100, bytes(len(CONTENT) - 100))
    assert not list(store.folder.iterdir())
    assert store.received_bytes(BLOB) == 0


def test_more_bytes_than_are_declared_now_begin_anew(store: BlobStore) -> None:
    store.receive(BLOB, len(CONTENT), 0, CONTENT[:100])
    assert store.receive(BLOB, 50, 10, b"x") == 0
    assert store.received_bytes(BLOB) == 0


@pytest.mark.parametrize(
    ("size", "offset", "content"),
    [
        (0, 0, b"x"),
        (10, 10, b"x"),
        (10, 5, bytes(6)),
        (10, 0, b""),
        (MAX_BLOB_BYTES + 1, 0, b"x"),
    ],
)
def test_a_part_out_of_range_is_refused(
    store: BlobStore, size: int, offset: int, content: bytes
) -> None:
    with pytest.raises(BlobError, match="refused"):
        store.receive(BLOB, size, offset, content)
    assert not store.folder.exists()


def test_the_least_recently_used_blobs_make_room(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store", max_bytes=250)
    blobs = []
    for index in range(2):
        (tmp_path / "file").write_bytes(bytes([index]) * 100)
        blobs.append(store.add(tmp_path / "file"))
        os.utime(store.folder / blobs[-1].hex(), (index, index))
    assert store.find(blobs[0]) is not None  # used now
    (tmp_path / "file").write_bytes(bytes([2]) * 100)
    blobs.append(store.add(tmp_path / "file"))
    assert [store.find(blob) is not None for blob in blobs] == [True, False, True]
    store.receive(BLOB, len(CONTENT), 0, CONTENT[:200])
    assert [store.find(blob) for blob in blobs] == [None] * 3
    assert store.received_bytes(BLOB) == 200


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path, file: Path) -> None:
    (tmp_path / "store").touch()
    store = BlobStore(tmp_path / "store")
    with pytest.raises(BlobError, match="cannot be written"):
        store.add(file)
    with pytest.raises(BlobError, match="cannot be written"):
        store.receive(BLOB, len(CONTENT), 0, CONTENT[:100])


def test_a_reference_is_read_back() -> None:
    assert parse_reference(to_reference(BLOB)) == BLOB
    assert parse_reference("some/path") is None
    for bad in ("sha256:", "sha256:12", "sha256:" + "G" * 64, "sha256:" + BLOB.hex().upper()):
        with pytest.raises(BlobError, match="64 lower-case"):
            parse_reference(bad)


def test_published_settings_name_hashes_and_local_ones_paths(store: BlobStore, file: Path) -> None:
    config = _Config.of({"inner.basis": str(file), "inner.rank": 3}, "test")
    published = publish_blobs(config, store)
    assert published.inner.basis == to_reference(BLOB)
    assert published.inner.rank == 3
    assert publish_blobs(published, store) == published
    assert published_blobs(published) == {"inner.basis": BLOB}
    local = with_local_blobs(published, store)
    assert Path(local.inner.basis).read_bytes() == CONTENT
    assert with_local_blobs(config, store) == config


def test_words_and_empty_values_stay(store: BlobStore) -> None:
    config = _Config.of({"inner.basis": "random-tokens"}, "test")
    assert publish_blobs(config, store) is config
    assert with_local_blobs(config, store) is config
    assert published_blobs(config) == {}


def test_a_value_that_cannot_be_resolved_names_its_setting(store: BlobStore, file: Path) -> None:
    config = _Config.of({"start": "nowhere"}, "test")
    with pytest.raises(ConfigError, match="start: nowhere: there is no such file"):
        publish_blobs(config, store)
    with pytest.raises(ConfigError, match=r"start: .*another machine.*samara server up"):
        published_blobs(_Config.of({"start": str(file)}, "test"))
    for function in (published_blobs, lambda config: publish_blobs(config, store)):
        with pytest.raises(ConfigError, match=r"start: .*hexadecimal"):
            function(_Config.of({"start": "sha256:12"}, "test"))


def test_a_missing_blob_says_what_has_arrived(store: BlobStore) -> None:
    store.receive(BLOB, len(CONTENT), 0, CONTENT[:100])
    with pytest.raises(MissingBlobError, match=f"start: blob {BLOB.hex()[:12]}") as missing:
        resolve_blob(to_reference(BLOB), store, "start")
    assert missing.value.numbers == (int.from_bytes(BLOB[:4]), 100)


def test_a_blob_is_known_by_content_and_not_part_of_the_run_id() -> None:
    described = describe(_Config)["inner.basis"]
    assert described.blob
    assert not described.identity
    assert described.makes_a_variant
