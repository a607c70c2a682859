"""Files that a server sends a client: their bytes on its disk are limited, by run and in total."""

import hashlib
from pathlib import Path

import pytest

from samara.client.protocol import blob_receiver
from samara.client.protocol.blob_receiver import receive_part
from samara.shared.errors import BlobError, FrameError
from samara.shared.protocol.frames.blob import BlobPart, BlobReceipt
from samara.shared.storage.blob_store import BlobStore

FILES = [bytes([number]) * 1000 for number in range(4)]
HASHES = [hashlib.sha256(file).digest() for file in FILES]


def sent(number: int, first: int = 0, end: int = 1000) -> bytes:
    """A part of one of the files, in the form that a server sends."""
    return BlobPart(HASHES[number], 1000, first, FILES[number][first:end]).encode()


def disk_bytes(store: BlobStore) -> int:
    return sum(file.stat().st_size for file in store.folder.iterdir())


def test_the_files_of_a_run_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declared size of a file counts before its first byte is written."""
    monkeypatch.setattr(blob_receiver, "MOST_RUN_BYTES", 2500)
    store = BlobStore(tmp_path / "store")
    for number in (0, 1):
        receive_part(sent(number), HASHES[:3], 7, store)
    with pytest.raises(BlobError, match="exceeds the limit of 2500 bytes"):
        receive_part(sent(2, 0, 100), HASHES[:3], 7, store)
    again = BlobReceipt.decode(receive_part(sent(1), HASHES[:3], 7, store))
    assert again.received == 1000
    assert disk_bytes(store) == 2000
    receive_part(sent(2, 0, 100), [HASHES[2]], 7, store)  # of another run
    with pytest.raises(FrameError, match="is not named by the run's settings"):
        receive_part(sent(3), HASHES[:3], 7, store)


def test_the_files_of_all_runs_are_bounded(tmp_path: Path) -> None:
    """The least recently used files, complete or not, are deleted to make room."""
    store = BlobStore(tmp_path / "store", max_bytes=2500)
    for number in (0, 1, 2, 3, 0, 1):
        for first, end in ((0, 400), (400, 900)):
            receive_part(sent(number, first, end), [HASHES[number]], 7, store)
            assert disk_bytes(store) <= 2500
        if number % 2:
            receive_part(sent(number, 900), [HASHES[number]], 7, store)
            assert disk_bytes(store) <= 2500
