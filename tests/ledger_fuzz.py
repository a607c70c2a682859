"""Damages ledgers in many ways, and counts the outcomes.

A ledger of up to twelve rounds is written, with or without snapshots and compaction. It is then
damaged: bytes are cut, flipped or overwritten; files or records are swapped, doubled or removed.
Opening must either give the true state after the round that it reports, or refuse the ledger with a
message and leave its files unchanged. From an opened ledger, every client must catch up to the same
state, and the run must continue. The strict proof must accept only true states, too.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.protocol.session import Session
from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import LOCK_FILE
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest, quantize, zero_state
from samara.shared.protocol.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

ROUNDS = 12
Files = dict[str, bytes]
LAYOUT = Layout((Tensor("b", 24, 1, ADAPTER_GROUP),), 1, 1.0, 0, "rademacher")
HEADER = LedgerHeader(0, b"fuzzing!", LAYOUT.hash)


def delta_of(number: int, seed: int) -> RoundDelta:
    """A round of two clients with 2 steps of 2 queries each."""
    rng = np.random.default_rng([seed, number])
    groups = tuple(
        Group(number, DerivedSeeds(seed + number, client, 2, 2), one_pass)
        for client in (1, 2)
        for one_pass in quantize(rng.normal(size=4))
    )
    contributors = (Contributor(0, 10, 2), Contributor(1, 10, 2))
    return RoundDelta(number, 0, bytes(8), contributors, groups)


def cut(files: Files, rng: np.random.Generator) -> str:
    name = pick(files, rng)
    files[name] = files[name][: rng.integers(len(files[name]) + 1)]
    return "truncated file"


def torn(files: Files, rng: np.random.Generator) -> str:
    """Cut the last record, like a crash."""
    name = max(files, key=lambda name: (name.endswith(".seg"), name))
    begin = max(0, files[name].rfind(b"SMLR"))
    files[name] = files[name][: rng.integers(begin, len(files[name]) + 1)]
    return "torn record"


def extended(files: Files, rng: np.random.Generator) -> str:
    name, size = pick(files, rng), int(rng.integers(1, 300))
    files[name] += bytes(size) if rng.random() < 0.5 else rng.bytes(size)
    return "extended"


def bit_flipped(files: Files, rng: np.random.Generator) -> str:
    name = pick(files, rng)
    data = bytearray(files[name])
    for _ in range(rng.integers(1, 4)):
        if data:
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    files[name] = bytes(data)
    return "bit-flipped"


def overwritten(files: Files, rng: np.random.Generator) -> str:
    """Overwrite a sector with zeros or noise, like a failing disk."""
    name = pick(files, rng)
    start = int(rng.integers(len(files[name]) + 1))
    size = int(rng.integers(1, 200))
    sector = bytes(size) if rng.random() < 0.5 else rng.bytes(size)
    files[name] = files[name][:start] + sector + files[name][start + size :]
    return "overwritten"


def reordered(files: Files, rng: np.random.Generator) -> str:
    one, other = pick(files, rng), pick(files, rng)
    files[one], files[other] = files[other], files[one]
    return "reordered files"


def records_reordered(files: Files, rng: np.random.Generator) -> str:
    """Exchange two stretches of a segment."""
    name = pick(files, rng, ".seg")
    head, body = files[name][:124], files[name][124:]
    at = sorted(rng.integers(len(body) + 1, size=3).tolist())
    files[name] = head + body[: at[0]] + body[at[1] : at[2]] + body[at[0] : at[1]] + body[at[2] :]
    return "reordered records"


def records_duplicated(files: Files, rng: np.random.Generator) -> str:
    """Repeat whole records, or any other stretch of a segment."""
    name = pick(files, rng, ".seg")
    head, body = files[name][:124], files[name][124:]
    start = body.rfind(b"SMLR") if rng.random() < 0.5 else int(rng.integers(len(body) + 1))
    files[name] = head + body + body[max(0, start) :]
    return "duplicated records"


def duplicated(files: Files, rng: np.random.Generator) -> str:
    """Copy a file under another number."""
    name = pick(files, rng)
    files[f"{rng.integers(1, ROUNDS + 3):010}{name[10:]}"] = files[name]
    return "duplicated files"


def missing(suffix: str) -> Callable[[Files, np.random.Generator], str]:
    def remove(files: Files, rng: np.random.Generator) -> str:
        name = pick(files, rng, suffix)
        if len(files) > 1 and name:
            del files[name]
        return f"missing {suffix}"

    return remove


def leftover(files: Files, rng: np.random.Generator) -> str:
    """Add an unfinished file, which a crash left before the rename."""
    name = pick(files, rng)
    files[f"{name}.new"] = files[name][: rng.integers(len(files[name]) + 1)]
    return "unfinished file"


DAMAGES = (
    *(cut, torn, extended, bit_flipped, overwritten, reordered, records_reordered),
    *(records_duplicated, duplicated, missing(".seg"), missing(".snap"), leftover),
)


def pick(files: Files, rng: np.random.Generator, suffix: str = "") -> str:
    """Return the name of a file, of the given kind if there is one."""
    names = [name for name in sorted(files) if name.endswith(suffix)] or sorted(files)
    return names[rng.integers(len(names))]


class WrongError(AssertionError):
    """An outcome that must never happen."""


class Truth:
    """The undamaged run: its rounds, and the states after them."""

    def __init__(self, seed: int) -> None:
        self.deltas = [delta_of(number, seed) for number in range(1, ROUNDS + 2)]
        self.states, self.positions = [zero_state(LAYOUT.size)], [HEADER.start]
        with tempfile.TemporaryDirectory() as name, opened(Path(name), 0) as ledger:
            for delta in self.deltas:
                ledger.append(delta)
                self.states.append(ledger.state)
                self.positions.append(ledger.position)

    def check(self, number: int, state: NDArray[np.int64], what: str) -> None:
        """Raise an error if a state is not the run's state after a round."""
        if not np.array_equal(state, self.states[number]):
            raise WrongError(f"{what}: the state after round {number} is not what it was")


