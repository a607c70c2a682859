"""Damaged or misplaced model files, with the same error messages on every path."""

import json
import zipfile
from pathlib import Path
from typing import Any

from samara.shared.errors import ModelError

_POINTER = b"version https://git-lfs"
_FIRST_BYTES = 512


def damaged(file: Path, reason: str) -> ModelError:
    """Return the error for an unreadable file, which names the file's content if possible.

    Args:
        file: path of the file; it may be missing.
        reason: error of its reader.
    """
    if not file.is_file():
        return ModelError(f"{file}: is missing, a part of the model; download the model again")
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
    """Check that a file is not empty, and is neither a Git LFS pointer nor a web page.

    Raises:
        ModelError: naming the remedy.
    """
    if _other_content(file) is not None:
        raise damaged(file, "")


def read_json(file: Path) -> Any:
    """Read a JSON file of a model.

    Raises:
        ModelError: if it is damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(file, str(error)) from error


def stored_types(file: Path) -> dict[str, str]:
    """Return the type of each tensor in a file, without reading the tensors.

    Args:
        file: file in safetensors, or a pickled state dict.

    Raises:
        ModelError: if it is damaged.
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
    except Exception as error:  # of many types: a pickle may fail anywhere
        raise damaged(file, str(error) or type(error).__name__) from error


def _needed_bytes(file: Path) -> int:
    """Return the length of a safetensors file according to its header; 0 without a header."""
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
    """Describe wrong content of a file, with the remedy."""
    with file.open("rb") as stream:
        first = stream.read(_FIRST_BYTES)
    if not first:
        return "it is empty; download the model again"
    if first.startswith(_POINTER):
        return (
            "it is a pointer of Git LFS, not the file itself; run git lfs pull in its folder, or "
            "download the model again"
        )
    if first.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return (
            "it is a web page, perhaps one to sign in; download the model again, after accepting "
            "its terms where it has some"
        )
    return None
