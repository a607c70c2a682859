"""Export of a trained model as a folder that transformers' ``from_pretrained`` loads."""

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError

from samara.shared.errors import TrainingError
from samara.shared.model.loading import BaseModel
from samara.shared.model.sentence_modules import module_folders
from samara.shared.storage.files import sync_folder

_ENCODER_FILES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")


def export_model(base: BaseModel, folder: Path) -> None:
    """Write a model's config, safetensors weights and tokenizer, replacing the folder's content.

    The files are written beside the folder, fsynced and renamed, so that the folder is either
    complete or missing.

    Args:
        base: model without adapters inside.
        folder: folder to write.

    Raises:
        TrainingError: if the folder cannot be written.
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
        for module in module_folders(base.folder):
            shutil.copytree(module, unfinished / module.name)
        for file in [path for path in unfinished.rglob("*") if path.is_file()]:
            with file.open("rb") as written:
                os.fsync(written.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        unfinished.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise TrainingError(
            f"{folder}: cannot be written: {error.strerror or error}; free space on this disk"
        ) from error
    except SafetensorError as error:  # for example a full disk
        raise TrainingError(
            f"{folder}: cannot be written: {error}; free space on this disk"
        ) from error
