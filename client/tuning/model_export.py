"""Export of a trained model as a folder that transformers' ``from_pretrained`` loads."""

import shutil
from pathlib import Path

from shared.errors import TrainingError
from shared.model.loading import BaseModel

_ENCODER_FILES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
_POOLING_FOLDER = "1_Pooling"


def export_model(base: BaseModel, folder: Path) -> None:
    """Write config, weights in safetensors and tokenizer, in place of what is in the folder.

    The files are written beside the folder and renamed, so that it is whole or as before.

    Args:
        base: model without adapters inside.
        folder: folder to write.

    Raises:
        TrainingError: if it cannot be written.
    """
    unfinished = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        base.network.config.use_cache, cached = True, base.network.config.use_cache
        try:
            base.network.save_pretrained(unfinished, safe_serialization=True)
        finally:
            base.network.config.use_cache = cached
        base.tokenizer.save_pretrained(unfinished)
        for name in _ENCODER_FILES:
            if (base.folder / name).is_file():
                shutil.copy(base.folder / name, unfinished / name)
        if (base.folder / _POOLING_FOLDER).is_dir():
            shutil.copytree(base.folder / _POOLING_FOLDER, unfinished / _POOLING_FOLDER)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written: {error.strerror or error}") from error
