"""The modules after a sentence encoder's network, as listed by sentence-transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from samara.shared.errors import ModelError
from samara.shared.model.damaged_files import read_json

MODULE_LIST = "modules.json"
MODULE_SETTINGS = "config.json"
NETWORK_SETTINGS = "sentence_bert_config.json"
MODULE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Pooling modes by their keys in older settings files; results are concatenated in this order."""


class Module(NamedTuple):
    """A module of a sentence encoder.

    Attributes:
        kind: class name, with its package if this is not sentence-transformers.
        folder: folder of the module's files.
    """

    kind: str
    folder: Path


def module_files(folder: Path) -> Iterator[Path]:
    """Yield all files that a sentence encoder's modules should have, even if they are missing.

    Raises:
        ModelError: if the list of modules is damaged.
    """
    for kind, place in list_modules(folder)[1:]:
        if kind in ("Pooling", "Dense"):
            yield place / MODULE_SETTINGS
        if kind == "Dense":
            yield dense_weights(place)


def dense_weights(folder: Path) -> Path:
    """Return a module's weight file, preferring safetensors over the older format."""
    new, older = (folder / name for name in MODULE_WEIGHTS)
    return older if older.is_file() and not new.is_file() else new


def hashed_module_files(folder: Path) -> list[Path]:
    """Return the module files that a model id covers; none for plain mean or cls pooling.

    Raises:
        ModelError: if the list of modules is damaged.
    """
    modules = list_modules(folder)
    kinds = {kind for kind, _ in modules[1:]}
    if kinds <= {"Pooling", "Normalize", "Dropout"}:
        modes = {read_modes(place) for kind, place in modules if kind == "Pooling"}
        if modes <= {("mean",), ("cls",)}:
            return []
    return [folder / MODULE_LIST, *(file for file in module_files(folder) if file.is_file())]


def module_folders(folder: Path) -> list[Path]:
    """Return the folders of the modules after a sentence encoder's network.

    Raises:
        ModelError: if the list of modules is damaged.
    """
    places = [place for _, place in list_modules(folder)[1:]]
    return [place for place in places if place.is_dir() and place != folder]


def list_modules(folder: Path) -> list[Module]:
    """Read the list of a sentence encoder's modules; empty if the folder has no such list.

    Raises:
        ModelError: if the list is damaged.
    """
    file = folder / MODULE_LIST
    if not file.is_file():
        return []
    try:
        return [
            Module(_kind(str(entry["type"])), folder / Path(str(entry["path"])).name)
            for entry in read_json(file)
        ]
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"{file}: this is not a list of modules with path and type; download the model again"
        ) from error


def _kind(class_name: str) -> str:
    """Return a class's name, without the package if it is a class of sentence-transformers."""
    package, _, name = class_name.rpartition(".")
    is_own = not package or package.partition(".")[0] == "sentence_transformers"
    return name if is_own else class_name


def read_settings(
    folder: Path, name: str = MODULE_SETTINGS, required: bool = False
) -> dict[str, Any]:
    """Read the settings of a module. A missing optional file means no settings.

    Args:
        folder: folder of the module.
        name: name of the file.
        required: whether a missing file is an error.

    Raises:
        ModelError: if the file is damaged, or missing and required.
    """
    file = folder / name
    if not file.is_file() and not required:
        return {}
    settings = read_json(file)
    if not isinstance(settings, dict):
        raise ModelError(
            f"{file}: this file contains no settings of a module; download the model again"
        )
    return settings


def read_modes(folder: Path) -> tuple[str, ...]:
    """Read the pooling modes from a module's settings in the new or old format.

    Raises:
        ModelError: if the settings are damaged, or name an unknown mode.
    """
    settings = read_settings(folder, required=True)
    given = settings.get("pooling_mode")
    if given is None:  # older settings have a key for each mode
        older = [
            key for key, is_on in settings.items() if key.startswith("pooling_mode_") and is_on
        ]
        in_order = sorted(older, key=lambda key: [*_KEYS, key].index(key))
        modes = tuple(_KEYS.get(key, key) for key in in_order) or ("mean",)
    else:
        modes = tuple(map(str, given)) if isinstance(given, list) else (str(given),)
    unknown = [mode for mode in modes if mode not in _KEYS.values()]
    if unknown or not modes:
        raise ModelError(
            f"{folder / MODULE_SETTINGS}: Samara does not support pooling by "
            f"{', '.join(unknown) or 'nothing'}; choose a sentence encoder with one or several of "
            f"{', '.join(_KEYS.values())}"
        )
    return modes
