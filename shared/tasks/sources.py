"""Sources of rows: which files of a folder hold which split, and data sets of the hub."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samara.shared.errors import DataError
from samara.shared.tasks.row_files import SUFFIXES

SPLITS = ("train", "validation", "test")
_HUB_SECONDS = 5.0


@dataclass(frozen=True)
class DataFiles:
    """The files that hold the rows of a source.

    Attributes:
        form: ``file``; ``splits``, a file for each split; ``users``, a file for each user, named
            after the user; ``labels``, folders with a folder of texts for each label; or
            ``repository``, a data set as it lies on the hub, of Parquet files.
        splits: files or folders of each split, of which ``train`` is one; of a repository the
            whole folder.
    """

    form: Literal["file", "splits", "users", "labels", "repository"]
    splits: Mapping[str, tuple[Path, ...]]


def find_data_files(path: Path, growing: bool = False) -> DataFiles:
    """Find the files of a source on this machine.

    Args:
        path: a file or a folder, as for `samara.shared.tasks.data.load_examples`.
        growing: whether a folder may be empty.

    Raises:
        DataError: if a folder holds no rows, or files that contradict each other.
        OSError: if a folder cannot be read.
    """
    if path.is_file():
        return DataFiles("file", {"train": (path,)})
    files: dict[str, Path] = {}
    for entry in sorted(path.iterdir()):
        if entry.suffix.lower() in SUFFIXES and not entry.name.startswith("."):
            if entry.stem in files:
                raise DataError(
                    f"{entry}: {files[entry.stem].name} lies beside it; keep one of both"
                )
            files[entry.stem] = entry
    if not files:
        return _find_folders(path, growing)
    present = [split for split in SPLITS if split in files]
    if not present:
        return DataFiles("users", {"train": tuple(files.values())})
    if "train" not in present:
        others = ", ".join(file.name for stem, file in files.items() if stem not in SPLITS)
        raise DataError(
            f"{path}: has {files[present[0]].name} and no training file; add, or rename one to, "
            f"train{files[present[0]].suffix}" + (f" (it has {others})" if others else "")
        )
    return DataFiles("splits", {split: (files[split],) for split in present})


def _find_folders(path: Path, growing: bool) -> DataFiles:
    """Return the folders of a folder without files of rows.

    Raises:
        DataError: if it holds nothing that can be read.
    """
    folders = [entry for entry in path.iterdir() if entry.is_dir()]
    if not growing and any(path.rglob("*.parquet")):
        return DataFiles("repository", {"train": (path,)})
    splits = {split: (path / split,) for split in SPLITS if (path / split).is_dir()}
    if "train" in splits and any(entry.is_dir() for entry in (path / "train").iterdir()):
        return DataFiles("labels", splits)
    if growing or folders:
        return DataFiles("labels", {"train": (path,)})
    raise DataError(
        f"{path}: holds no file ending in {' or '.join(SUFFIXES)}, nor folders of texts, nor a "
        "data set of Parquet files"
    )


def is_hub_name(path: str) -> bool:
    """Return whether a path that does not exist may name a data set of the hub."""
    named = re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", path)
    return bool(named) and not path.endswith(SUFFIXES)


def no_such_source(path: str) -> DataError:
    """Return the error of a path that is no file or folder, nor may be the name of a data set."""
    return DataError(
        f"{path!r}: no such file or folder, nor the name of a Hugging Face data set, which is "
        "owner/name or owner/name:config; correct the path"
    )


def load_hub_splits(name: str) -> dict[str, tuple[str, Any]]:
    """Load a Hugging Face data set: by split, the name of its part there, and the part.

    Args:
        name: ``owner/name`` or ``owner/name:config``, or a folder with such a data set.

    Raises:
        DataError: if it cannot be loaded, or has no split ``train``.
    """
    # Imported here because it takes seconds.
    import datasets

    logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)

    repository, _, configuration = (name, "", "") if Path(name).is_dir() else name.partition(":")
    # Retries take half a minute; what was downloaded before is found without a connection.
    datasets.config.HF_HUB_OFFLINE = (
        datasets.config.HF_HUB_OFFLINE or Path(name).is_dir() or not _hub_answers()
    )
    try:
        with _without_bars(datasets) if Path(name).is_dir() else nullcontext():
            data_set = datasets.load_dataset(repository, configuration or None)
    # Anything may come out of the network, the cache and the data set's own files.
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(
            f"{name!r}: {'' if Path(name).is_dir() else 'no file or folder of this name, and it '}"
            f"cannot be loaded as a Hugging Face data set ({reason}); check the name and the "
            "connection, or where there is none save the rows as train.jsonl in a folder and give "
            "its path"
        ) from error
    if "train" not in data_set:
        raise DataError(
            f"{name!r}: the data set has no split 'train', only {', '.join(data_set)}; "
            "save its rows as train.jsonl in a folder and give its path"
        )
    splits = {}
    for split in SPLITS:
        # MNLI has two validation splits; the one of the same genres as its training rows counts.
        key = next((k for k in (split, f"{split}_matched") if k in data_set), None)
        if key:
            splits[split] = (key, data_set[key])
    return splits


@contextmanager
def _without_bars(datasets: Any) -> Iterator[None]:
    """Have the library draw no progress bars for a while; it draws some for every folder."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _hub_answers() -> bool:
    """Return whether the Hugging Face hub can be reached, through a proxy if there is one."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from huggingface_hub import constants

    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_HUB_SECONDS):
            return True
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False
