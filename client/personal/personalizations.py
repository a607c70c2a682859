"""The records of a client's personalizations in a run, which never leave the owner's device.

A personalization is the private rounds, or the private fit, that a client takes from one state of
the federation. The state is kept until the personalization is finished, because new rounds of the
federation change the client's session meanwhile. Each finished personalization is a line in a
readable file.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import digest
from samara.shared.storage.kept_file import KeptFile, KeptLog

PERSONALIZATIONS_FILE = "personalizations.jsonl"
_BEGUN = "personalization"
_NEXT = "personalization.next"
_MOST_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Score:
    """The quality of a personal model on the owner's validation examples.

    Attributes:
        accuracy: share of correct answers.
        loss: mean cross-entropy.
        examples: number of examples.
    """

    accuracy: float
    loss: float
    examples: int


@dataclass(frozen=True, eq=False)
class StartState:
    """A state of the federation from which a client takes private rounds.

    Attributes:
        round: last round of the federation in the state.
        state: int64 [d].
        digest: digest of the state, 32 bytes.
        first: number in the personal ledger of the first private round that starts from this state;
            0 before that round.
        data: hash of the training examples when the private rounds began; empty before they begin.
        before: score of the personal model when the private rounds began; None without validation
            examples.
    """

    round: int
    state: NDArray[np.int64]
    digest: bytes
    first: int = 0
    data: str = ""
    before: Score | None = None

    def encode(self) -> bytes:
        """Return the content of a file: a line of JSON, followed by the state."""
        head = {
            "round": self.round,
            "digest": self.digest.hex(),
            "first": self.first,
            "data": self.data,
            "before": self.before and asdict(self.before),
        }
        return json.dumps(head).encode() + b"\n" + self.state.astype("<i8").tobytes()

    @classmethod
    def decode(cls, data: bytes, layout: Layout) -> Self:
        """Decode a file content that `encode` returned.

        Raises:
            LedgerError: if the content is damaged.
        """
        line, _, numbers = data.partition(b"\n")
        try:
            head = json.loads(line)
            start = cls(
                int(head["round"]),
                np.frombuffer(numbers, "<i8").astype(np.int64),
                bytes.fromhex(head["digest"]),
                int(head["first"]),
                str(head["data"]),
                _score(head["before"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"the stored state is damaged: {error!r}") from error
        if len(start.state) != layout.size or digest(layout.hash, start.state) != start.digest:
            raise LedgerError("the stored state is damaged: the digest of its numbers differs")
        return start


class LatestStart(NamedTuple):
    """Facts about a state from which private rounds were or will be taken, without the state.

    Attributes:
        round: last round of the federation in the state.
        digest: digest of the state, 32 bytes.
        data: hash of the training examples when the rounds began; empty before they begin.
    """

    round: int
    digest: bytes
    data: str


@dataclass(frozen=True)
class Personalization:
    """Finished private rounds of a client that started from one state of the federation.

    Attributes:
        global_round: last round of the federation in that state.
        global_digest: digest of that state in hex.
        first: number of the first record of these rounds in the personal ledger.
        last: number of the last record of these rounds in the personal ledger.
        digest: digest in hex of the private state after the rounds.
        data: hash of the training examples when the rounds began.
        before: score of the personal model in that state, before the rounds; None without
            examples.
        after: score of the personal model after the rounds; None without examples.
    """

    global_round: int
    global_digest: str
    first: int
    last: int
    digest: str
    data: str
    before: Score | None
    after: Score | None

    @classmethod
    def parse(cls, event: dict[str, Any]) -> Self:
        """Parse a line of the file.

        Raises:
            ValueError, KeyError, TypeError: if the line is invalid.
        """
        return cls(
            int(event["global_round"]),
            str(event["global_digest"]),
            int(event["first"]),
            int(event["last"]),
            str(event["digest"]),
            str(event["data"]),
            _score(event["before"]),
            _score(event["after"]),
        )


class _StartFile(KeptFile[StartState | None]):
    """The file with a state from which private rounds are to be taken."""

    damaged = "{file}: {problem}; the private rounds from this state are left out"
    is_needed = False
    error = LedgerError

    def __init__(self, folder: Path, name: str, layout: Layout) -> None:
        self.path = folder / name
        self._layout = layout

    def _encode(self, content: StartState | None) -> bytes:
        return content.encode() if content else b""

    def _decode(self, data: bytes) -> StartState:
        return StartState.decode(data, self._layout)


class _FinishedLog(KeptLog):
    """The log of a client's finished personalizations in a run."""

    name = PERSONALIZATIONS_FILE
    error = LedgerError


