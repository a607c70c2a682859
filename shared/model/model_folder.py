"""Folders of base models: where they lie, and the hashes of what is in them."""

import hashlib
import json
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shared import DISTRIBUTION
from shared.errors import ModelError
from shared.sections import EMBEDDED_MODEL

_EMBEDDED_FOLDER = Path("shared", "model", "embedded")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_IDENTITY = ("config.json", *_WEIGHTS, "tokenizer*", "vocab*", "merges.txt", "*.model")


def find_model_folder(path: str) -> Path:
    """Return the folder of a base model.

    Args:
        path: as in `shared.model.loading.load_base_model`.

    Raises:
        ModelError: if the folder is missing or incomplete.
    """
    folder = _resolve(path)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder}: no config.json; model.path must be a Hugging Face model folder"
        )
    if not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        raise ModelError(f"{folder}: no weights (model.safetensors); download the whole model")
    return folder


def model_id(folder: Path) -> bytes:
    """Return the hash of a model folder's config, weight and tokenizer files, 32 bytes."""
    whole = hashlib.sha256()
    files = {file for pattern in _IDENTITY for file in folder.glob(pattern) if file.is_file()}
    for file in sorted(files):
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        whole.update(file.name.encode() + b"\0" + content)
    return whole.digest()


def model_id_of(path: str) -> bytes:
    """Return the model id of a base model, which is not loaded.

    Args:
        path: as in `shared.model.loading.load_base_model`.

    Raises:
        ModelError: if the folder is missing or incomplete.
    """
    return model_id(find_model_folder(path))


def _resolve(path: str) -> Path:
    if not path:
        raise ModelError("model.path is empty; set it to a model folder or a name on the hub")
    if path == EMBEDDED_MODEL:
        return find_embedded_model()
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelError(f"{path}: is a file; give the model's folder in model.path")
    if folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ModelError(f"{path}: there is no such model folder; check model.path")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(
            f"{path}: neither a folder nor a model that the Hugging Face hub could deliver; "
            "check model.path, or download the model and give its folder"
        ) from error


def find_embedded_model() -> Path:
    """Return the folder of the embedded model in the installed distribution.

    The model is not looked up beside this file: in Flower's bundle a copy of this file shadows the
    installed package, and the bundle holds no weights.
    """
    for installed in distributions(name=DISTRIBUTION):
        roots = [Path(str(installed.locate_file("")))]
        if origin := installed.read_text("direct_url.json"):
            roots.append(Path(unquote(urlsplit(json.loads(origin)["url"]).path)))
        for root in roots:
            if (root / _EMBEDDED_FOLDER / "model.safetensors").is_file():
                return root / _EMBEDDED_FOLDER
    raise ModelError(
        "the embedded model is not installed here; install Samara with pip, or set model.path"
    )
