"""Folders of base models: finding and checking a folder, and computing its model id."""

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from samara.shared.errors import ModelError
from samara.shared.model.damaged_files import check_content, damaged, read_json, stored_types
from samara.shared.model.depth import blocks_at, cut_id
from samara.shared.model.gguf_file import converted_model_id, find_converted_folder
from samara.shared.model.sentence_modules import hashed_module_files, module_files
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.storage.files import file_hash

_EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_CHECKPOINTS = (*_SAFETENSORS, *_PICKLES)
"""File names of a checkpoint, in the order in which transformers looks for them."""
_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model")
_JSON = (
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
_ADAPTER = "adapter_config.json"
_WEIGHT_TYPES = {"F64", "F32", "F16", "BF16"} | {
    f"torch.{name}" for name in ("float64", "float32", "float16", "bfloat16")
}
_QUANTIZATION_KEYS = ("quantization_config", "compression_config")
_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json")
_DOWNLOADED = (
    *_JSON,
    _ADAPTER,
    *_QUANTIZATION_FILES,
    *_TOKENIZER,
    "chat_template*",
    *_SAFETENSORS,
)


def find_model_folder(path: str) -> Path:
    """Find or download the folder of a base model, check its configuration, and return its path.

    Args:
        path: as in `samara.shared.model.loading.load_base_model`.

    Raises:
        ModelError: if the folder is missing or incomplete, or the model is already quantized, is an
            adapter, or needs custom code.
    """
    folder = _resolve(path)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder}: there is no config.json; set model.path to a Hugging Face model folder"
        )
    if find_checkpoint(folder) is None:
        raise ModelError(
            f"{folder}: there are no weights (model.safetensors, or its parts and their index); "
            "download the whole model"
        )
    check_config(folder)
    return folder


def find_checkpoint(folder: Path) -> Path | None:
    """Return the file that transformers reads first: the weights, or the index of their parts."""
    return next((folder / name for name in _CHECKPOINTS if (folder / name).is_file()), None)


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a checkpoint's tensors.

    Raises:
        ModelError: if there is no checkpoint, or its index is damaged.
    """
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        raise ModelError(f"{folder}: there are no weights; download the whole model")
    if checkpoint.suffix != ".json":
        return [checkpoint]
    return sorted({folder / part for part in read_index(checkpoint).values()})


def read_index(index: Path) -> dict[str, str]:
    """Read the file name of each tensor from the index of a sharded checkpoint.

    Raises:
        ModelError: if the index is missing or damaged.
    """
    content = read_json(index)
    try:
        return {str(name): Path(str(file)).name for name, file in content["weight_map"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(index, f"no {error}") from error


def check_files(folder: Path) -> None:
    """Check that a model's JSON files can be read, and its weights are whole and not quantized.

    Raises:
        ModelError: if a file is missing, damaged or quantized.
    """
    for file in (folder / name for name in _JSON):
        if file.is_file():
            read_json(file)
    check_weights(folder)


def check_weights(folder: Path) -> None:
    """Check that a checkpoint's files are complete and contain floating-point weights.

    Raises:
        ModelError: if a file is missing, damaged or quantized.
    """
    for index in (folder / name for name in _CHECKPOINTS if name.endswith(".json")):
        for part in sorted(set(read_index(index).values())) if index.is_file() else ():
            if not (folder / part).is_file():
                raise damaged(folder / part, "")
    if (folder / "config.json").is_file():
        check_config(folder)
    for file in weight_files(folder):
        for name, kind in stored_types(file).items():
            if name.endswith("weight") and kind not in _WEIGHT_TYPES:
                raise _quantized_already(folder, f"{name} is stored as {kind}")


def check_tokenizer_files(folder: Path) -> None:
    """Check that the tokenizer's files can be read.

    Raises:
        ModelError: if a file is damaged, or the tokenizer needs custom code.
    """
    for file in _tokenizer_files(folder):
        check_content(file)
        if file.suffix == ".json":
            read_json(file)
    if (settings := folder / "tokenizer_config.json").is_file():
        _check_code(settings, read_json(settings), "AutoTokenizer", "tokenizer_class")


def check_config(folder: Path) -> None:
    """Check that a configuration describes a whole model of transformers' own classes.

    Raises:
        ModelError: if the file is damaged, or the model is already quantized, is an adapter, or
            needs custom code.
    """
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise damaged(folder / "config.json", "no JSON object")
    if (folder / _ADAPTER).is_file():
        raise ModelError(
            f"{folder}: the folder contains a PEFT adapter ({_ADAPTER}), which transformers would "
            "load too; merge the adapter into its base model and save the result, or give the base "
            "model's folder"
        )
    if (method := _quantization_method(folder, config)) is not None:
        raise _quantized_already(folder, method)
    if name := config.get("transformers_weights"):
        raise ModelError(
            f"{folder / 'config.json'}: transformers_weights names another file ({name}); load the "
            "model and save it with save_pretrained"
        )
    _check_code(folder / "config.json", config, "", "architectures")


def _quantized_already(folder: Path, method: str) -> ModelError:
    """Return the error for a model whose weights are quantized in its files."""
    return ModelError(
        f"{folder}: the weights are already quantized ({method}); set model.path to the original "
        "model, and model.quantization to nf4 or int8"
    )


def model_id(folder: Path) -> bytes:
    """Return the hash of a model's config, weight and tokenizer files, 32 bytes.

    The modules after a sentence encoder's network are hashed too, unless they only do mean or cls
    pooling. The id of a model converted from a GGUF file is the hash of that file.

    Raises:
        ModelError: if an index or a module is damaged.
    """
    if (converted := converted_model_id(folder)) is not None:
        return converted
    whole = hashlib.sha256()
    own = {folder / "config.json", *weight_files(folder), *_tokenizer_files(folder)}
    for file in [*sorted(file for file in own if file.is_file()), *hashed_module_files(folder)]:
        whole.update(file.relative_to(folder).as_posix().encode() + b"\0" + file_hash(file))
    return whole.digest()


def model_id_of(path: str, depth: str = "") -> bytes:
    """Return the model id of a base model without loading it.

    Args:
        path: as in `samara.shared.model.loading.load_base_model`.
        depth: number or share of the blocks to load; empty for all.

    Raises:
        ModelError: if the folder is missing or incomplete.
    """
    folder = find_model_folder(path)
    return cut_id(model_id(folder), blocks_at(depth, folder))


def _tokenizer_files(folder: Path) -> list[Path]:
    return sorted({f for pattern in _TOKENIZER for f in folder.glob(pattern) if f.is_file()})


def _quantization_method(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the method with which a model's files are quantized, or None if they are not."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in _QUANTIZATION_KEYS:
            if settings := part.get(key):
                method = settings.get("quant_method") if isinstance(settings, dict) else None
                return str(method or key)
    return next((name for name in _QUANTIZATION_FILES if (folder / name).is_file()), None)


def _check_code(file: Path, settings: Any, auto_class: str, class_key: str) -> None:
    """Check that a model whose folder contains code can be loaded by transformers' own classes."""
    code = settings.get("auto_map") if isinstance(settings, dict) else None
    if not code or (auto_class and isinstance(code, dict) and auto_class not in code):
        return
    import transformers

    named = settings.get(class_key) or []
    name = named if isinstance(named, str) else str(next(iter(named), ""))
    known = hasattr(transformers, name) if name else True
    if not auto_class:
        known = known and settings.get("model_type") in transformers.CONFIG_MAPPING
    if not known:
        raise ModelError(
            f"{file}: the model needs code from its own folder (auto_map), which Samara does not "
            "run; choose a model whose classes are part of transformers"
        )


