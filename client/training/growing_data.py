"""The examples of a live client; their number may grow while the client runs.

The examples come from ``data.path``, which is read once or watched, and from the client's owner
(learned examples). They are ordered by arrival. Deletions and additions do not change the order of
the remaining examples.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from samara.client.training.own_examples import OwnExample, OwnExamples
from samara.shared.errors import ConfigError, DataError
from samara.shared.settings.data import DataSettings
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.embedded import check_data_is_given, embedded_examples
from samara.shared.tasks.growing import (
    Identity,
    identity_of,
    newest,
    read_growing,
    with_stable_split,
)
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.rows import Example, Row

log = logging.getLogger("samara.client")

SECONDS_PER_DAY = 86_400
_LOGGED_PROBLEMS = 5

Source = Literal["given", "watched", "learned"]
"""The origin of an example: data that are read once, watched data, or the client's owner."""
_Files = tuple[tuple[str, int, int, int], ...]
"""The files of a source. Each has a path, inode, size, and modification time in nanoseconds."""


class _Added(NamedTuple):
    """An added example with its row and source; a learned example also has its line."""

    row: Row
    source: Source
    line: OwnExample | None = None


@dataclass(frozen=True)
class DataFacts:
    """Facts about a client's data for its owner: numbers of examples, and unusable data.

    Attributes:
        counts: number of examples by source and split.
        newest: time of the newest added example, seconds since 1970; 0 without added examples.
        problems: unusable data and the reasons, each with file and line.
    """

    counts: dict[tuple[Source, str], int]
    newest: float
    problems: tuple[str, ...]


class GrowingData:
    """The examples of one live client, for use by one thread.

    Args:
        task: task of the examples.
        settings: the device's data settings.
        folder: folder of the client, which contains the learned examples.
        clock: function that returns the seconds since 1970.
        may_delete: whether expired examples are deleted from the file of learned examples.

    Attributes:
        examples: the examples at the last reading.
        facts: numbers of the examples, and problems with unusable data.

    Raises:
        DataError: if the data cannot be read.
        TrainerError: if the file of learned examples cannot be read or written.
        ConfigError: if settings contradict each other.
    """

    def __init__(
        self,
        task: Task,
        settings: DataSettings,
        folder: Path,
        clock: Callable[[], float] = time.time,
        may_delete: bool = True,
    ) -> None:
        if settings.watch and settings.limit:
            raise ConfigError(
                f"data.limit = {settings.limit}: the limited choice of examples would change with "
                "every new example; with data.watch, set data.keep instead"
            )
        self._task, self._settings = task, settings
        self._clock, self._may_delete = clock, may_delete
        self._own = OwnExamples(folder, clock)
        self._given = [] if settings.watch else load_given(task, settings)
        self._watched: list[_Added] = []
        self._learned: list[_Added] = []
        self._watched_files: _Files | None = None
        self._learned_files: _Files | None = None
        self._problems: dict[Source, list[str]] = {}
        self.examples: list[Example] = []
        self.facts = DataFacts({}, 0.0, ())
        if settings.watch:
            self._read_watched()
        self.refresh()

    def refresh(self) -> bool:
        """Read changes from the disk, and return whether the examples have changed.

        If watched data cannot be read, the data of the last reading stay in use. Examples that the
        retention settings no longer allow are left out, and are deleted from the file of learned
        examples.

        Raises:
            TrainerError: if the file of learned examples cannot be read or written.
        """
        changes = [self._read_again(), self._read_learned(), not self.facts.counts]
        if not any(changes) and not self._settings.keep_days:
            return False
        before = self.examples
        added = self._retained([*self._watched, *self._learned])
        self.examples, sources = _merge(before, self._given, added, self._task)
        problems = tuple(problem for some in self._problems.values() for problem in some)
        self._log_new(problems)
        counts = Counter(
            (source, example.split) for source, example in zip(sources, self.examples, strict=True)
        )
        latest = max((one.row.time for one in added), default=0.0)
        self.facts = DataFacts(dict(counts), latest, problems)
        return self.examples != before

    def divide_as(self, settings: DataSettings) -> bool:
        """Divide the examples into splits by other settings; return whether any has changed.

        Args:
            settings: the device's data settings, with the split and the seed of a run.

        Raises:
            DataError: if the data cannot be read again; the examples are then unchanged.
            TrainerError: as in `refresh`.
        """
        before = self._settings
        if (settings.split, settings.seed) == (before.split, before.seed):
            return False
        self._settings = settings
        try:
            if settings.watch:
                self._watched_files = None
                self._read_watched()
            else:
                self._given = load_given(self._task, settings)
        except DataError:
            self._settings = before
            raise
        self._learned_files = None
        return self.refresh()

    def _read_again(self) -> bool:
        """Read the watched data again, and return whether the data or the problems have changed."""
        if not self._settings.watch:
            return False
        try:
            return self._read_watched()
        except DataError as error:
            problem = f"{error}; the examples read earlier stay in use"
            if problem in self._problems["watched"]:
                return False
            self._problems["watched"], self._watched_files = [problem], None
            return True

    def _read_watched(self) -> bool:
        """Read the watched data if a file has changed, and return whether a file has changed.

        Raises:
            DataError: if the data cannot be read.
        """
        path = self._settings.path
        files = _files(Path(path))
        if files == self._watched_files:
            return False
        rows, problems = read_growing(path, self._task, self._settings.seed, self._settings.split)
        self._watched = [_Added(row, "watched") for row in rows]
        self._problems["watched"], self._watched_files = problems, files
        return True

    def _read_learned(self) -> bool:
        """Read the learned examples if their file has changed, and return whether it has."""
        files = _files(self._own.file)
        if files == self._learned_files:
            return False
        lines, problems = self._own.read()
        self._learned = []
        for line in lines:
            try:
                rows = line.rows(self._task)
            except DataError as error:
                problems.append(f"{self._own.file}: example {line.id}: {error}")
                continue
            seed, rule = self._settings.seed, self._settings.split
            stable = [with_stable_split(row, seed, rule) for row in rows]
            self._learned += [_Added(row, "learned", line) for row in stable]
        self._problems["learned"], self._learned_files = problems, files
        return True

    def _retained(self, added: Sequence[_Added]) -> list[_Added]:
        """Return the added examples that the retention settings allow.

        The other learned examples are deleted from their file if `may_delete` is true.
        """
        keep, days = self._settings.keep, self._settings.keep_days
        since = self._clock() - days * SECONDS_PER_DAY if days else 0.0
        kept = [added[index] for index in newest([one.row.time for one in added], keep, since)]
        lines = {id(one.line) for one in kept}
        expired = [one.line for one in added if one.line and id(one.line) not in lines]
        if expired and self._may_delete:
            self._own.expire(expired)
            log.info("%d learned examples have expired and were deleted", len(expired))
        return kept

    def _log_new(self, problems: Sequence[str]) -> None:
        new = [problem for problem in problems if problem not in self.facts.problems]
        for problem in new[:_LOGGED_PROBLEMS]:
            log.warning("data not used: %s", problem)
        if len(new) > _LOGGED_PROBLEMS:
            log.warning(
                "%d more problems with the data; see samara client status",
                len(new) - _LOGGED_PROBLEMS,
            )


