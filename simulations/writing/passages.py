"""The file format of a run's passages, which continue the beginnings of clients' texts."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from samara.shared.errors import SamaraError
from samara.shared.storage.events import read_whole_events
from samara.shared.storage.files import write_durably

PASSAGES_FILE = "passages.jsonl"


@dataclass(frozen=True)
class Passage:
    """Texts that models write after the same beginning.

    Attributes:
        client: index of the client whose text begins the passage.
        split: ``test``, or ``train`` for a text that the client has trained on.
        prompt: beginning of the text: a prompt, or the first words of a plain text.
        accepted: accepted answers; for a plain text, its continuation.
        greedy: greedily decoded text by model.
        sampled: sampled text by model; empty for a training text.
    """

    client: int
    split: str
    prompt: str
    accepted: tuple[str, ...]
    greedy: dict[str, str]
    sampled: dict[str, str]

    @classmethod
    def parse(cls, event: dict[str, Any]) -> Self:
        """Parse a line of the file.

        Raises:
            ValueError, KeyError, TypeError: if the line is invalid.
        """
        greedy, sampled = (
            {str(name): str(text) for name, text in event[way].items()}
            for way in ("greedy", "sampled")
        )
        accepted = tuple(map(str, event["accepted"]))
        if not accepted:
            raise ValueError("the field accepted is empty")
        where = int(event["client"]), str(event["split"]), str(event["prompt"])
        return cls(*where, accepted, greedy, sampled)


def write_passages(folder: Path, passages: list[Passage]) -> None:
    """Write the passages of a run, one per line.

    Raises:
        SamaraError: if the file cannot be written.
    """
    lines = "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in passages)
    try:
        write_durably(folder / PASSAGES_FILE, lines.encode())
    except OSError as error:
        raise SamaraError(
            f"{folder / PASSAGES_FILE}: cannot be written: {error.strerror}"
        ) from error


def read_passages(folder: Path) -> list[Passage]:
    """Read the passages of a run; empty if the run has no such file.

    Raises:
        SamaraError: if the file is damaged.
    """
    file = folder / PASSAGES_FILE
    try:
        return [Passage.parse(event) for event in read_whole_events(file)]
    except OSError as error:
        raise SamaraError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SamaraError(
            f"{file}: damaged: {error!r}; delete the file and repeat the run's command, which "
            "writes a new file"
        ) from error
