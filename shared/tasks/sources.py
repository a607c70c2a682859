"""Finding of a source's rows: the files of a folder by split, or a data set of the hub."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samara.shared.errors import DataError
from samara.shared.tasks.row_files import SUFFIXES, SUFFIXES_SHOWN, stem_of, suffix_of

SPLITS = ("train", "validation", "test")
_PARQUET = ".parquet"
_HUB_SECONDS = 5.0


@dataclass(frozen=True)
class DataFiles:
    """The files that hold the rows of a source.

    Attributes:
        form: ``file`` is a single file. ``splits`` has a file for each split. ``users`` has a file
            for each user, named after the user. ``people`` has a folder of files for each user,
            named after the user. ``labels`` has a folder of texts for each label. ``repository`` is
            a data set of Parquet files in the hub's structure.
        splits: files or folders of each split, including ``train``; for a repository, the whole
            folder.
    """

    form: Literal["file", "splits", "users", "people", "labels", "repository"]
    splits: Mapping[str, tuple[Path, ...]]

    def owner_of(self, file: Path) -> str:
        """Return the user after whom a file or its folder is named, or an empty text."""
        if self.form == "people":
            return file.parent.name
        return stem_of(file) if self.form == "users" else ""


def find_data_files(path: Path, growing: bool = False) -> DataFiles:
    """Find the files of a source on this machine.

    Args:
        path: a file or a folder, as for `samara.shared.tasks.data.load_examples`.
        growing: whether a folder may be empty.

    Raises:
        DataError: if a folder holds no rows, or files that fit none of the forms.
        OSError: if a folder cannot be read.
    """
    if path.is_file():
        is_parquet = path.suffix.lower() == _PARQUET
        return DataFiles("repository" if is_parquet else "file", {"train": (path,)})
    files = _row_files(path)
    if not files:
        return _find_folders(path, growing)
    present = [split for split in SPLITS if split in files]
    if not present:
        return DataFiles("users", {"train": tuple(files.values())})
    if "train" not in present:
        others = ", ".join(file.name for stem, file in files.items() if stem not in SPLITS)
        raise DataError(
            f"{path}: the folder has {files[present[0]].name}, but no training file; add "
            f"train{suffix_of(files[present[0]])}"
            + (f", or give this name to one of {others}" if others else "")
        )
    return DataFiles("splits", {split: (files[split],) for split in present})


def _row_files(folder: Path) -> dict[str, Path]:
    """Return the row files in a folder by name without suffix.

    Raises:
        DataError: if the names of two files differ only in their suffix.
    """
    files: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        if suffix_of(entry) and not entry.name.startswith("."):
            stem = stem_of(entry)
            if stem in files:
                raise DataError(
                    f"{entry}: the folder also contains {files[stem].name}; keep only one of the "
                    "two files"
                )
            files[stem] = entry
    return files


def _find_folders(path: Path, growing: bool) -> DataFiles:
    """Return the data files of a folder that has them in subfolders.

    Raises:
        DataError: if the folder holds no file that can be read.
    """
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    if not growing and any(path.rglob(f"*{_PARQUET}")):
        return DataFiles("repository", {"train": (path,)})
    if not growing and (people := _files_of_people(folders)):
        return DataFiles("people", people)
    splits = {split: (path / split,) for split in SPLITS if (path / split).is_dir()}
    if "train" in splits and any(entry.is_dir() for entry in (path / "train").iterdir()):
        return DataFiles("labels", splits)
    if folders and not growing and not any(any(folder.iterdir()) for folder in folders):
        names = ", ".join(folder.name for folder in folders)
        raise DataError(
            f"{path}: all folders in it are empty ({names}); put a person's rows, or a label's "
            "texts, into each"
        )
    if growing or folders:
        return DataFiles("labels", {"train": (path,)})
    raise DataError(
        f"{path}: the folder contains no file ending in {SUFFIXES_SHOWN}, no folders of texts and "
        "no data set of Parquet files; correct the path"
    )


def _files_of_people(folders: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    """Return the data files in per-person folders by split, or an empty dictionary.

    If all files are named after splits, each file belongs to its split. Otherwise all are training
    files.

    Raises:
        DataError: if a person has a validation or test file but no training file, or has no files
            although other persons have files.
    """
    named = [folder for folder in folders if not folder.name.startswith(".")]
    found = [_row_files(folder) for folder in named]
    if any(found) and (empty := [folder for folder in named if not any(folder.iterdir())]):
        raise DataError(
            f"{empty[0]}: this folder is empty, but each folder beside it contains a person's "
            "rows; add the person's rows, or remove the folder"
        )
    if not {stem for files in found for stem in files} <= set(SPLITS):
        return {"train": tuple(file for files in found for file in files.values())}
    for folder, files in zip(named, found, strict=True):
        if files and "train" not in files:
            raise DataError(
                f"{folder}: the folder has no training file; add train{SUFFIXES[0]}, or remove "
                f"{', '.join(file.name for file in files.values())}"
            )
    splits = {split: tuple(f[split] for f in found if split in f) for split in SPLITS}
    return {split: files for split, files in splits.items() if files}


def is_hub_name(path: str) -> bool:
    """Return whether a path that does not exist can be the name of a data set on the hub."""
    named = re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", path)
    return bool(named) and not path.endswith(SUFFIXES)


def no_such_source(path: str) -> DataError:
    """Return the error for a path that is not a file, a folder or a possible name of a data set."""
    return DataError(
        f"{path!r}: no such file or folder, and not the name of a Hugging Face data set "
        "(owner/name or owner/name:config); correct the path"
    )


def load_hub_splits(name: str) -> dict[str, tuple[str, Any]]:
    """Load the splits of a Hugging Face data set.

    Args:
        name: ``owner/name`` or ``owner/name:config``, a folder with such a data set, or a Parquet
            file.

    Returns:
        For each split, its name in the data set and its rows.

    Raises:
        DataError: if the data set cannot be loaded, or has no split ``train``.
    """
    # Imported here because the import takes seconds.
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{name!r}: Parquet files and data sets of the hub need the package datasets; run pip "
            "install 'samara-fl[hub]', or save the rows as JSON lines or CSV"
        ) from error

    logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)

    is_local = Path(name).exists()
    repository, _, configuration = (name, "", "") if is_local else name.partition(":")
    files = name if Path(name).is_file() else None
    # Offline, a data set comes from the cache at once, and not after half a minute of retries.
    datasets.config.HF_HUB_OFFLINE = (
        datasets.config.HF_HUB_OFFLINE or is_local or not _hub_answers()
    )
    try:
        with _without_bars(datasets) if is_local else nullcontext():
            data_set = datasets.load_dataset(
                "parquet" if files else repository, configuration or None, data_files=files
            )
    # Network, cache and the data set's files can cause any error.
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise DataError(
            f"{name!r}: {'' if is_local else 'no file or folder of this name, and it '}cannot be "
            f"loaded as a Hugging Face data set ({reason}); check the name and the connection, or "
            "save the rows as train.jsonl in a folder, and give the path of this folder"
        ) from error
    if "train" not in data_set:
        raise DataError(
            f"{name!r}: the data set has no split 'train', only {', '.join(data_set)}; "
            "save the rows as train.jsonl in a folder, and give the path of this folder"
        )
    splits = {}
    for split in SPLITS:
        # MNLI has two validation splits. The split with the training rows' genres is used.
        key = next((k for k in (split, f"{split}_matched") if k in data_set), None)
        if key:
            splits[split] = (key, data_set[key])
    return splits


@contextmanager
def _without_bars(datasets: Any) -> Iterator[None]:
    """Suppress the progress bars that the library draws for every folder."""
    if datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _hub_answers() -> bool:
    """Return whether the Hugging Face hub can be reached, directly or through a proxy."""
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
