"""Small layouts, instructions, reports and rounds for many tests."""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.records import (
    LedgerHeader,
    Link,
    Position,
    Record,
    Snapshot,
    encode_segment_header,
)
from samara.shared.protocol.replay import CoefficientBlock, digest, replay, zero_state
from samara.shared.protocol.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

ROOT = Path(__file__).parents[1]
RUN_ID = bytes(range(8))


def is_newest(built: Path, sources: Iterable[Path]) -> bool:
    """Return whether a file exists that is at least as new as its sources."""
    newest = max(source.stat().st_mtime for source in sources)
    return built.exists() and built.stat().st_mtime >= newest


def layout_of(size: int = 20, distribution: Distribution = "gaussian") -> Layout:
    tensors = (Tensor("first", 2, 1, ADAPTER_GROUP), Tensor("second", size - 2, 1, ADAPTER_GROUP))
    return Layout(tensors, 1, 4.0, 7, distribution)


def instruction_with(**changes: Any) -> TrainInstruction:
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "round": 1,
        "track": 0,
        "steps": 2,
        "queries": 4,
        "batch": 8,
        "seed_policy": SeedPolicy.INDEPENDENT,
        "root": 0x0123456789ABCDEF,
        "epsilon": 0.01,
        "learning_rate": 0.1,
        "clip": 0.0,
        "deadline": 0.0,
        "layout_hash": bytes(32),
        "start_digest": bytes(range(32)),
    }
    if changes.get("seed_policy") is SeedPolicy.POOL:
        fields |= {"pool_root": 0xFEDCBA9876543210, "pool_size": 6}
    return TrainInstruction(**(fields | changes))


def report_to(
    instruction: TrainInstruction,
    client: int = 0,
    examples: int = 10,
    steps: int | None = None,
    **changes: Any,
) -> Report:
    """A valid report with random projected gradients, which differ for every client."""
    shape = (instruction.steps if steps is None else steps, instruction.queries)
    gradients = np.random.default_rng(client).normal(size=shape).astype(np.float32)
    token = token_of(instruction.encode())
    fields: dict[str, Any] = {"mean_loss": 0.5, "gradients": gradients}
    if instruction.seed_policy is SeedPolicy.POOL:
        fields |= {"gradients": instruction.sums(gradients), "summed_steps": shape[0]}
    return Report(token, client, examples, **(fields | changes))


def delta_of(round_number: int) -> RoundDelta:
    """A round with one group of derived seeds and one of explicit seeds."""
    rng = np.random.default_rng(round_number)
    coefficients = rng.integers(-(2**31) + 1, 2**31, size=6).astype(np.int32)
    groups = (
        Group(
            round_number, DerivedSeeds(round_number, 1, 2, 2), CoefficientBlock(3, coefficients[:4])
        ),
        Group(
            round_number,
            rng.integers(2**64, size=2, dtype=np.uint64),
            CoefficientBlock(0, coefficients[4:]),
        ),
    )
    return RoundDelta(round_number, 0, bytes(8), (Contributor(0, 10, 2),), groups)


@dataclass(frozen=True)
class History:
    """Rounds of a run as a server has them.

    `records` are in the form that clients receive, without contributors.
    `links`, `digests`, `states` and `sizes` (bytes of the only segment, header included) have an
    entry for every round, and one before the first round; that link is None.
    """

    layout: Layout
    header: LedgerHeader
    deltas: tuple[RoundDelta, ...]
    links: tuple[Link | None, ...]
    digests: tuple[bytes, ...]
    states: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    records: tuple[bytes, ...]
    segment: bytes

    def tail(self, since: int, until: int | None = None) -> bytes:
        """The records after round `since` up to `until`, in the form that clients receive."""
        return b"".join(self.records[since:until])

    def kept(self, since: int, until: int | None = None) -> bytes:
        """The same records in the ledger's form, with their contributors."""
        return self.segment[self.sizes[since] : self.sizes[-1 if until is None else until]]

    def snapshot(self, number: int) -> bytes:
        """The content of the snapshot file after a round."""
        link = self.links[number]
        assert link is not None
        return b"".join(Snapshot(self.header, link, self.states[number]).parts())

    def files(self, rounds: int, every: int = 0) -> dict[str, bytes]:
        """The files of a ledger's folder after some rounds, with regular snapshots."""
        files: dict[str, bytes] = {}
        for number in range(rounds + 1):
            if number == 0 or (every and number % every == 0):
                if number:
                    files[f"{number:010}.snap"] = self.snapshot(number)
                following = f"{number + 1:010}.seg"
                begin = encode_segment_header(self.header, self.position(number))
            if number < rounds:
                files[following] = files.get(following, begin) + self.kept(number, number + 1)
        return files or {"0000000001.seg": begin}

    def position(self, number: int) -> Position:
        """The position after a round."""
        link = self.links[number]
        return link.position if link else self.header.start


def history_of(deltas: Sequence[RoundDelta], layout: Layout, run_id: bytes = RUN_ID) -> History:
    header = LedgerHeader(0, run_id, layout.hash)
    segment, position = encode_segment_header(header, header.start), header.start
    states, links, sizes = [zero_state(layout.size)], [None], [len(segment)]
    digests, records = [digest(layout.hash, states[0])], []
    for delta in deltas:
        states.append(replay(states[-1], delta.scalar_groups(), layout.distribution))
        digests.append(digest(layout.hash, states[-1]))
        record = Record.create(position, delta, digests[-1])
        segment, position = segment + record.encode(), record.position
        links.append(record.link)
        records.append(record.sent())
        sizes.append(len(segment))
    whole = (deltas, links, digests, states, sizes, records)
    return History(layout, header, *map(tuple, whole), segment)


@contextmanager
def no_sync(size: int) -> Iterator[None]:
    """Make fsync fail, as if the disk accepted data but could not store them."""

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on client")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        yield


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """Forbid files larger than a size."""
    usual, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, hard))


def files_of(folder: Path) -> dict[str, bytes]:
    """The files in a ledger's folder, except the lock."""
    files = sorted(path for path in folder.iterdir() if path.name != "lock")
    return {path.name: path.read_bytes() for path in files}


def tree_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by path with slashes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Make a ledger's folder that contains only these files."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def assert_same(one: Any, other: Any) -> None:
    """Check that two frames of one type have the same values, including arrays."""
    assert type(one) is type(other)
    np.testing.assert_equal(asdict(one), asdict(other))
