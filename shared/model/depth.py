"""Loading only the lowest blocks of a model, up to a depth.

A middle representation of a language model can tell more about an example than the last one, which
is specialized in predicting the next token. A cut model has another model id than the whole model.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from samara.shared.errors import ModelError
from samara.shared.model.structure import detect_family
from samara.shared.settings.sections import AT_A_DEPTH, lowest_blocks


def blocks_at(depth: str, folder: Path) -> int:
    """Return the number of blocks to load from a model folder, or 0 for all.

    Args:
        depth: as in `lowest_blocks`.
        folder: model folder.

    Raises:
        ModelError: if the model has fewer blocks than the depth requires, or its configuration does
            not state their number.
    """
    if not depth:
        return 0
    family = detect_family(folder)
    count = count_blocks(folder)
    if depth == AT_A_DEPTH and count is None:
        return 0
    if count is None:
        raise ModelError(
            f"{folder / 'config.json'}: num_hidden_layers is missing, so the model cannot be read "
            f"at depth {depth}; set adapter.layers to readout"
        )
    return lowest_blocks(depth, count, family)


def count_blocks(folder: Path) -> int | None:
    """Return the number of blocks of the whole model, or None if its configuration lacks it."""
    count = getattr(read_config(folder).get_text_config(), "num_hidden_layers", None)
    return count if isinstance(count, int) else None


def cut_config(settings: Any, blocks: int) -> None:
    """Reduce a transformers configuration, in place, to the lowest blocks of its network."""
    text = settings.get_text_config()
    whole = text.num_hidden_layers
    lists = {name: value for name, value in vars(text).items() if isinstance(value, list)}
    text.num_hidden_layers = blocks
    for name, value in lists.items():
        if len(value) == whole:
            setattr(text, name, value[:blocks])


def cut_id(model_id: bytes, blocks: int) -> bytes:
    """Return the 32-byte id of a model that is cut to its lowest blocks.

    Args:
        model_id: id of the whole model.
        blocks: number of blocks; 0 for all.
    """
    if not blocks:
        return model_id
    return hashlib.sha256(model_id + f" lowest blocks: {blocks}".encode()).digest()


def is_above(network: nn.Module, blocks: nn.ModuleList) -> Callable[[str], bool]:
    """Return a function that tells from a tensor's name whether its block was cut off.

    Args:
        network: the cut network.
        blocks: transformer blocks of the cut network.
    """
    path = next(name for name, module in network.named_modules() if module is blocks)
    pattern = re.compile(rf"(?:^|\.){re.escape(path.rpartition('.')[2])}\.(\d+)\.")

    def is_cut_off(name: str) -> bool:
        found = pattern.search(name)
        return found is not None and int(found[1]) >= len(blocks)

    return is_cut_off


def read_config(folder: Path) -> Any:
    """Read a model's configuration.

    Raises:
        ModelError: if the file is wrong, or the installed transformers does not know the model.
    """
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises errors of many types
        reason = " ".join(str(error).splitlines()[:2]).strip()
        raise ModelError(f"{folder / 'config.json'}: cannot be used: {reason}") from error
