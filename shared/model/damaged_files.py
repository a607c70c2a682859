"""Checks and error messages for damaged or misplaced model files."""

import json
import zipfile
from pathlib import Path
from typing import Any

from samara.shared.errors import ModelError

_POINTER = b"version https://git-lfs"
_FIRST_BYTES = 512


def damaged(file: Path, reason: str) -> ModelError:
    """Return the error for a file that cannot be read.

    If the file has recognizable wrong content, such as a web page, the message names it.

    Args:
        file: path of the file; it may be missing.
        reason: error message of the library that read the file.
    """
    if not file.is_file():
        return ModelError(f"{file}: this file of the model is missing; download the model again")
    if (content := _other_content(file)) is not None:
        return ModelError(f"{file}: cannot be loaded: {content}")
    if (needed := _needed_bytes(file)) > (size := file.stat().st_size):
        return ModelError(
            f"{file}: cannot be loaded: it is truncated: {size:,} bytes, and its tensors need "
            f"{needed:,}; download the model again"
        )
    first_line = reason.strip().partition("\n")[0]
    return ModelError(
        f"{file}: cannot be loaded: it is damaged ({first_line}); download the model again"
    )


def check_content(file: Path) -> None:
    """Check that a file is not empty, not a Git LFS pointer and not a web page.

    Raises:
        ModelError: if the check fails. The message names the remedy.
    """
    if _other_content(file) is not None:
        raise damaged(file, "")


def read_json(file: Path) -> Any:
    """Read a JSON file of a model.

    Raises:
        ModelError: if the file is missing or damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, str(error)) from error


def stored_types(file: Path) -> dict[str, str]:
    """Return the name of each tensor's data type in a file, without reading the tensors.

    Args:
        file: safetensors file or pickled state dict.

    Raises:
        ModelError: if the file is missing or damaged.
    """
    import torch
    from safetensors import safe_open

    try:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as opened:
                names = opened.keys()
                return {name: opened.get_slice(name).get_dtype() for name in names}
        maps = zipfile.is_zipfile(file)
        tensors = torch.load(file, map_location="meta", weights_only=True, mmap=maps)
        return {name: str(tensor.dtype) for name, tensor in tensors.items()}
    except Exception as error:  # Damaged pickles raise errors of many types.
        raise damaged(file, str(error) or type(error).__name__) from error


def _needed_bytes(file: Path) -> int:
    """Return the file length in bytes that a safetensors header implies; 0 without a header."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(length) if length < file.stat().st_size else b""
    try:
        ends = [
            entry["data_offsets"][1] for entry in json.loads(header).values() if "dtype" in entry
        ]
        return 8 + length + int(max(ends))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return 0


def _other_content(file: Path) -> str | None:
    """Return a description of a file's wrong content with the remedy; None for other files."""
    with file.open("rb") as stream:
        first = stream.read(_FIRST_BYTES)
    if not first:
        return "it is empty; download the model again"
    if first.startswith(_POINTER):
        return (
            "it is a Git LFS pointer instead of the file; run git lfs pull in the model's folder, "
            "or download the model again"
        )
    if first.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return (
            "it is a web page, perhaps a sign-in page; accept the model's terms if it has any, and "
            "download the model again"
        )
    return None
