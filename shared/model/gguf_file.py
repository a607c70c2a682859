"""Conversion of GGUF files, the models of llama.cpp and Ollama, to folders with float32 weights."""

import hashlib
import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from samara.shared.errors import ModelError
from samara.shared.storage.files import cache_folder, make_folder, sync_folder

log = logging.getLogger("samara")

_MAGIC = b"GGUF"
_WEIGHTS_PER_SECOND = 1e7
"""Weights that one core dequantizes and writes per second, rounded down to a power of ten."""
_MISSING = (
    "{file}: GGUF files need the package gguf ({error}); install samara-fl[gguf], or give the "
    "folder of the original model"
)


def find_converted_folder(file: Path) -> Path:
    """Return the cache folder with the converted model of a GGUF file; convert it if necessary.

    The weights are dequantized to float32. The folder is named after the file's SHA-256, which is
    also the model id. So the id does not depend on the version of transformers that writes the
    folder.

    Args:
        file: GGUF file.

    Raises:
        ModelError: if the file is damaged, the package gguf is missing, transformers does not know
            the architecture, or the folder cannot be written.
    """
    folder = cache_folder("gguf") / _hash_of(file)
    if folder.is_dir():
        return folder
    try:
        make_folder(folder.parent)
        with TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as unfinished:
            _convert(file, Path(unfinished))
            _move_once(Path(unfinished), folder)
    except OSError as error:
        raise ModelError(
            f"{folder}: the model of {file} cannot be written: {error.strerror}; free disk space, "
            "or set XDG_CACHE_HOME to a folder on another disk"
        ) from error
    return folder


def converted_model_id(folder: Path) -> bytes | None:
    """Return the 32-byte id of a model converted from a GGUF file, or None for other folders."""
    if folder.parent != cache_folder("gguf"):
        return None
    return bytes.fromhex(folder.name)


def _hash_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                raise ModelError(
                    f"{file}: this is not a GGUF file; give a .gguf file or a model folder"
                )
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error


def _convert(file: Path, folder: Path) -> None:
    """Write the tokenizer and the float32 weights of a GGUF file into a folder."""
    import torch
    import transformers

    from samara.shared.model.structure import creating_network

    _announce(file)
    transformers.utils.logging.disable_progress_bar()
    names: Any = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **names)
        with creating_network:
            network = transformers.AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, **names
            )
    except OSError:
        raise
    except Exception as error:  # transformers raises errors of many types
        raise ModelError(f"{file}: transformers cannot read this GGUF file: {error}") from error
    _forget_quantization(network)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_gguf(file: Path) -> Any:
    """Open a GGUF file with `gguf.GGUFReader`.

    Raises:
        ModelError: if the file is damaged or not a GGUF file, or the package gguf is missing.
    """
    try:
        from gguf import GGUFReader

        return GGUFReader(file)
    except ImportError as error:
        raise ModelError(_MISSING.format(file=file, error=error)) from error
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    except Exception as error:  # gguf raises errors of many types
        raise ModelError(
            f"{file}: this GGUF file is damaged ({error}); download it again"
        ) from error


def _announce(file: Path) -> None:
    """Log the model's size in float32, and the expected duration of the conversion."""
    weights = sum(int(tensor.n_elements) for tensor in read_gguf(file).tensors)
    log.warning(
        "%s: converting %d MB of GGUF once to %d MB of float32 in %s; this takes about %d s",
        file,
        file.stat().st_size / 1e6,
        4 * weights / 1e6,
        cache_folder("gguf"),
        1 + weights / _WEIGHTS_PER_SECOND,
    )


def _forget_quantization(network: Any) -> None:
    """Make transformers save a dequantized model as a plain model."""
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    network.hf_quantizer = None
    network.is_quantized = False


def _move_once(unfinished: Path, folder: Path) -> None:
    """Move a finished folder into place, unless another process has already created it."""
    for file in unfinished.iterdir():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    sync_folder(unfinished)
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    sync_folder(folder.parent)