class Personalizations:
    """Access to the files about one client's personalizations in a run.

    Args:
        folder: folder of the client's files in the run's folder.
        layout: layout of the adapter.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout

    @property
    def begun(self) -> StartState | None:
        """State whose private rounds have begun but are not finished, or None."""
        start = self._read(_BEGUN)
        last = self.finished
        if start and last and last.first >= start.first:
            self._delete(_BEGUN)  # a crash after the line was written
            return None
        following = start and self._read(_NEXT)
        if start and following and following.digest == start.digest:
            self._delete(_NEXT)  # a crash after its rounds began
        return start

    @property
    def next(self) -> StartState | None:
        """State from which the private rounds after the present ones will start, or None."""
        return self._read(_NEXT)

    @property
    def has_unfinished(self) -> bool:
        """True if private rounds from some state are not finished."""
        return has_unfinished(self._folder)

    @property
    def latest(self) -> LatestStart | None:
        """Latest state from which private rounds were or will be taken, or None."""
        for name in (_NEXT, _BEGUN):
            if head := _read_head(self._folder / name):
                return head
        if (last := self.finished) is None:
            return None
        return LatestStart(last.global_round, bytes.fromhex(last.global_digest), last.data)

    @property
    def finished(self) -> Personalization | None:
        """Latest finished personalization, or None."""
        every = read_personalizations(self._folder)
        return every[-1] if every else None

    def write_next(self, start: StartState) -> None:
        """Store the state from which the next private rounds start, in place of an earlier state.

        Raises:
            LedgerError: if the file cannot be written.
        """
        self._file(_NEXT).write(start)

    def begin(self, start: StartState) -> None:
        """Store the state whose private rounds have begun, and delete the next state.

        Raises:
            LedgerError: if the file cannot be written.
        """
        self._file(_BEGUN).write(start)
        self._delete(_NEXT)

    def drop_begun(self) -> None:
        """Delete the state whose private rounds have begun, but keep recorded rounds.

        Raises:
            LedgerError: if the state cannot be deleted.
        """
        self._delete(_BEGUN)

    def finish(self, start: StartState, last: int, end: bytes, after: Score | None) -> None:
        """Record that the private rounds from a state are finished.

        Args:
            start: the state.
            last: number of the last record.
            end: digest of the final private state, 32 bytes.
            after: final score of the personal model; None without validation examples.

        Raises:
            LedgerError: if the file cannot be written.
        """
        done = Personalization(
            start.round,
            start.digest.hex(),
            start.first,
            last,
            end.hex(),
            start.data,
            start.before,
            after,
        )
        _FinishedLog(self._folder).append(json.dumps(asdict(done), sort_keys=True).encode())
        self._delete(_BEGUN)

    def _read(self, name: str) -> StartState | None:
        if (start := self._file(name).read()) is None:
            self._delete(name)  # the file is damaged
        return start

    def _file(self, name: str) -> _StartFile:
        return _StartFile(self._folder, name, self._layout)

    def _delete(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(
                f"{self._folder / name}: cannot be deleted: {error.strerror}"
            ) from error


def has_unfinished(folder: Path) -> bool:
    """Return whether private rounds from some state are not finished.

    Args:
        folder: folder of the client's files in a run's folder.
    """
    return any((folder / name).exists() for name in (_BEGUN, _NEXT))


def read_personalizations(folder: Path) -> list[Personalization]:
    """Return the finished personalizations of a client, skipping unreadable lines.

    Args:
        folder: folder of the client's files in a run's folder.

    Raises:
        LedgerError: if the file cannot be read.
    """
    every = []
    for line in _FinishedLog(folder).read_lines():
        try:
            every.append(Personalization.parse(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue
    return every


def describe_personalizations(folder: Path) -> list[tuple[str, str, str, str, str, str]]:
    """Return a table about a client's private rounds, with one row per run that has any.

    Args:
        folder: folder of the client.

    Returns:
        For each run: its id in hex, the number of records, the federation's round from which the
        latest private rounds started, accuracy on the owner's validation examples before and after
        these rounds, and the round from which private rounds are running or waiting.
    """
    rows = []
    for own in sorted(folder.glob("runs/*/clients/*")):
        finished = read_personalizations(own)
        waiting = [head.round for name in (_BEGUN, _NEXT) if (head := _read_head(own / name))]
        if not finished and not waiting:
            continue
        done = "0"
        since = ""
        before = ""
        after = ""
        if finished:
            last = finished[-1]
            done = f"{last.last:,}"
            since = f"{last.global_round:,}"
            before = _shown(last.before)
            after = _shown(last.after)
        of_rounds = ", ".join(f"{number:,}" for number in waiting)
        rows.append((own.parent.parent.name, done, since, before, after, of_rounds))
    return rows


def _shown(score: Score | None) -> str:
    return f"{score.accuracy:.1%} of {score.examples:,}" if score else "no examples"


def _read_head(file: Path) -> LatestStart | None:
    """Return the facts in the first line of a start state's file, or None if it cannot be read."""
    try:
        with file.open("rb") as content:
            head = json.loads(content.readline(_MOST_HEAD_BYTES))
        return LatestStart(int(head["round"]), bytes.fromhex(head["digest"]), str(head["data"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _score(content: Any) -> Score | None:
    """Read a score from JSON.

    Raises:
        ValueError, KeyError, TypeError: if the score is invalid.
    """
    if content is None:
        return None
    return Score(float(content["accuracy"]), float(content["loss"]), int(content["examples"]))