def load_given(task: Task, settings: DataSettings) -> list[Example]:
    """Load the examples of data that are read only once.

    Raises:
        DataError: if the data are missing or cannot be read.
    """
    check_data_is_given(task, settings.path)
    if settings.path == EMBEDDED_DATA:
        return embedded_examples(task, 1, settings.seed)
    return load_examples(settings.path, task, settings.seed, settings.limit, settings.split)


def _merge(
    before: Iterable[Example], given: Sequence[Example], added: Sequence[_Added], task: Task
) -> tuple[list[Example], list[Source]]:
    """Return all examples with their sources: data read once, then added examples by arrival.

    A text counts once, in the split of its first source, with its newest label.

    Args:
        before: examples before the change; they keep their order.
        given: data that are read once; repeated texts in these data are kept.
        added: added examples.
        task: task of the examples.
    """
    split_of: dict[Identity, tuple[str, Source]] = {}
    labelled: dict[Identity, Row] = {}
    for row, source, _ in added:
        identity = identity_of(row.example, task)
        split_of.setdefault(identity, (row.example.split, source))
        if identity not in labelled or row.time >= labelled[identity].time:
            labelled[identity] = row
    examples: list[Example] = []
    for example in given:
        newer = labelled.get(identity := identity_of(example, task))
        examples.append(replace(newer.example, split=example.split) if newer else example)
        split_of.pop(identity, None)
    place = {identity_of(example, task): index for index, example in enumerate(before)}
    sources: list[Source] = ["given"] * len(examples)
    for identity in sorted(split_of, key=lambda one: place.get(one, len(place))):
        split, source = split_of[identity]
        examples.append(replace(labelled[identity].example, split=split))
        sources.append(source)
    return examples, sources


def _files(path: Path) -> _Files:
    """Return the files of a source: a single file, or all files in a folder and its subfolders."""
    found = []
    try:
        paths = [path, *path.glob("*"), *path.glob("*/*")] if path.is_dir() else [path]
        for one in paths:
            stat = one.stat()
            found.append((str(one), stat.st_ino, stat.st_size, stat.st_mtime_ns))
    except OSError:  # a missing file: reading the data reports it
        return ()
    return tuple(sorted(found))