def opened(folder: Path, every: int) -> closing[Ledger]:
    return closing(Ledger(folder, HEADER, LAYOUT, every))


def files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK_FILE}


def made_by_opening(folder: Path, every: int, rounds: int, truth: Truth) -> str:
    """Open a damaged ledger of a number of rounds, and continue it; return the outcome."""
    before = files_of(folder)
    try:
        with opened(folder, every) as ledger:
            end, said = ledger.position.round, ledger.recovered
            truth.check(end, ledger.state, "opened")
            if ledger.position != truth.positions[end]:
                raise WrongError(f"opened at round {end} with another record hash")
            for since in range(end + 1):
                begun = truth.states[since]
                session = Session(truth.positions[since], begun, digest(LAYOUT.hash, begun))
                goal = end, digest(LAYOUT.hash, truth.states[end])
                session = session.catch_up(ledger.catch_up(since), HEADER, LAYOUT, *goal)
                truth.check(end, session.state, f"caught up from round {since}")
            ledger.append(truth.deltas[end])
    except LedgerError as error:
        if not str(error):
            raise WrongError("refused without a message") from error
        kept = {name: data for name, data in before.items() if not name.endswith(".new")}
        if files_of(folder) != kept:
            raise WrongError(f"refused, and the files were changed: {error}") from error
        return "refused"
    with opened(folder, every) as ledger:
        truth.check(end + 1, ledger.state, "opened again")
    if not said:
        proven_rounds(folder, truth)
    return "opened whole" if end == rounds else "opened prefix"


def proven_rounds(folder: Path, truth: Truth) -> int:
    last = 0
    for step in verify_ledger(folder, LAYOUT):
        truth.check(step.round, step.state, "proven")
        last = step.round
    return last


def made_by_proving(folder: Path, rounds: int, truth: Truth) -> str:
    try:
        return "proven whole" if proven_rounds(folder, truth) == rounds else "proven prefix"
    except LedgerError:
        return "damage found"


def fuzz(ledgers: int, seed: int) -> dict[str, Counter[str]]:
    """Damage a number of ledgers; return the number of each outcome, by kind of damage.

    Raises:
        WrongError: if a ledger led to a state that the run never had, or a refusal changed its
            files.
    """
    truths = [Truth(seed * 3 + run) for run in range(3)]
    outcomes: dict[str, Counter[str]] = {}
    for number in range(ledgers):
        rng = np.random.default_rng([seed, number])
        truth, every = truths[rng.integers(len(truths))], int(rng.integers(6))
        rounds = int(rng.integers(1, ROUNDS + 1))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "ledger"
            with opened(folder, every) as ledger:
                for delta in truth.deltas[:rounds]:
                    ledger.append(delta)
                if rng.random() < 0.5:
                    ledger.compact(int(rng.integers(rounds + 1)))
            files = files_of(folder)
            sound = dict(files)
            how_often = 1 if rng.random() < 0.75 else int(rng.integers(2, 4))
            kinds = [DAMAGES[rng.integers(len(DAMAGES))](files, rng) for _ in range(how_often)]
            for file in sound.keys() - files.keys():
                (folder / file).unlink()
            for file, data in files.items():
                (folder / file).write_bytes(data)
            kind = kinds[0] if how_often == 1 else "several"
            counter = outcomes.setdefault(kind if files != sound else "none after all", Counter())
            counter[made_by_proving(folder, rounds, truth)] += 1
            counter[made_by_opening(folder, every, rounds, truth)] += 1
    return outcomes