def _resolve(path: str) -> Path:
    if not path:
        raise ModelError("model.path is empty; set it to a model folder or a name on the hub")
    if path == EMBEDDED_MODEL:
        return find_embedded_model()
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file():
        if folder.suffix == ".gguf":
            return find_converted_folder(folder)
        raise ModelError(
            f"{path}: this is a file; set model.path to the model's folder or a .gguf file"
        )
    if folder.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ModelError(f"{path}: there is no such model folder; check model.path")
    return _download(path)


def _download(name: str) -> Path:
    """Download the required files of a model, and return their folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def fetch(files: Collection[str], within: str | None) -> Path:
        return Path(snapshot_download(name, allow_patterns=sorted(files), ignore_patterns=within))

    try:
        folder = fetch(_DOWNLOADED, "*/*")
        asked: set[str] = set()
        while wanted := set(_missing_files(folder)) - asked:
            fetch(wanted, None)
            asked |= wanted
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(
            f"{name}: this is neither a folder nor a model that can be downloaded from the Hugging "
            "Face hub; check model.path, or download the model and give its folder"
        ) from error
    return folder


def _missing_files(folder: Path) -> Iterator[str]:
    """Yield the names of required files that a folder lacks."""
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        yield from _PICKLES
    needed = [] if checkpoint is None else weight_files(folder)
    for file in [*needed, *module_files(folder)]:
        if not file.is_file():
            yield file.relative_to(folder).as_posix()


def find_embedded_model() -> Path:
    """Return the folder of the embedded model, a small model inside Samara's package.

    Raises:
        ModelError: if the model is missing.
    """
    if not (_EMBEDDED_FOLDER / "model.safetensors").is_file():
        raise ModelError(
            f"{_EMBEDDED_FOLDER}: the embedded model is missing; install Samara again, or set "
            "model.path"
        )
    return _EMBEDDED_FOLDER
